"""`pytest-lens bisect`: the release or the commit that changed a model, found alone."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch

from pytest_torchlens.cli import main
from pytest_torchlens.cli.bisect import commits
from pytest_torchlens.cli.bisect import releases
from pytest_torchlens.cli.bisect.commits import CommitSearch
from pytest_torchlens.cli.bisect.commits import report
from pytest_torchlens.cli.bisect.environments import Environments
from pytest_torchlens.cli.bisect.environments import Recipe
from pytest_torchlens.cli.bisect.releases import path_between
from pytest_torchlens.cli.bisect.releases import provider_packages
from pytest_torchlens.cli.bisect.releases import requirements
from pytest_torchlens.cli.bisect.search import Search
from pytest_torchlens.cli.bisect.search import most_trials
from pytest_torchlens.cli.bisect.trial import Comparer
from pytest_torchlens.cli.errors import CommandError
from pytest_torchlens.records.git import GitError
from pytest_torchlens.records.git import Repository
from pytest_torchlens.zoo.catalog import shipped_folder
from tests.cli.seeded_python import fake_uv
from tests.cli.seeded_python import make_python
from tests.plugin.kernels import MODELS
from tests.plugin.kernels import ZOO

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the interpreters are made of links")
seeded = pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="PyTorch before 2.9 has no get_kernel")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    (folder / "zoo").mkdir(parents=True)
    (folder / "zoo" / "models.py").write_text(MODELS, encoding="utf-8")
    (folder / "zoo" / "net.yaml").write_text(ZOO, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\nlens_report = report\n")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(releases, "running_release", lambda: "")  # the releases are made up
    return folder


def bisect(*arguments: str) -> int:
    return main(["bisect", "zoo/net.yaml::net", *arguments])


def interrupt(options: list[str], temporary: Path, begun: str, number: signal.Signals, **variables: str) -> None:
    """Send a signal to a search once it has made what the pattern `begun` fits in its folder for temporary files."""
    temporary.mkdir()
    running = subprocess.Popen(
        [sys.executable, "-m", "pytest_torchlens.cli", "bisect", "zoo/net.yaml::net", *options],
        env={**os.environ, **variables, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 100
    while not list(temporary.glob(begun)) and time.monotonic() < deadline:
        time.sleep(0.1)
    running.send_signal(number)
    told, _ = running.communicate(timeout=100)
    assert running.returncode == 130
    assert told.endswith("interrupted: the search ends here, and what it made is removed\n")


@pytest.mark.parametrize("count", range(2, 9))
def test_any_first_bad_one_is_found_whatever_is_skipped(count: int):
    names = [str(number) for number in range(count)]
    for first_bad, skipped in itertools.product(range(1, count), _subsets(names[1:-1])):
        search, tried = Search(names), 0
        while (name := search.next) is not None:
            tried += 1
            note = search.skip if name in skipped else search.bad if int(name) >= first_bad else search.good
            note(name)
        assert str(first_bad) in search.suspects or (str(first_bad) in skipped)
        assert set(search.suspects[:-1]) <= skipped
        assert skipped or (search.suspects == (str(first_bad),) and tried <= most_trials(count - 2))


def _subsets(names: list[str]) -> list[set[str]]:
    return [set(some) for size in range(len(names) + 1) for some in itertools.combinations(names, size)]


def test_releases_between_are_those_of_the_index_and_of_the_user_in_order():
    known = ["2.14.1", "2.13.0+cpu", "2.13.0", "2.9.1", "2.9.0", "2.10.0", "2.15.0"]
    assert path_between("2.9.1", "2.14.1", known) == ["2.9.1", "2.10.0", "2.13.0", "2.14.1"]
    assert path_between("2.14.1", "2.9.1", known) == ["2.14.1", "2.13.0", "2.10.0", "2.9.1"]


def test_all_but_pytorch_and_its_partners_is_what_is_installed_here():
    found = requirements(["torchvision", "no-such-package"])
    assert {"torchvision", "no-such-package"} <= set(found)
    assert any(one.startswith("numpy==") for one in found)
    assert not any(one.startswith("torch==") for one in found)


@pytest.mark.parametrize("has_uv", [True, False])
def test_an_index_and_nightly_builds_are_asked_of_either_installer(has_uv: bool, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PATH", str(fake_uv(tmp_path / "tools") if has_uv else tmp_path))
    recipe = Recipe(python="python3", packages=("torchvision",), index="https://example.org", nightlies=True)
    make, install = recipe.commands(tmp_path / "new", "2.15.0.dev20261101")
    assert make[-1] == str(tmp_path / "new")
    assert {"--extra-index-url=https://example.org", "torch==2.15.0.dev20261101", "torchvision"} <= set(install)
    assert ("--prerelease=allow" if has_uv else "--pre") in install


def test_the_packages_of_a_zoo_are_those_of_its_library_or_of_its_own_imports(project: Path):
    shipped = shipped_folder()
    assert provider_packages(shipped / "torchvision.yaml") == ("torchvision",)
    assert provider_packages(shipped / "timm_smallest.yaml") == ("timm", "torchvision")
    (project / "zoo" / "models.py").write_text("import torch, numpy, PIL, pytest_torchlens\nimport helper\n")
    (project / "helper.py").write_text("import yaml\n")
    assert provider_packages(Path("zoo/net.yaml")) == ("PyYAML", "numpy", "pillow")


@seeded
@pytest.mark.slow
def test_a_fault_of_a_release_is_found_and_named(project: Path, capsys):
    faults = {"2.9.1": False, "2.10.0": False, "2.12.0": True, "2.13.0": True}
    pythons = {release: make_python(project / "envs" / release, wrong=wrong) for release, wrong in faults.items()}
    pythons["2.11.0"] = make_python(project / "envs" / "none", empty=True)
    before = _files(project)
    given = [f"--environment={release}={python}" for release, python in pythons.items()]
    assert bisect("--good=2.9.1", "--bad=2.13.0", "--no-install", *given) == 1
    told = capsys.readouterr().out
    assert "3 releases between 2.9.1 and 2.13.0: 2.10.0, 2.11.0, 2.12.0\nat most 3 comparisons" in told
    assert "2.11.0: skipped: " in told
    assert "has no torch" in told
    assert "2.10.0: good: identical; all 10 operations compute the same\n" in told
    assert "2.12.0: bad: regression at /silu; 2 of 10 operations differ: on the baseline's inputs it" in told
    assert [line.split(":")[0].strip() for line in told.splitlines()[-2:]] == ["2.11.0", "2.12.0"]
    assert _files(project) == before


@seeded
@pytest.mark.slow
def test_environments_are_made_one_at_a_time_and_removed(project: Path, tmp_path: Path, monkeypatch, capsys):
    tools = fake_uv(tmp_path / "tools")
    (tools / "faults.json").write_text(json.dumps({"2.11.0": "missing", "2.12.0": "wrong", "2.13.0": "wrong"}))
    monkeypatch.setenv("PATH", str(tools), prepend=os.pathsep)
    options = ["--releases=2.10.0,2.11.0,2.12.0", "--index=https://example.org/cpu", "--with=einops"]
    assert bisect("--good=2.9.1", "--bad=2.13.0", *options) == 1
    told = capsys.readouterr().out
    assert "environments to make with uv: 4 at most, about 8 to 24 GB" in told
    assert "2.11.0: skipped: cannot be installed: error: there is no wheel of torch 2.11.0" in told
    calls = [json.loads(line) for line in (tools / "log").read_text().splitlines()]
    beside = [call["beside"] for call in calls if "beside" in call]
    assert beside[0] == []
    assert all(others == ["torch-2.9.1"] for others in beside[1:])
    assert not Path(calls[0]["folder"]).exists()
    asked = next(call["install"] for call in calls if "install" in call)
    assert {"--extra-index-url=https://example.org/cpu", "torch==2.9.1", "einops"} <= set(asked)
    assert f"numpy=={__import__('numpy').__version__}" in asked


def _files(folder: Path) -> dict[str, bytes]:
    """Return the content of each file of a project, except the bytecode of its modules."""
    paths = (path for path in folder.rglob("*") if path.is_file() and "envs" not in path.parts)
    return {str(path): path.read_bytes() for path in paths if "__pycache__" not in path.parts}


@pytest.mark.slow
def test_ctrl_c_removes_what_was_made(project: Path, tmp_path: Path):
    tools = fake_uv(tmp_path / "tools")
    (tools / "faults.json").write_text(json.dumps({"2.13.0": "slow"}))
    path = os.pathsep.join([str(tools), os.environ["PATH"]])
    options = ["--good=2.9.1", "--bad=2.13.0", "--releases=2.10.0", f"--python={sys.executable}"]
    temporary = tmp_path / "temporary"
    interrupt(options, temporary, "*/torch-2.13.0", signal.SIGINT, PATH=path)
    assert list(temporary.glob("pytest-lens-*")) == []


def test_a_dry_run_says_what_would_be_done_and_does_nothing(project: Path, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))  # without uv
    keep = tmp_path / "kept"
    assert bisect("--good=2.9.1", "--bad=2.13.0", "--releases=2.10.0", f"--keep={keep}", "--dry-run") == 0
    told = capsys.readouterr().out
    assert "1 release between 2.9.1 and 2.13.0: 2.10.0\nat most 2 comparisons" in told
    assert "environments to make with venv and pip: 3 at most, about 6 to 18 GB of downloads; all are kept" in told
    assert not keep.exists()


@pytest.mark.parametrize(
    ("options", "is_used", "made"),
    [
        (["--good=2.9.1", "--bad=2.14.1", "--releases=2.10.0"], True, 2),
        (["--good=2.14.1", "--bad=2.9.1", "--releases="], True, 1),
        (["--good=2.9.1", "--bad=2.15.0", "--releases=2.10.0,2.14.1"], True, 3),
        (["--good=2.9.1", "--bad=2.15.0", "--releases=2.10.0"], False, 3),
        (["--good=2.9.1", "--bad=2.14.1", "--releases=2.10.0", "--python=python3"], False, 3),
        (["--good=2.9.1", "--bad=2.14.1", "--releases=2.10.0", "--environment=2.14.1=other"], False, 2),
    ],
)
def test_no_environment_is_made_for_the_release_that_runs_the_command(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys, options: list[str], is_used: bool, made: int
):
    monkeypatch.setattr(releases, "running_release", lambda: "2.14.1")
    assert bisect(*options, "--dry-run") == 0
    told = capsys.readouterr().out
    assert (f"2.14.1 is this environment, {sys.executable}" in told) == is_used
    assert f": {made} at most" in told


@seeded
@pytest.mark.slow
def test_this_environment_can_be_an_end(project: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.undo()
    monkeypatch.chdir(project)
    here = releases.running_release()
    python = make_python(project / "envs" / "wrong", wrong=True)
    assert bisect(f"--good={here}", "--bad=1.0", "--no-install", f"--environment=1.0={python}") == 0
    told = capsys.readouterr().out
    assert f"{here}: good by definition ({sys.executable})" in told
    assert "1.0: bad: regression at /silu" in told


def test_a_folder_of_the_users_where_an_environment_would_be_made_stays(
    project: Path, tmp_path: Path, monkeypatch, capsys
):
    tools = fake_uv(tmp_path / "tools")
    (tools / "faults.json").write_text(json.dumps(dict.fromkeys(["2.9.1", "2.10.0", "2.13.0"], "missing")))
    monkeypatch.setenv("PATH", str(tools), prepend=os.pathsep)
    keep = tmp_path / "kept"
    notes = keep / "torch-2.10.0" / "notes.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text("mine")
    options = ["--good=2.9.1", "--bad=2.13.0", f"--keep={keep}"]
    assert bisect(*options, "--releases=2.10.0") == 2
    assert f"--keep: {notes.parent} exists, and is no environment: move it away, or name" in capsys.readouterr().err
    assert [path for path in keep.rglob("*") if path.is_file()] == [notes]
    assert not (tools / "log").exists()
    environments = Environments(existing={}, recipe=Recipe(python="python3", packages=()), folder=keep, keep=True)
    with pytest.raises(CommandError, match="is no environment"):
        environments.python("2.10.0")
    assert bisect(*options, "--releases=") == 2
    assert "--good=2.9.1: cannot be installed: error: there is no wheel" in capsys.readouterr().err
    assert list(keep.iterdir()) == [notes.parent]
    assert notes.read_text() == "mine"


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"):
        monkeypatch.setenv(name, "someone")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    git("init", "--quiet", "--initial-branch=main")
    _commit(project, "first")
    return project


def _commit(project: Path, subject: str, was: str = "", now: str = "") -> None:
    models = project / "zoo" / "models.py"
    models.write_text(models.read_text(encoding="utf-8").replace(was or "\0", now), encoding="utf-8")
    (project / "subject.txt").write_text(subject)
    git("add", ".")
    git("commit", "--quiet", f"--message={subject}")


@pytest.mark.slow
def test_the_commit_is_found_and_the_users_checkout_stays(repository: Path, capsys):
    _commit(repository, "harmless")
    _commit(repository, "the fault", "mul_(2)", "mul_(2.5)")
    _commit(repository, "broken", "import torch\n", "import torch, gone\n")
    _commit(repository, "repaired", "import torch, gone\n", "import torch\n")
    _commit(repository, "harmless, too")
    _commit(repository, "last")
    hook = repository / ".git" / "hooks" / "post-checkout"
    hook.write_text("#!/bin/sh\ntouch ../ran-a-hook\n")
    hook.chmod(0o755)
    git("bisect", "start")  # a search of the user's own
    (repository / "staged.txt").write_text("staged")
    git("add", "staged.txt")
    (repository / "subject.txt").write_text("not committed")
    before = git("status", "--porcelain"), git("for-each-ref"), git("bisect", "log"), _files(repository / "zoo")
    assert bisect("--git=main~6..main") == 0
    told = capsys.readouterr().out
    assert told.startswith("5 commits between main~6 and main\nat most 5 runs")
    assert " first: good by definition\n" in told
    assert " broken: skipped: zoo/net.yaml:2: cannot load models.py: ModuleNotFoundError" in told
    found = told[told.index("is the first bad commit") - 20 :]
    assert " the fault is the first bad commit:\nsomeone, " in found
    assert "net:net: structure at /mul; 4 of 10 operations differ" in found
    assert "argument 1=2 → 1=2.5" in found
    assert "at zoo/models.py:16, in forward" in found
    after = git("status", "--porcelain"), git("for-each-ref"), git("bisect", "log"), _files(repository / "zoo")
    assert after == before
    assert len(git("worktree", "list").splitlines()) == 1
    assert not (repository.parent / "ran-a-hook").exists()
    assert not list(Path(tempfile.gettempdir()).glob("pytest-lens-bisect-*/tree"))


@pytest.mark.slow
def test_a_search_of_commits_that_is_ended_leaves_no_worktree(repository: Path, tmp_path: Path):
    _commit(repository, "harmless")
    temporary = tmp_path / "temporary"
    interrupt(["--git=main~1..main"], temporary, "*/tree/zoo/net.yaml", signal.SIGTERM)
    assert list(temporary.iterdir()) == []
    assert len(git("worktree", "list").splitlines()) == 1


@pytest.mark.slow
def test_a_step_that_crashes_ends_the_search_with_its_error(repository: Path, monkeypatch, capsys):
    _commit(repository, "harmless")
    _commit(repository, "harmless, too")
    _commit(repository, "the fault", "mul_(2)", "mul_(2.5)")
    write = commits.write_atomically
    monkeypatch.setattr(commits, "write_atomically", lambda path, text: write(path, text.replace('"tree"', '"tere"')))
    assert bisect("--git=main~3..main") == 2
    told = capsys.readouterr()
    assert "first bad commit" not in told.out
    assert "git bisect run: a step ended with " in told.err
    assert "tere" in told.err
    assert len(git("worktree", "list").splitlines()) == 1


@pytest.mark.slow
def test_a_step_whose_imports_fail_is_not_bad(repository: Path, monkeypatch, capsys):
    _commit(repository, "harmless")
    _commit(repository, "harmless, too")
    _commit(repository, "the fault", "mul_(2)", "mul_(2.5)")
    gone = repository.parent / "other"
    (gone / "packaging").mkdir(parents=True)
    (gone / "packaging" / "__init__.py").write_text("raise ImportError('another one')\n")
    start = commits.started
    changed = {"PYTHONPATH": os.pathsep.join([str(gone), os.environ.get("PYTHONPATH", "")])}
    monkeypatch.setattr(
        commits, "started", lambda command, variables, errors: start(command, None, variables | changed, errors=errors)
    )
    assert bisect("--git=main~3..main") == 2
    assert "a step ended with ImportError: another one" in capsys.readouterr().err


@pytest.mark.slow
def test_a_search_that_is_ended_while_git_checks_out_leaves_no_worktree(repository: Path, tmp_path: Path):
    begun, temporary = tmp_path / "begun", tmp_path / "temporary"
    temporary.mkdir()
    _commit(repository, "second")
    (repository / ".git" / "info" / "attributes").write_text("subject.txt filter=slow\n")
    git("config", "filter.slow.smudge", f"touch {begun}; sleep 30; cat")
    git("config", "filter.slow.clean", "cat")
    running = subprocess.Popen(
        [sys.executable, "-m", "pytest_torchlens.cli", "bisect", "zoo/net.yaml::net", "--git=main~1..main"],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 100
    while not begun.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=100)
    assert running.returncode == 130
    assert list(temporary.iterdir()) == []
    assert len(git("worktree", "list").splitlines()) == 1


def test_a_worktree_that_cannot_be_removed_hides_no_error(repository: Path, monkeypatch, capsys):
    _commit(repository, "second")
    run = Repository.run

    def failing(self: Repository, *arguments: str) -> str:
        if arguments[:2] == ("worktree", "remove"):
            raise GitError("git worktree: it cannot be removed")
        return run(self, *arguments)

    def first_error(*_: object) -> None:
        raise GitError("the first error")

    monkeypatch.setattr(Repository, "run", failing)
    monkeypatch.setattr(commits, "_comparer", first_error)
    assert bisect("--git=main~1..main") == 2
    assert "the first error" in capsys.readouterr().err


def test_a_commit_that_was_not_tried_is_told_as_that(repository: Path, capsys):
    _commit(repository, "second")
    found = Repository.of(repository)
    search = CommitSearch(found, repository, Comparer(model=(), folder=""))
    git("bisect", "start", "main", "main~1")
    assert report(search, found) == 0
    assert "second is the first bad commit:" in capsys.readouterr().out
    git("bisect", "reset")
    _commit(repository, "third")
    git("bisect", "start", "main", "main~2")
    assert report(search, found) == 1
    assert " second: skipped: it was not tried" in capsys.readouterr().out


@pytest.mark.slow
def test_a_last_commit_that_is_not_bad_is_told_with_what_differs(repository: Path, capsys):
    _commit(repository, "harmless")
    assert bisect("--git=main~1..main") == 2
    assert " harmless is not bad: it computes the same as the good one" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "expected --good=RELEASE and --bad=RELEASE, or --git=GOOD..BAD"),
        (["--good=2.9.1", "--bad=2.10.0", "--git=a..b"], "expected --good=RELEASE and --bad=RELEASE, or --git"),
        (["--good=2.9.1"], "--bad: expected a release of PyTorch, got none"),
        (
            ["--good=2.9.1", "--bad=latest", "--releases="],
            "--bad: expected a release of PyTorch such as 2.9.1, got",
        ),
        (["--good=2.9.1", "--bad=2.9.1", "--releases="], "--good and --bad are both 2.9.1"),
        (["--good=2.9.1", "--bad=2.10.0", "--environment=x"], "--environment: expected RELEASE=PYTHON such as"),
        (["--good=2.9.1", "--bad=2.10.0", "--nightlies"], "--nightlies needs --index"),
        (
            ["--good=2.9.1", "--bad=2.10.0", "--no-install"],
            "--good=2.9.1: it has no --environment, and --no-inst",
        ),
        (["--git=HEAD~1..HEAD"], "is not in a checkout of a git repository"),
    ],
)
def test_mistakes_are_explained(arguments: list[str], said: str, project: Path, capsys):
    assert bisect(*arguments) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("commits", "said"),
    [
        ("main", "--git: expected GOOD..BAD such as v1.0..HEAD, got 'main'"),
        ("main...main", "--git: expected GOOD..BAD such as v1.0..HEAD, got 'main...main'"),
        ("none..main", "--git: expected a commit, a branch or a tag, got 'none': git knows none"),
        ("main..HEAD", "--git: main and HEAD are one commit"),
        ("main..main~1", "--git: main is not an ancestor of main~1: name an earlier good commit"),
    ],
)
def test_mistakes_in_commits_are_explained(commits: str, said: str, repository: Path, capsys):
    _commit(repository, "second")
    assert bisect(f"--git={commits}") == 2
    assert said in capsys.readouterr().err


def test_a_model_without_a_zoo_is_a_mistake(project: Path, capsys):
    assert main(["bisect", "net", "--good=2.9.1", "--bad=2.10.0", "--releases="]) == 2
    assert "expected a model such as torchvision:resnet18" in capsys.readouterr().err
