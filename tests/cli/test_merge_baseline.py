"""`pytest-lens merge-baseline`: what only one side changed is merged, and two passes are never mixed."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from dataclasses import replace
from itertools import product

import pytest

from pytest_torchlens.baseline import merge as merging
from pytest_torchlens.baseline.snapshot import EnvironmentNumbers
from pytest_torchlens.baseline.snapshot import Numbers
from pytest_torchlens.baseline.snapshot import OldNames
from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.baseline.snapshot import Step
from pytest_torchlens.baseline.snapshot_file import UnmergedError
from pytest_torchlens.baseline.snapshot_file import parse_snapshot
from pytest_torchlens.baseline.snapshot_file import read
from pytest_torchlens.baseline.snapshot_file import to_text
from pytest_torchlens.baseline.store import merge_snapshots
from pytest_torchlens.cli import main
from pytest_torchlens.records import Environment

STEPS = tuple(
    Step(id=f"/{name}", function=name, applied=name, dtype="float32", shape=(2,)) for name in ("input", "exp", "output")
)


def numbers(digit: str) -> EnvironmentNumbers:
    found = {step.id: Numbers(digest=digit * 16, rms=float(digit), sketch=(float(digit),) * 16) for step in STEPS}
    return EnvironmentNumbers(environment=Environment(torch=f"2.{digit}"), numbers=found)


BASE = Snapshot(
    model="Net", totals={"flops": 2, "operations": 1}, steps=STEPS, measured={"cpu": numbers("1"), "gpu": numbers("2")}
)
UPGRADED = replace(BASE, measured=BASE.measured | {"cpu": numbers("3")})
MORE = replace(BASE, measured=BASE.measured | {"mps": numbers("4")})
FEWER = replace(BASE, measured={"cpu": numbers("1")})
SOURCED = replace(BASE, sources=("net.py",))
MORE_SOURCES = replace(UPGRADED, sources=("net.py", "block.py"))
OTHER_SOURCES = replace(BASE, sources=("net.py", "head.py"))
WAITING = replace(BASE, code={"net.py": "1" * 16})
OTHER_STEPS = replace(BASE, steps=(STEPS[0], replace(STEPS[1], arguments=("alpha=2",)), STEPS[2]))
COSTLIER = replace(BASE, totals=BASE.totals | {"flops": 3})


@pytest.fixture
def merge(tmp_path, capsys):
    """Return a function that merges snapshots, or texts, and returns exit status, result and what was printed."""

    def merge(*versions: Snapshot | str) -> tuple[int, str, str]:
        files = [tmp_path / name for name in ("base", "ours", "theirs")]
        for file, version in zip(files, versions, strict=True):
            file.write_text(version if isinstance(version, str) else to_text(version), encoding="utf-8")
        status = main(["merge-baseline", *map(str, files)])
        return status, files[1].read_text(encoding="utf-8"), capsys.readouterr().err

    return merge


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (BASE, UPGRADED, UPGRADED),
        (OTHER_STEPS, BASE, OTHER_STEPS),
        (UPGRADED, UPGRADED, UPGRADED),
        (UPGRADED, MORE, replace(BASE, measured=UPGRADED.measured | {"mps": numbers("4")})),
        (MORE, FEWER, replace(BASE, measured={"cpu": numbers("1"), "mps": numbers("4")})),
        (COSTLIER, MORE, replace(MORE, totals=COSTLIER.totals)),
        (MORE_SOURCES, MORE, replace(MORE, measured=MORE.measured | UPGRADED.measured, sources=MORE_SOURCES.sources)),
    ],
    ids=["theirs", "ours", "the-same", "two-environments", "one-deleted", "a-total", "sources"],
)
def test_what_one_side_changed_is_merged_from_either_side(ours, theirs, expected, merge):
    for sides in ((ours, theirs), (theirs, ours)):
        status, text, told = merge(BASE, *sides)
        assert (status, told) == (0, "")
        assert parse_snapshot(text) == expected


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        (UPGRADED, replace(BASE, measured=BASE.measured | {"cpu": numbers("5")}), "the numbers of 'cpu': both sides"),
        (UPGRADED, replace(BASE, measured={"gpu": numbers("2")}), "the numbers of 'cpu': both sides changed it"),
        (COSTLIER, replace(BASE, totals={"flops": 4, "operations": 1}), "the total 'flops': both sides changed it"),
        (SOURCED, OTHER_SOURCES, "the files of its code: both sides changed them"),
        (WAITING, replace(WAITING, code={"net.py": "2" * 16}), "the pass (code): both sides changed it"),
        (OTHER_STEPS, replace(BASE, model="Other"), "the pass (model, steps): both sides changed it"),
        (OTHER_STEPS, MORE, "the pass (steps): one side changed it, the other the numbers of the old one"),
    ],
)
def test_what_both_sides_changed_conflicts_and_nothing_is_lost(ours, theirs, said, merge, tmp_path):
    for sides in ((ours, theirs), (theirs, ours)):
        status, text, told = merge(BASE, *sides)
        assert status == 1
        assert said in told
        with pytest.raises(UnmergedError, match="conflict markers"):
            read(tmp_path / "ours")
        for kept, (begin, end) in zip(sides, (("=======", ">>>>>>> theirs"), ("<<<<<<< ours", "=======")), strict=True):
            assert parse_snapshot(_without(text, begin, end)) == kept


@pytest.mark.parametrize("name", [field.name for field in fields(Snapshot)])
def test_no_field_of_a_baseline_is_dropped_silently(name):
    """A field that a later release adds is merged, or part of the pass."""
    ours, theirs = (replace(BASE, **{name: value}) for value in ({"cpu": 1}, {"cpu": 2}))
    merged = merging.merge(BASE, ours, theirs)
    assert merged.conflicts
    assert (getattr(merged.ours, name), getattr(merged.theirs, name)) == ({"cpu": 1}, {"cpu": 2})


def test_a_result_without_conflicts_has_no_markers():
    variants = (BASE, SOURCED, UPGRADED, MORE, FEWER, COSTLIER, MORE_SOURCES, OTHER_SOURCES, OTHER_STEPS)
    for base, ours, theirs in product((None, *variants), variants, variants):
        merged = merging.merge(base, ours, theirs)
        assert ("<<<<<<<" in merged.text) == bool(merged.conflicts)
    with pytest.raises(ValueError, match="two sides that differ"):
        merging.Merged(BASE, MORE)


def test_sides_that_differ_in_the_order_of_entries_alone_are_merged_without_markers(merge):
    first, second = {"": "tuple of 2", "0": "Tensor"}, {"0": "Tensor", "": "tuple of 2"}
    status, text, _ = merge("", replace(UPGRADED, output=first), replace(UPGRADED, output=second))
    assert (status, "<<<<<<<" in text) == (0, False)
    base = replace(BASE, output=first)
    status, text, _ = merge(base, replace(UPGRADED, output=first), replace(MORE, output=second))
    assert status == 0
    assert parse_snapshot(text).measured == UPGRADED.measured | {"mps": numbers("4")}


def _without(text: str, begin: str, end: str) -> str:
    """Return the text without the lines from each `begin` to `end`, and without any markers."""
    lines, skips = [], False
    for line in text.splitlines():
        skips = (skips and line != end) or line == begin
        if not skips and not line.startswith(("<<<<<<<", "=======", ">>>>>>>")):
            lines.append(line)
    return "\n".join(lines)


def test_only_lines_that_conflict_stand_between_markers_and_the_rest_is_merged(merge):
    ours = replace(UPGRADED, totals=COSTLIER.totals)
    theirs = replace(MORE, totals={"flops": 4, "operations": 1})
    _, text, _ = merge(BASE, ours, theirs)
    assert text.count("<<<<<<< ours") == text.count(">>>>>>> theirs") == 1
    assert '<<<<<<< ours\n"totals": {"flops":3,"operations":1},\n=======\n"totals": {"flops":4,' in text
    assert '"mps":{' in text
    assert '"torch": "2.3"' in text


def test_a_file_that_both_sides_added_is_merged_by_environment(merge):
    first, second = (replace(BASE, measured={name: numbers("1")}) for name in ("cpu", "gpu"))
    status, text, _ = merge("", first, second)
    assert status == 0
    assert parse_snapshot(text) == replace(BASE, measured={"cpu": numbers("1"), "gpu": numbers("1")})
    assert merge("", first, replace(first, measured={"cpu": numbers("2")}))[0] == 1


def test_a_damaged_side_is_a_conflict_that_keeps_both(merge):
    status, text, told = merge(BASE, to_text(BASE), '{"format": "other"}\n')
    assert status == 1
    assert "theirs is not a usable baseline" in told
    assert '{"format": "other"}' in text
    assert to_text(BASE).splitlines()[3] in text


def test_a_file_that_is_not_there_is_named(tmp_path, capsys):
    assert main(["merge-baseline", *[str(tmp_path / "none")] * 3]) == 2
    assert "none cannot be read" in capsys.readouterr().err


NOTED = replace(BASE, old_names=OldNames(baseline="1" * 16, names={}, classes=("cpu",), measured={"cpu": numbers("5")}))
CLEAN = replace(BASE, old_names=OldNames(baseline="1" * 16, names={}, classes=("gpu",)))


def test_a_rename_accepted_in_two_environments_is_merged_by_environment(merge):
    both = OldNames(baseline="1" * 16, names={}, classes=("cpu", "gpu"), measured={"cpu": numbers("5")})
    ours = replace(NOTED, measured={"cpu": numbers("1")})
    theirs = replace(CLEAN, measured={"gpu": numbers("2")})
    for base, sides in product((OTHER_STEPS, ""), ((ours, theirs), (theirs, ours))):
        status, text, told = merge(base, *sides)
        assert (status, told) == (0, "")
        assert parse_snapshot(text) == replace(BASE, old_names=both)
        assert merge_snapshots(*sides) == replace(BASE, old_names=both)


def test_one_environment_noted_in_two_ways_is_a_conflict(merge):
    status, text, told = merge("", NOTED, replace(CLEAN, old_names=replace(CLEAN.old_names, classes=("cpu",))))
    assert (status, "what it computes under old names: both sides changed it" in told) == (1, True)
    assert "<<<<<<<" in text


def test_the_note_of_an_environment_goes_with_its_numbers():
    """A later pass whose numbers are others was not compared under the old names."""
    later = replace(UPGRADED, measured={"cpu": numbers("3")})
    assert merge_snapshots(NOTED, later).old_names == replace(NOTED.old_names, classes=(), measured={})
    assert merge_snapshots(NOTED, replace(BASE, sources=("net.py",))).old_names == NOTED.old_names


def test_git_merges_with_it_as_the_documentation_says(tmp_path):
    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)

    def commit(snapshot: Snapshot) -> None:
        (tmp_path / "lens_baselines" / "zoo").mkdir(parents=True, exist_ok=True)
        (tmp_path / "lens_baselines" / "zoo" / "net.json").write_text(to_text(snapshot), encoding="utf-8")
        git("add", "-A")
        assert git("-c", "user.name=x", "-c", "user.email=x", "commit", "-qm", "x").returncode == 0

    git("init", "-q", "-b", "main")
    git("config", "merge.lens.driver", f"{sys.executable} -m pytest_torchlens.cli merge-baseline %O %A %B")
    (tmp_path / ".gitattributes").write_text("lens_baselines/**/*.json merge=lens\n")
    commit(BASE)
    git("checkout", "-qb", "other")
    commit(MORE)
    git("checkout", "-q", "main")
    commit(UPGRADED)
    ran = git("-c", "user.name=x", "-c", "user.email=x", "merge", "-q", "--no-edit", "other")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    merged = read(tmp_path / "lens_baselines" / "zoo" / "net.json")
    assert merged == replace(BASE, measured=UPGRADED.measured | {"mps": numbers("4")})
