"""Several processes write one table: no row is lost, and nothing is left beside it."""

from __future__ import annotations

import multiprocessing

import pytest

from pytest_torchlens.records import Environment
from pytest_torchlens.records import ModelReport
from pytest_torchlens.report import ResultTable

ROWS = 25


def write_rows(path, zoo):
    table = ResultTable(path)
    for number in range(ROWS):
        table.add(ModelReport(zoo=zoo, name=f"m{number}"), Environment())


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
def test_no_row_is_lost(tmp_path):
    context = multiprocessing.get_context("fork")
    path = tmp_path / "t.csv"
    processes = [context.Process(target=write_rows, args=(path, zoo)) for zoo in "abc"]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert len(path.read_text().splitlines()) == 1 + 3 * ROWS
    assert [file.name for file in tmp_path.iterdir()] == ["t.csv"]


@pytest.mark.parametrize("name", ["=1+1", "+net", "-net", "@net", "\tnet", "'=net", "'net"])
def test_what_a_spreadsheet_would_run_is_text(tmp_path, name):
    path = tmp_path / "t.csv"
    for _ in range(2):  # read back, it is the same model
        ResultTable(path).add(ModelReport(zoo="z", name=name), Environment())
    _, *rows = path.read_text().splitlines()
    assert len(rows) == 1
    assert rows[0].split(",")[1].lstrip('"')[0] not in "=+-@\t"
