from __future__ import annotations

import csv
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.usefixtures("tiny_zoo")


def rows(pytester: pytest.Pytester) -> dict[str, dict[str, str]]:
    with (pytester.path / "results" / "tiny.csv").open(newline="", encoding="utf-8-sig") as file:
        return {row["model"]: row for row in csv.DictReader(file)}


def test_a_row_a_model(pytester: pytest.Pytester):
    pytester.runpytest_inprocess(
        "--lens-zoo=tiny:mlp,raises,drifts", "--lens-validate", "--lens-table=results/tiny.csv"
    )
    found = rows(pytester)
    assert list(found) == ["drifts", "mlp", "raises"]
    mlp = found["mlp"]
    assert (mlp["zoo"], mlp["params"], mlp["operations"], mlp["verdict"]) == ("tiny", "23", "3", "passed")
    assert mlp["flops"] == str(2 * 2 * 4 * 3 + 2 * 2 * 3 * 2)
    assert mlp["inputs"] == "input: float32[2, 4]"
    assert float(mlp["forward_ms"]) > 0
    assert float(mlp["validate_ratio"]) > 1
    assert mlp["torch"]
    assert (found["raises"]["verdict"], found["raises"]["reason"]) == (
        "failed in forward",
        "RuntimeError: boom in forward",
    )
    assert found["drifts"]["verdict"] == "failed"
    assert found["drifts"]["reason"].startswith("failed (")


def test_rows_of_earlier_runs_stay_until_replaced(pytester: pytest.Pytester):
    pytester.runpytest_inprocess("--lens-zoo=tiny:mlp,linear", "--lens-table=results/tiny.csv")
    assert rows(pytester)["mlp"]["verdict"] == "passed"
    assert (rows(pytester)["mlp"]["edges"], rows(pytester)["mlp"]["flops"]) == ("", "")
    pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", "--lens-validate", "--lens-table=results/tiny.csv")
    assert list(rows(pytester)) == ["linear", "mlp"]
    assert rows(pytester)["mlp"]["edges"]


def test_workers_share_one_table(pytester: pytest.Pytester):
    pytest.importorskip("xdist")
    pytester.runpytest_subprocess("--lens-zoo=tiny:mlp,linear,dies", "--lens-table=results/tiny.csv", "-n1")
    assert {name: row["verdict"] for name, row in rows(pytester).items()}["mlp"] == "passed"
    assert len(rows(pytester)) == 3


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a,b\n1,2\n", "has no column 'zoo' and no column 'model', but a, b"),
        (b"zoo;model\ntiny;mlp\n", "has no column 'zoo' and no column 'model', but zoo;model"),
        (b"zoo,model,remark,remark\n", "has the column 'remark' twice"),
        (b"\x89PNG\r\n\x1a\n\x00\xff", "is not UTF-8 text"),
        (b'zoo,model\n"tiny,mlp\n', "is not a CSV file (unexpected end of data)"),
    ],
)
def test_a_file_of_something_else_is_refused_before_any_model(pytester: pytest.Pytester, content: bytes, reason: str):
    table = pytester.path / "other.csv"
    table.write_bytes(content)
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", "--lens-table=other.csv")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    refusal = f"expected a table of results, got {table}, which {reason} and stays as it is: name another file"
    assert f"ERROR: --lens-table: {refusal}" in result.errlines
    assert table.read_bytes() == content


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("tiny,mlp,a,b", "expected at most 3 cells, got 4"),
        ("x,y,", "expected one row for each model, got x:y again"),
    ],
)
def test_a_row_that_would_be_lost_is_told_with_its_line(pytester: pytest.Pytester, row: str, why: str):
    table = pytester.path / "results.csv"
    table.write_text(f"zoo,model,remark\nx,y,mine\n{row}\n")
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", "--lens-table=results.csv")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"ERROR: --lens-table: {table}:3: {why}: correct the row, or name another file" in result.errlines


def test_what_is_no_file_is_refused(pytester: pytest.Pytester):
    pytester.mkdir("folder")
    (pytester.path / "file").touch()
    (pytester.path / "loop").symlink_to("loop")
    os.mkfifo(pytester.path / "pipe")
    for name, ending in [
        ("folder", "folder cannot be written: Is a directory; name a file, not a folder"),
        ("file/x.csv", "Not a directory; a file stands where a folder is needed: name another path"),
        ("loop", "loop cannot be read (Too many levels of symbolic links): name another file"),
        ("pipe", "pipe, which is not a plain file"),
    ]:
        result = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", f"--lens-table={name}")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert [line for line in result.errlines if line.startswith("ERROR: --lens-table: ") and line.endswith(ending)]


def test_an_empty_file_becomes_a_table(pytester: pytest.Pytester):
    pytester.mkdir("results").joinpath("tiny.csv").touch()
    pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", "--lens-table=results/tiny.csv").assert_outcomes(passed=1)
    assert list(rows(pytester)) == ["mlp"]


def test_columns_and_order_of_the_user_stay(pytester: pytest.Pytester):
    table = pytester.mkdir("results") / "tiny.csv"
    table.write_text(
        "\ufeffmodel,remark,zoo,edges,owner\n"  # as Excel marks UTF-8
        'mlp,"watch, this",tiny,17,me\n'
        "gone,kept,other,1\n",
        encoding="utf-8",
    )
    pytester.runpytest_inprocess("--lens-zoo=tiny:mlp,linear", "--lens-table=results/tiny.csv")
    assert table.read_text(encoding="utf-8").startswith("\ufeffmodel,remark,zoo,edges,owner,inputs,weights,")
    found = rows(pytester)
    assert list(found) == ["gone", "linear", "mlp"]
    assert (found["mlp"]["remark"], found["mlp"]["owner"], found["linear"]["remark"]) == ("watch, this", "me", "")
    assert (found["mlp"]["edges"], found["mlp"]["verdict"]) == ("", "passed")  # nothing was validated this time
    assert (found["gone"]["remark"], found["gone"]["edges"]) == ("kept", "1")


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_one_and_its_file_is_written(pytester: pytest.Pytester, exists: bool):
    folder, target = pytester.mkdir("results"), pytester.path / "elsewhere" / "table.csv"
    if exists:
        target.parent.mkdir()
        target.write_text("zoo,model,remark\ntiny,mlp,mine\n")
    (folder / "tiny.csv").symlink_to(target)
    pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", "--lens-table=results/tiny.csv").assert_outcomes(passed=1)
    assert (folder / "tiny.csv").is_symlink()
    assert "passed" in target.read_text()
    assert rows(pytester)["mlp"].get("remark", "mine") == "mine"
    assert [path.name for path in target.parent.iterdir()] == ["table.csv"]


def test_what_a_shell_sends_into_a_file_stays_whole(pytester: pytest.Pytester):
    output = pytester.path / "out.txt"
    with output.open("w") as file:
        command = [sys.executable, "-m", "pytest", "--lens-zoo=tiny:mlp", "--lens-json=/dev/stdout"]
        assert subprocess.run(command, cwd=pytester.path, stdout=file, check=False).returncode == 0
    text = output.read_text()
    assert '"name": "mlp"' in text or '"name":"mlp"' in text
    assert "test session starts" in text


def test_a_table_that_others_write_to_keeps_what_they_wrote(pytester: pytest.Pytester):
    pytester.makeconftest(
        """
from pathlib import Path

def pytest_runtest_logreport(report):
    table = Path("results/tiny.csv")
    if report.nodeid.endswith("::linear") and report.when == "call":
        table.write_text(table.read_text() + "other,theirs\\n")
"""
    )
    pytester.mkdir("results").joinpath("tiny.csv").write_text("zoo,model,remark\n")
    pytester.runpytest_inprocess("--lens-zoo=tiny:mlp,linear", "--lens-table=results/tiny.csv")
    assert set(rows(pytester)) == {"linear", "mlp", "theirs"}


def test_other_files_are_written_through_links_and_into_devices(pytester: pytest.Pytester):
    (pytester.path / "run.json").write_text("old")
    (pytester.path / "link.json").symlink_to("run.json")
    os.mkfifo(pytester.path / "pipe")  # no device: code that replaced it would leave the machine without
    reader = os.open(pytester.path / "pipe", os.O_RDWR)
    pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", "--lens-json=link.json", "--lens-report-md=pipe")
    assert (pytester.path / "link.json").is_symlink()
    assert '"mlp"' in (pytester.path / "run.json").read_text()
    assert (pytester.path / "pipe").is_fifo()
    os.set_blocking(reader, False)
    assert b"mlp" in os.read(reader, 1 << 16)
    os.close(reader)


def test_a_table_that_can_no_longer_be_written_fails_the_run_and_no_model(pytester: pytest.Pytester):
    pytester.makeconftest(
        "import pathlib\n"
        "def pytest_runtest_setup(item): pathlib.Path('results/tiny.csv').mkdir(parents=True, exist_ok=True)"
    )
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp,linear", "--lens-table=results/tiny.csv")
    result.assert_outcomes(passed=2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["ERROR: --lens-table: *tiny.csv*"])
    result.stdout.no_fnmatch_line("*INTERNALERROR*")
