"""A disk that is full or read-only: a usage error before models run; later, no verdict is lost and the run fails."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.usefixtures("tiny_zoo")

FULL = """
import errno, os
from pathlib import Path

write_bytes = Path.write_bytes

def full(path, data):
    if path.suffix == ".part" and {name!r} in str(path):
        write_bytes(path, data[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    return write_bytes(path, data)

Path.write_bytes = full

def pytest_unconfigure():
    Path.write_bytes = write_bytes
"""
FREE = "No space left on device; free space on its disk, or name another path"


def parts(pytester: pytest.Pytester) -> list[str]:
    return [path.name for path in pytester.path.rglob("*.part")]


@pytest.mark.parametrize("option", ["--lens-report", "--lens-graph", "--lens-table", "--lens-json", "--lens-report-md"])
@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/proc/none/x", "Permission denied; allow writing to its folder, or name another path"),
        ("file/x", "Not a directory; a file stands where a folder is needed: name another path"),
        ("x" * 300, "File name too long; name a shorter path"),
    ],
)
def test_an_output_that_cannot_be_written_is_a_usage_error(
    pytester: pytest.Pytester, option: str, path: str, reason: str
):
    (pytester.path / "file").touch()
    before = sorted(pytester.path.rglob("*"))
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", f"{option}={path}", "-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert [line for line in result.errlines if line] == [
        f"ERROR: {option}: {pytester.path / path} cannot be written: {reason}"
    ]
    assert [path for path in sorted(pytester.path.rglob("*")) if "__pycache__" not in str(path)] == before


@pytest.mark.parametrize(
    "options",
    [
        *(("-o", f"{key}=a\0b") for key in ("lens_report", "lens_graph", "lens_json", "lens_report_md")),
        *((f"--lens-{name}=a\0b",) for name in ("report", "graph", "json", "report-md", "table")),
        ("-o", "lens_baseline_dir=a\0b", "--lens-update=all"),
        ("--lens-table=a\0b", "--collect-only"),
    ],
    ids="".join,
)
def test_a_null_character_in_a_path_is_a_usage_error(pytester: pytest.Pytester, options: tuple[str, ...]):
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", "--lens-validate", *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = filter(None, result.errlines)
    assert line.startswith("ERROR: --lens-")
    assert repr(str(pytester.path / "a\0b")) in line
    assert "it has a null character; name another " in line


@pytest.mark.parametrize("option", ["--lens-update=all", "--lens-keep=activations"])
def test_baselines_that_cannot_be_stored_are_a_usage_error(pytester: pytest.Pytester, option: str):
    (pytester.path / ".lens").touch()
    (pytester.path / "lens_baselines").touch()
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", "--lens-validate", option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {option.partition('=')[0]}: * cannot be written: Not a directory; *"])


@pytest.mark.parametrize(
    ("name", "options", "line"),
    [
        ("lens-runs", (), "ERROR: *.json.gz cannot be written: "),
        ("lens-runs", ("-n1",), "ERROR: *.json.gz cannot be written: "),
        ("out/models", ("--lens-report=out",), "ERROR: *mlp.svg cannot be written: "),
        ("out", ("--lens-report=out",), "ERROR: --lens-report: *index.html cannot be written: "),
        ("graphs", ("--lens-graph=graphs",), "ERROR: *mlp.svg cannot be written: "),
        ("jsons", ("--lens-json=jsons/run.json",), "ERROR: --lens-json: *run.json cannot be written: "),
        ("mds", ("--lens-report-md=mds/run.md",), "ERROR: --lens-report-md: *run.md cannot be written: "),
        ("tables", ("--lens-table=tables/t.csv",), "ERROR: --lens-table: *t.csv cannot be written: "),
    ],
)
def test_a_disk_that_fills_up_costs_no_verdict_and_fails_the_run(
    pytester: pytest.Pytester, name: str, options: tuple[str, ...], line: str
):
    pytester.makeconftest(FULL.format(name=name))
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", "--lens-validate", "--lens-parts=replay", *options)
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["tiny:mlp * passed *", line + FREE])
    assert parts(pytester) == []


def test_a_baseline_that_cannot_be_stored_fails_the_model_without_a_traceback(pytester: pytest.Pytester):
    pytester.makeconftest(FULL.format(name="lens_baselines"))
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", "--lens-validate", "--lens-update=all")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"*lens_baselines/tiny/mlp.json cannot be written: {FREE}"])
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*records/files.py*")
    assert parts(pytester) == []


def test_a_result_that_cannot_wait_is_not_counted_as_waiting(pytester: pytest.Pytester):
    (pytester.path / ".lens").touch()
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", "--lens-validate")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["1 cannot wait to be accepted: *.lens* cannot be written: *"])
    result.stdout.no_fnmatch_line("*pytest-lens accept*")


def test_without_a_cache_the_results_are_in_the_temporary_folder(pytester: pytest.Pytester):
    (pytester.path / ".pytest_cache").touch()
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", "-o", "cache_dir=.pytest_cache")
    result.assert_outcomes(passed=1)
    assert "lens/costs" not in result.stdout.str()


def test_a_page_of_recordings_that_cannot_be_written_fails_the_run(pytester: pytest.Pytester):
    pytester.makepyfile(
        "import os\ndef test():\n"
        "    os.makedirs('out/training/one/'); os.mkdir('out/training/index.html')\n"
        "    open('out/training/one/recording-0.json', 'w').write('[]')"
    )
    result = pytester.runpytest_inprocess("--lens-report=out")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["ERROR: --lens-report: *index.html cannot be written: *"])
