"""`pytest-lens log`: a model's history, from git alone."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.baseline.store import Store
from pytest_torchlens.cli import main
from tests.baseline.samples import Small
from tests.baseline.samples import an_input
from tests.baseline.samples import filled
from tests.baseline.samples import snapshot_of
from tests.baseline.samples import tampered_snapshot


@pytest.fixture(scope="module")
def snapshots() -> tuple[Snapshot, Snapshot]:
    model, x = filled(Small()), an_input(2, 3, 8, 8)
    return snapshot_of(model, x), tampered_snapshot(model, x, "act/gelu", lambda f, a, k: f(*a, **k) * 1.01)


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


def commit(subject: str) -> None:
    git("add", ".")
    git("commit", "--quiet", f"--message={subject}")


@pytest.fixture
def store(snapshots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A model whose numbers changed, which grew, was renamed, broken, repaired, and lost."""
    monkeypatch.chdir(tmp_path)
    for name in ("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"):
        monkeypatch.setenv(name, "someone")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    git("init", "--quiet", "--initial-branch=main")
    store = Store.of(tmp_path)
    first, wrong = snapshots
    store.accept("zoo/small", first)
    commit("first")
    store.accept("zoo/small", wrong)
    commit("a wrong kernel, with a subject that is much too long for any table")
    store.accept("zoo/small", replace(wrong, totals={**wrong.totals, "flops": wrong.totals["flops"] + 1000}))
    commit("larger")
    return store


def rows(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """Return the cells of the Markdown table."""
    lines = capsys.readouterr().out.splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")][2:]


def test_each_commit_says_what_changed_where_by_how_much_and_what_it_costs(store: Store, capsys):
    assert main(["log", "zoo/small", "--md"]) == 0
    larger, wrong, first = rows(capsys)
    assert [row[0] for row in (larger, wrong, first)] == git("log", "--format=%h").split()
    assert larger[2:6] == ["larger", "", "", "identical"]
    assert larger[8] == "72,808 (+1,000)"
    assert wrong[2:5] == ["regression", "act/gelu", "0.0099"]
    assert float(wrong[5]) == pytest.approx(0.01, rel=0.5)
    assert wrong[8] == "71,808"
    assert wrong[-1] == "a wrong kernel, with a subject that is …"
    assert first[2:6] == ["new", "", "", ""]
    assert first[-2].startswith("torch ")


def test_a_renamed_broken_and_deleted_file_is_followed(store: Store, snapshots, capsys):
    path = store.path("zoo/other")
    git("mv", "lens_baselines/zoo/small.json", "lens_baselines/zoo/other.json")
    commit("renamed")
    text = path.read_text()
    path.write_text(f"<<<<<<< ours\n{text}")
    commit("broken")
    path.write_text(text)
    commit("repaired")
    path.unlink()
    commit("deleted")
    assert main(["log", "zoo:other", "--md"]) == 0
    changes = [(row[-1], row[2]) for row in rows(capsys)]
    assert changes[:4] == [
        ("deleted", "deleted"),
        ("repaired", "readable again"),
        ("broken", "cannot be read"),
        ("renamed", "identical"),
    ]
    assert len(changes) == 7


def test_a_branch_is_compared_with_what_it_left_and_a_merge_with_what_it_joined(store: Store, snapshots, capsys):
    git("checkout", "--quiet", "-b", "side", "HEAD~2")
    (Path("lens_baselines") / "notes.txt").write_text("x")
    store.accept("zoo/small", replace(snapshots[0], totals={**snapshots[0].totals, "operations": 99}))
    commit("on the side")
    git("checkout", "--quiet", "main")
    subprocess.run(["git", "merge", "--quiet", "side"], capture_output=True, check=False)  # a conflict
    git("checkout", "--ours", "lens_baselines/zoo/small.json")
    store.accept("zoo/small", replace(snapshots[0], totals={**snapshots[0].totals, "operations": 100}))
    commit("merged")
    assert main(["log", "zoo/small", "--md"]) == 0
    found = {row[-1]: row for row in rows(capsys)}
    assert found["on the side"][6].startswith("99 (+")
    assert found["merged"][2] == "regression"


def test_what_is_not_committed_comes_first(store: Store, snapshots, capsys):
    store.accept("zoo/small", snapshots[0])
    assert main(["log", "zoo/small", "--md", "--limit=1"]) == 0
    first, second = rows(capsys)
    assert (first[0], first[2], first[-1]) == ("", "regression", "not committed")
    assert second[-1] == "larger"


def test_it_works_without_torch(store: Store):
    program = "import sys; sys.modules['torch'] = None; from pytest_torchlens.cli import main; sys.exit(main())"
    ran = subprocess.run(
        [sys.executable, "-c", program, "log", "zoo/small"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "regression" in ran.stdout


def test_a_shallow_clone_says_that_there_is_more(store: Store, tmp_path: Path, capsys):
    git("clone", "--quiet", "--depth=1", f"file://{tmp_path}", "clone")
    assert main(["log", "zoo/small", "--root=clone"]) == 0
    assert "this clone is shallow: earlier commits are missing" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["zoo/smal"], "no commit has a baseline 'zoo/smal' in lens_baselines/zoo: did you mean 'zoo/small'?"),
        (["zoo/small", "--limit=0"], "--limit: expected a positive number of commits, got 0"),
        (["zoo/small", "--root=/"], "/ is not in a checkout of a git repository"),
    ],
)
def test_mistakes_are_explained(arguments: list[str], said: str, store: Store, capsys):
    assert main(["log", *arguments]) == 2
    assert said in capsys.readouterr().err
