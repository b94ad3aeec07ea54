"""The runner, on a project of one module: it must see each kind of end, and must not take a survivor for killed."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from tests.mutants import campaign
from tests.mutants import reach
from tests.mutants.campaign import Outcome
from tests.mutants.campaign import Result
from tests.mutants.campaign import confirmed
from tests.mutants.campaign import report
from tests.mutants.campaign import run_all
from tests.mutants.lines import lines_of
from tests.mutants.mutant import Mutant
from tests.mutants.reach import Reach
from tests.mutants.reach import nearest_first

CALC = """
LIMIT = 3
_HALF = LIMIT / 2


def is_large(x, least=LIMIT):
    if x > least:
        return True
    return False


def half():
    return _HALF


def loop():
    while False:
        pass


def unused():
    return 0
"""
TESTS = """
import pytest

from pytest_torchlens.calc.core import half
from pytest_torchlens.calc.core import is_large
from pytest_torchlens.calc.core import loop


@pytest.mark.parametrize("x", [4, 100])
def test_large(x):
    assert is_large(x)


def test_half():
    assert half() == 1.5


def test_loop():
    loop()
"""
FILE = "calc/core.py"
AT_LEAST = Mutant(FILE, "x > least", "x >= least")
NEVER = Mutant(FILE, "return True", "return False")
LARGER = Mutant(FILE, "LIMIT = 3", "LIMIT = 5")
ENDLESS = Mutant(FILE, "while False", "while True")
BROKEN = Mutant(FILE, "LIMIT = 3", "LIMIT = nothing")
UNUSED = Mutant(FILE, "return 0", "return 1")
CASES = "tests/calc/test_core.py"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project of a module and its tests; plugins that are installed would import the real package."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p xdist.plugin")
    root = tmp_path / "project"
    files = {
        "pytest_torchlens/__init__.py": "",
        "pytest_torchlens/calc/__init__.py": "",
        f"pytest_torchlens/{FILE}": CALC,
        CASES: TESTS,
        "pyproject.toml": '[tool.pytest.ini_options]\naddopts = ["-ra", "--import-mode=importlib"]\n',
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    own = root / "tests" / "mutants"
    own.mkdir()
    for name in ("contexts.py", "coverage.ini"):
        shutil.copy(Path(__file__).with_name(name), own)
    return root


def _outcomes(results: list[Result]) -> dict[Mutant, Outcome]:
    return {result.mutant: result.outcome for result in results}


def _soon() -> float:
    return time.monotonic() + 100


def test_each_end_is_told_from_the_others(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(campaign, "LIMIT", 6.0)
    monkeypatch.setattr(campaign.run_tests, "__kwdefaults__", {"limit": 6.0})
    mutants = {one: [CASES] for one in (AT_LEAST, NEVER, LARGER, ENDLESS, BROKEN)} | {UNUSED: []}
    results = list(run_all(mutants, project, tmp_path, until=_soon()))
    assert _outcomes(results) == {
        AT_LEAST: Outcome.SURVIVED,
        NEVER: Outcome.KILLED,
        LARGER: Outcome.KILLED,
        ENDLESS: Outcome.TIMED_OUT,
        BROKEN: Outcome.UNUSABLE,
        UNUSED: Outcome.UNREACHED,
    }
    assert {result.by for result in results if result.outcome is Outcome.KILLED} == {f"{CASES}::test_large[4]"}
    assert (project / "pytest_torchlens" / FILE).read_text(encoding="utf-8") == CALC


def test_a_crash_of_the_tests_kills(project: Path, tmp_path: Path):
    crash = Mutant(FILE, "return True", "import os; os.abort()")
    results = list(run_all({crash: [CASES]}, project, tmp_path, until=_soon()))
    assert [(one.outcome, one.by) for one in results] == [(Outcome.KILLED, "a crash of the tests, by signal 6")]
    assert confirmed(results, tmp_path) == results


def test_when_the_time_is_up_no_mutant_begins(project: Path, tmp_path: Path):
    (result,) = run_all({NEVER: [CASES]}, project, tmp_path, until=time.monotonic() - 1)
    assert result.outcome is Outcome.NOT_RUN


def test_a_test_that_fails_without_the_change_kills_nothing(project: Path, tmp_path: Path):
    (project / CASES).write_text("def test_wrong():\n    assert False\n", encoding="utf-8")
    results = list(run_all({AT_LEAST: [CASES]}, project, tmp_path, until=_soon()))
    assert [result.outcome for result in results] == [Outcome.KILLED]
    assert [result.outcome for result in confirmed(results, tmp_path)] == [Outcome.DOUBTFUL]


def test_a_run_under_coverage_finds_the_tests_that_reach_a_line(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reach, "SUITES", ["calc"])
    found = Reach(tmp_path)
    found.measure(project, jobs=1)
    large = [f"{CASES}::test_large[4]", f"{CASES}::test_large[100]"]
    tests = {one: sorted(each) for one, each in found.tests([AT_LEAST, LARGER, ENDLESS, UNUSED]).items()}
    assert tests == {
        AT_LEAST: sorted(large),
        LARGER: sorted([*large, f"{CASES}::test_half"]),
        ENDLESS: [f"{CASES}::test_loop"],
        UNUSED: [],
    }
    (project / "pytest_torchlens" / FILE).write_text(CALC + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match="the package has changed"):
        found.measure(project, [CASES], jobs=1)


def test_a_constant_is_reached_where_its_name_is_used(project: Path):
    lines = CALC.splitlines()
    reached = {lines[number - 1].strip() for number in lines_of(LARGER, project)[FILE]}
    assert {"if x > least:", "return _HALF"} <= reached
    assert "return 0" not in reached


def test_near_tests_come_first_and_one_case_of_each_before_a_second_one():
    seconds = {
        "tests/b/t.py::quick": 0.1,
        "tests/a/t.py::slow": 3.0,
        "tests/a/t.py::f[1]": 1.0,
        "tests/a/t.py::f[2]": 2,
    }
    order = ["tests/a/t.py::f[1]", "tests/a/t.py::slow", "tests/a/t.py::f[2]", "tests/b/t.py::quick"]
    assert nearest_first(seconds, seconds, "tests/a/") == order
    assert nearest_first(seconds, seconds, "tests/a/", most_seconds=4.0) == order[:2]
    assert nearest_first(seconds, seconds, "tests/a/", most_seconds=0.5) == order[:1]


EXCUSED = Mutant(FILE, "x > least", "x >= least ", equivalent="a reason that a reader can check")


@pytest.mark.parametrize(
    ("ends", "good"),
    [
        ([(NEVER, Outcome.KILLED)], True),
        ([(NEVER, Outcome.SURVIVED)], False),
        ([(NEVER, Outcome.KILLED)] * 19 + [(EXCUSED, Outcome.SURVIVED)], True),
        ([(NEVER, Outcome.KILLED)] * 18 + [(EXCUSED, Outcome.SURVIVED)], False),
        ([(NEVER, Outcome.KILLED)] * 99 + [(NEVER, Outcome.SURVIVED)], False),
        ([(NEVER, Outcome.KILLED)] * 99 + [(NEVER, Outcome.TIMED_OUT)], False),
        ([(NEVER, Outcome.KILLED)] * 99 + [(EXCUSED, Outcome.KILLED)], False),
        ([], False),
    ],
)
def test_it_is_good_where_95_percent_are_killed_and_each_survivor_has_a_reason(
    ends: list[tuple[Mutant, Outcome]], good: bool
):
    assert report([Result(mutant, outcome) for mutant, outcome in ends], 60.0)[1] is good


def test_survivors_are_printed_with_their_reasons():
    text, _ = report([Result(NEVER, Outcome.KILLED), Result(EXCUSED, Outcome.SURVIVED)], 90.0)
    assert text.splitlines() == [
        "survived: calc/core.py: x > least => x >= least",
        "    equivalent: a reason that a reader can check",
        "2 mutants in 1.5 minutes: 1 killed, 1 survived; 50.0% killed",
    ]
