from __future__ import annotations

import json

import pytest

from pytest_torchlens.records import ModelReport
from pytest_torchlens.records import RunReport
from pytest_torchlens.records import from_json
from pytest_torchlens.report import page_path
from pytest_torchlens.report import save_drawing
from pytest_torchlens.report import write_site
from tests.report.samples import passed
from tests.report.samples import raised
from tests.report.samples import refuted
from tests.report.samples import run


def site(given, folder):
    return write_site(given, given.models, folder)


def test_what_is_written(tmp_path):
    report = save_drawing(passed(), tmp_path)
    written = site(run(report, raised()), tmp_path)
    assert [str(path.relative_to(tmp_path)) for path in written] == [
        "index.html",
        "report.json",
        "report.schema.json",
        "models/torchvision/alexnet.html",
        "models/torchvision/alexnet.json",
        "models/torchvision/broken.html",
        "models/torchvision/broken.json",
    ]
    assert 'id="folds"' in written[3].read_text(encoding="utf-8")


def test_the_records_are_read_back(tmp_path):
    given = run(passed(), refuted(), raised())
    site(given, tmp_path)
    brief = from_json((tmp_path / "report.json").read_text(encoding="utf-8"), RunReport)
    assert brief.environment == given.environment
    assert [model.verdict for model in brief.models] == [model.verdict for model in given.models]
    for model in given.models:
        text = (tmp_path / page_path(model).with_suffix(".json")).read_text(encoding="utf-8")
        assert from_json(text, ModelReport) == model


def test_the_run_file_says_its_schema_and_leaves_operations_to_the_models(tmp_path):
    site(run(passed()), tmp_path)
    text = (tmp_path / "report.json").read_text(encoding="utf-8")
    content = json.loads(text)
    assert content["schema"] == 1
    assert content["models"][0]["history"]["num_layers"] == 24
    assert "operations" not in content["models"][0]["history"]
    assert len(text) < 5_000


def test_what_else_is_in_the_folder_stays(tmp_path):
    mine = tmp_path / "models" / "torchvision" / "notes.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine", encoding="utf-8")
    (tmp_path / "index.html").write_text("old", encoding="utf-8")
    site(run(passed()), tmp_path)
    assert mine.read_text(encoding="utf-8") == "mine"
    assert "alexnet" in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_nothing_half_written_is_left(tmp_path, monkeypatch):
    (tmp_path / "index.html").write_text("old", encoding="utf-8")

    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", fail)
    with pytest.raises(OSError, match="No space left"):
        site(run(passed()), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["index.html"]
    assert (tmp_path / "index.html").read_text(encoding="utf-8") == "old"


def test_hostile_names_stay_in_the_folder(tmp_path):
    folder = tmp_path / "report"
    names = ["../../evil", "/abs", "a/b", "a\\b", "..", "x" * 5000, "lone \ud800"]
    written = site(run(*(passed(name, zoo=name) for name in names)), folder)
    assert len(set(written)) == 3 + 2 * len(names)
    assert all(path.resolve().is_relative_to(folder.resolve()) for path in written)
    assert [path.name for path in tmp_path.iterdir()] == ["report"]


def test_the_later_report_of_a_model_stays(tmp_path):
    written = site(run(raised("net"), passed("net")), tmp_path)
    assert len(written) == 5
    page = (tmp_path / "models/torchvision/net.html").read_text(encoding="utf-8")
    assert "Failed in" not in page
