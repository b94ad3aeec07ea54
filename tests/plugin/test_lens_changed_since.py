"""`--lens-changed-since`: only models of which something changed are audited, and none too few."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from pytest_torchlens.baseline.snapshot_file import read
from pytest_torchlens.plugin import changed_models

BLOCK = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return torch.relu(self.linear(x))
"""
NET = """
from torch import nn
from parts.{part} import Block


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x):
        return self.block(x)
"""
MODELS = """
from parts import nets_a, nets_b
from parts.widths import WIDTH


def zoo():
    return {"a": nets_a.Net, "b": nets_b.Net}
"""
FILES = {
    "parts/__init__.py": "",
    "parts/widths.py": "WIDTH = 4\n",
    "parts/block_a.py": BLOCK,
    "parts/block_b.py": BLOCK,
    "parts/nets_a.py": NET.format(part="block_a"),
    "parts/nets_b.py": NET.format(part="block_b"),
    "zoo/models.py": MODELS,
    "zoo/net.yaml": 'provider: "python:models.py:zoo"\ndefaults:\n  input: {shape: [2, 4]}\n',
    "zoo/weights.bin": "1",
    "README.md": "Nets.\n",
    "pytest.ini": "[pytest]\npythonpath = .\n",
    ".gitignore": "__pycache__\n.lens\n",
}


def git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], check=True, capture_output=True)


def commit() -> None:
    git("add", ".")
    git("commit", "--quiet", "--allow-empty", "--message=x")


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    for name in ("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"):
        monkeypatch.setenv(name, "someone")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    for name, text in FILES.items():
        path = pytester.path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    git("init", "--quiet", "--initial-branch=main")
    validate(pytester, "--lens-update=new").assert_outcomes(passed=2)
    commit()
    return pytester


def validate(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess("zoo/net.yaml", "--lens-validate", "--lens-parts=replay", *arguments)


def audited(pytester: pytest.Pytester, since: str = "HEAD") -> tuple[set[str], str]:
    """Return the models that are audited, and all that the run said."""
    result = validate(pytester, f"--lens-changed-since={since}", "-v")
    passed = {line.split("::")[1].split()[0] for line in result.outlines if line.startswith("zoo/net.yaml::")}
    return passed, result.stdout.str()


def append(pytester: pytest.Pytester, name: str, text: str = "# a comment\n") -> None:
    path = pytester.path / name
    path.write_text((path.read_text() if path.exists() else "") + text, encoding="utf-8")


def test_a_baseline_names_the_files_of_the_models_code_and_the_packages_it_imports(project: pytest.Pytester):
    snapshot = read(project.path / "lens_baselines" / "net" / "a.json")
    assert snapshot.sources == ("parts/block_a.py", "parts/nets_a.py")


def test_where_nothing_changed_nothing_is_audited_and_the_run_passes(project: pytest.Pytester):
    result = validate(project, "--lens-changed-since=HEAD")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["--lens-changed-since=HEAD: 2 of 2 models left out: neither code, *"])


@pytest.mark.parametrize(
    ("name", "models"),
    [
        ("parts/block_a.py", {"a"}),
        ("parts/nets_b.py", {"b"}),
        ("parts/widths.py", {"a", "b"}),  # what all models may be built from
        ("parts/__init__.py", {"a", "b"}),
        ("zoo/models.py", {"a", "b"}),
        ("zoo/net.yaml", {"a", "b"}),
        ("zoo/weights.bin", {"a", "b"}),  # beside the code: a model may read it
        ("pytest.ini", {"a", "b"}),
        ("README.md", set()),
        ("zoo/other.yaml", set()),
        ("test_other.py", set()),
    ],
)
@pytest.mark.parametrize("is_committed", [False, True])
def test_a_changed_file_has_its_models_audited(
    name: str, models: set[str], is_committed: bool, project: pytest.Pytester
):
    append(project, name, "provider: torchvision\n" if name == "zoo/other.yaml" else "# a comment\n")
    if is_committed:
        commit()
    found, told = audited(project, "HEAD~1" if is_committed else "HEAD")
    assert found == models
    assert f"{2 - len(models)} of 2 models left out" in told
    assert not models or f"  {name} changed: {', '.join(sorted(models))}" in told


def test_a_file_that_the_code_newly_imports_counts_from_then_on(project: pytest.Pytester):
    (project.path / "parts" / "activation.py").write_text("import torch\n\n\ndef act(x):\n    return torch.relu(x)\n")
    nets = project.path / "parts" / "block_a.py"
    nets.write_text(BLOCK.replace("import torch\n", "import torch\nfrom parts.activation import act\n", 1))
    commit()
    append(project, "parts/activation.py")
    found, told = audited(project)
    assert found == {"a"}
    assert "  parts/activation.py changed: a" in told


def test_an_identical_model_that_moved_is_told_and_stored_with_its_new_files_when_asked(project: pytest.Pytester):
    models = project.path / "zoo" / "models.py"
    models.write_text(f'{NET.format(part="block_a")}\n\ndef zoo():\n    return {{"a": Net}}\n', encoding="utf-8")
    result = validate(project, "-v")
    result.stdout.fnmatch_lines(["code in other files than before: net:a; --lens-update=changed stores which"])
    validate(project, "--lens-update=changed").assert_outcomes(passed=1)
    path = project.path / "lens_baselines" / "net" / "a.json"
    assert read(path).sources == ("parts/block_a.py", "zoo/models.py")
    text = path.read_text()
    validate(project, "--lens-update=changed").assert_outcomes(passed=1)
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ('"torch": "', '"torch": "1', "torch 1"),
        ('"numpy": "', '"numpy": "1', "numpy 1"),
        ('"num_threads": ', '"num_threads": 1', "threads "),
        (
            '"sources": ["parts/block_a.py","parts/nets_a.py"],\n',
            "",
            "its baseline does not name the files of its code",
        ),
        ('"sources": ["parts', '"sources": ["?","parts', "some of its code is in no repository"),
        ('"format": ', '"form": ', "its baseline cannot be read"),
    ],
)
def test_another_environment_or_no_record_has_the_model_audited(
    was: str, now: str, said: str, project: pytest.Pytester
):
    path = project.path / "lens_baselines" / "net" / "a.json"
    text = path.read_text()
    assert was in text
    path.write_text(text.replace(was, now, 1))
    commit()
    found, told = audited(project)
    (line,) = [line for line in told.splitlines() if line.startswith(f"  {said}")]
    assert line.endswith(": a")
    assert found <= {"a"}


def test_a_model_whose_baseline_changed_or_is_missing_is_audited(project: pytest.Pytester):
    folder = project.path / "lens_baselines" / "net"
    (folder / "a.json").unlink()
    text = json.loads((folder / "b.json").read_text())
    (folder / "b.json").write_text(json.dumps(text))
    found, told = audited(project)
    assert found == {"a", "b"}
    assert "  it has no baseline: a" in told
    assert "  its baseline changed: b" in told


def test_code_that_git_ignores_has_its_model_audited(project: pytest.Pytester):
    append(project, ".gitignore", "parts/block_b.py\n")
    git("rm", "--cached", "--quiet", "parts/block_b.py")
    commit()
    found, told = audited(project)
    assert found == {"b"}
    assert "  git ignores parts/block_b.py: b" in told


def test_a_model_that_imports_what_cannot_be_parsed_is_valid_and_always_audited(project: pytest.Pytester):
    (project.path / "parts" / "generated.py").write_text(f"x = {'-' * 100_000}1\n", encoding="utf-8")
    text = BLOCK + "try:\n    import parts.generated\nexcept (MemoryError, RecursionError):\n    pass\n"
    (project.path / "parts" / "block_a.py").write_text(text, encoding="utf-8")
    validate(project, "--lens-update=all").assert_outcomes(passed=2)
    commit()
    found, told = audited(project)
    assert found == {"a"}
    assert "  parts/generated.py cannot be parsed, so that its imports are unknown: a" in told


@pytest.mark.parametrize("folder", ["zoo", "parts"])
def test_an_ignored_file_beside_the_code_has_its_models_audited(folder: str, project: pytest.Pytester):
    append(project, ".gitignore", "*.pt\n")
    append(project, f"{folder}/w.pt")
    commit()
    found, told = audited(project)
    assert found == {"a", "b"}
    assert f"  git ignores {folder}/w.pt: a, b" in told


def test_ignored_files_that_no_model_reads_are_no_reason(project: pytest.Pytester):
    names = ["zoo/.coverage", "zoo/run.log", "zoo/old.pyc", "zoo/notes.md", "zoo/.venv/x.pt", "zoo/tmp.py", "other.pt"]
    append(project, ".gitignore", "\n".join(name.removeprefix("zoo/") for name in names))
    for name in names:
        (project.path / name).parent.mkdir(exist_ok=True)
        append(project, name)
    commit()
    assert audited(project)[0] == set()


def test_a_submodule_is_as_other_code(project: pytest.Pytester):
    parts = project.path.parent / f"{project.path.name}-parts"
    shutil.move(project.path / "parts", parts)
    append(project, str(parts / ".gitignore"), "__pycache__\n*.pt\n")
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message=x"]):
        git("-C", str(parts), *command)
    git("rm", "-r", "--cached", "--quiet", "parts")
    git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(parts), "parts")
    commit()
    assert audited(project)[0] == set()
    append(project, "parts/w.pt")
    found, told = audited(project)
    assert found == {"a", "b"}
    assert "  git ignores parts/w.pt: a, b" in told


def test_a_shipped_zoo_in_a_virtual_environment_inside_the_repository_is_no_reason(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("torchvision")
    shipped = project.path / ".venv" / "lib" / "site-packages" / "zoo"
    shipped.mkdir(parents=True)
    (shipped / "tv.yaml").write_text("provider: torchvision\ndefaults:\n  input: {shape: [1, 3, 64, 64]}\n")
    (shipped / "table.csv").write_text("1\n")
    append(project, ".gitignore", ".venv\n")
    monkeypatch.setattr(changed_models, "shipped_folder", lambda: shipped)
    arguments = [f"{shipped}/tv.yaml::squeezenet1_1", "--lens-validate", "--lens-parts=replay"]
    project.runpytest_inprocess(*arguments, "--lens-update=new").assert_outcomes(passed=1)
    commit()
    result = project.runpytest_inprocess(*arguments, "--lens-changed-since=HEAD")
    result.stdout.fnmatch_lines(["--lens-changed-since=HEAD: 1 of 1 model left out*"])


@pytest.mark.parametrize("arguments", [["-k", "nothing"], ["-m", "nothing"], ["--lens-size=huge"]])
@pytest.mark.parametrize("workers", ["0", "1"])
def test_where_no_model_is_selected_the_run_does_not_pass(arguments: list[str], workers: str, project: pytest.Pytester):
    pytest.importorskip("xdist")
    result = validate(project, "--lens-changed-since=HEAD", f"-n{workers}", *arguments)
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.mark.parametrize("workers", ["0", "2"])
def test_where_all_selected_models_are_left_out_the_run_passes(workers: str, project: pytest.Pytester):
    pytest.importorskip("xdist")
    append(project, "parts/block_b.py")
    result = validate(project, "--lens-changed-since=HEAD", f"-n{workers}", "-k", "not b")
    assert result.ret == pytest.ExitCode.OK


def test_hooks_on_models_are_code_of_all(project: pytest.Pytester):
    project.makeconftest("def pytest_lens_configure_model(config, case, model):\n    return None\n")
    commit()
    append(project, "conftest.py")
    found, told = audited(project)
    assert found == {"a", "b"}
    assert "  conftest.py changed: a, b" in told


def test_hooks_that_import_what_cannot_be_parsed_have_all_audited(project: pytest.Pytester):
    (project.path / "generated.py").write_text("no Python\n", encoding="utf-8")
    hook = "def pytest_lens_configure_model(config, case, model):\n    return None\n"
    project.makeconftest(f"{hook}\n\ndef unused():\n    import generated\n")
    commit()
    found, told = audited(project)
    assert found == {"a", "b"}
    assert "  generated.py cannot be parsed, so that its imports are unknown: a, b" in told


def test_workers_of_xdist_leave_out_the_same(project: pytest.Pytester):
    pytest.importorskip("xdist")
    append(project, "parts/block_a.py")
    result = validate(project, "--lens-changed-since=HEAD", "-n2")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["--lens-changed-since=HEAD: 1 of 2 models left out*", "  parts/block_a.py changed: a"])


def test_models_left_out_are_no_reason_not_to_look_for_unused_baselines(project: pytest.Pytester):
    (project.path / "lens_baselines" / "net" / "gone.json").write_bytes(
        (project.path / "lens_baselines" / "net" / "a.json").read_bytes()
    )
    append(project, "parts/block_a.py")
    result = validate(project, "--lens-changed-since=HEAD")
    result.stdout.fnmatch_lines(["unused baselines, of models that are gone: net/gone;*"])


def test_a_shallow_clone_cannot_tell(project: pytest.Pytester):
    commit()
    git("clone", "--quiet", "--depth=1", f"file://{project.path}", "clone")
    os.chdir(project.path / "clone")
    result = validate(project, "--lens-changed-since=HEAD")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--lens-changed-since: this clone is shallow*git fetch --unshallow*"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["zoo/net.yaml", "--lens-validate"],
            "--lens-changed-since: expected a commit, *, got 'nowhere'*",
        ),
        (["zoo/net.yaml"], "--lens-changed-since needs --lens-validate, which compares models with baselines"),
        (["--lens-validate"], "--lens-changed-since needs models of a zoo: add --lens-zoo ZOO:NAME"),
        (
            ["zoo/net.yaml", "--lens-validate", f"--lens-against={sys.executable}"],
            "--lens-changed-since needs stored baselines, which --lens-against does not use: remove one",
        ),
    ],
)
def test_mistakes_are_usage_errors(arguments: list[str], said: str, project: pytest.Pytester):
    result = project.runpytest_inprocess(*arguments, "--lens-changed-since=nowhere")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{said}"])


def test_without_a_repository_it_is_a_usage_error(pytester: pytest.Pytester):
    folder = pytester.mkdir("zoo")
    (folder / "net.yaml").write_text(FILES["zoo/net.yaml"])
    (folder / "models.py").write_text("from torch import nn\n\n\ndef zoo():\n    return {'a': nn.ReLU}\n")
    result = validate(pytester, "--lens-changed-since=HEAD")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--lens-changed-since: * is not in a checkout of a git repository"])
