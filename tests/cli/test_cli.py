"""`pytest-lens report` and `pytest-lens merge`."""

from __future__ import annotations

import errno
import io
import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from pytest_torchlens.cli import main
from pytest_torchlens.records import Environment
from pytest_torchlens.records import RunReport
from pytest_torchlens.records import from_json
from pytest_torchlens.report import save_drawing
from pytest_torchlens.report import write_site
from tests.report.samples import passed
from tests.report.samples import raised
from tests.report.samples import refuted
from tests.report.samples import run


def write(folder, *models, **fields):
    given = replace(run(*(save_drawing(model, folder) for model in models)), **fields)
    write_site(given, given.models, folder)
    return folder


def read(folder):
    return from_json((folder / "report.json").read_text(encoding="utf-8"), RunReport)


def test_report_makes_the_pages_anew_from_the_records_alone(tmp_path, capsys):
    folder = write(tmp_path / "out", passed(), raised())
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for path in folder.rglob("*.html"):
        path.unlink()
    assert main(["report", str(folder)]) == 0
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert capsys.readouterr().out == f"report: {(folder / 'index.html').as_uri()}\n"


def test_report_into_another_folder_takes_drawings_with_it(tmp_path):
    folder = write(tmp_path / "out", passed())
    assert main(["report", str(folder / "report.json"), f"--out={tmp_path / 'copy'}"]) == 0
    names = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    assert {str(path.relative_to(tmp_path / "copy")) for path in (tmp_path / "copy").rglob("*")} == names


@pytest.mark.parametrize(
    ("content", "said"), [(None, "alexnet.json does not exist"), ("{", "which is damaged or something else")]
)
def test_a_model_whose_record_is_gone_or_damaged_is_said_and_the_others_have_their_pages(
    tmp_path, capsys, content, said
):
    folder = write(tmp_path / "out", passed(), passed("other"))
    record = folder / "models/torchvision/alexnet.json"
    record.unlink() if content is None else record.write_text(content, encoding="utf-8")
    assert main(["report", str(folder)]) == 1
    assert said in (folder / "models/torchvision/alexnet.html").read_text(encoding="utf-8")
    assert "conv2d_1_1" in (folder / "models/torchvision/other.html").read_text(encoding="utf-8")
    assert capsys.readouterr().out.startswith("torchvision:alexnet: ")
    assert main(["merge", str(folder), f"--out={tmp_path / 'all'}"]) == 1
    assert (record.read_text(encoding="utf-8") if record.exists() else None) == content


def test_merge_joins_models_drawings_and_environments(tmp_path, capsys):
    first = write(tmp_path / "a", passed("one"), passed("two"))
    second = write(tmp_path / "b", refuted("two"), raised("three"), environment=Environment(torch="2.13.0"))
    out = tmp_path / "all"
    assert main(["merge", str(first), str(second), f"--out={out}"]) == 0
    joined = read(out)
    assert [model.name for model in joined.models] == ["one", "two", "three"]
    assert [model.outcome.value for model in joined.models] == ["passed", "failed", "failed"]
    assert [(part.environment.torch, part.num_models) for part in joined.parts] == [("2.14.1", 2), ("2.13.0", 2)]
    assert (out / "models/torchvision/one.svg").exists()
    page = (out / "index.html").read_text(encoding="utf-8")
    assert "2.13.0" in page
    assert "2.14.1" in page
    said = capsys.readouterr().out
    assert f"torchvision:two is in {first} too; that of {second} is kept" in said
    assert "3 models of 2 runs" in said


def test_what_was_merged_is_merged_again(tmp_path):
    parts = [write(tmp_path / name, passed(name)) for name in ("a", "b", "c")]
    main(["merge", *map(str, parts[:2]), f"--out={tmp_path / 'ab'}"])
    main(["merge", str(tmp_path / "ab"), str(parts[2]), f"--out={tmp_path / 'ab'}"])
    assert [model.name for model in read(tmp_path / "ab").models] == ["a", "b", "c"]
    assert len(read(tmp_path / "ab").parts) == 3


def test_a_drawing_is_taken_from_the_models_own_place_alone(tmp_path):
    (tmp_path / "secret.svg").write_text("<svg/>", encoding="utf-8")
    evil = replace(passed(), graph="../secret.svg")
    folder = write_site(run(evil), [evil], tmp_path / "out")[0].parent
    main(["merge", str(folder), f"--out={tmp_path / 'deep' / 'all'}"])
    assert "<svg/>" not in {path.read_text(encoding="utf-8") for path in (tmp_path / "deep").rglob("*.svg")}


def test_drawings_that_are_gone_are_made_anew(tmp_path):
    folder = write(tmp_path / "out", passed())
    before = {path: path.read_bytes() for path in folder.rglob("alexnet.*") if path.suffix != ".html"}
    for path in before:
        if "json" not in path.name or "views" in path.name:
            path.unlink()
    assert main(["report", str(folder)]) == 0
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"expected a folder that pytest --lens-report=DIR has written, but .*report.json does not exist"),
        ("{", r"report.json, which is damaged or something else \(.*\); write it anew"),
        ("[]", r"\(RunReport: expected dict, got list\)"),
        ('{"models": 3}', r"\(RunReport.models: expected list, got int\)"),
        ('{"schema": 1}', r"damaged or something else \(expected the field 'models', got none\)"),
        ("[" * 100_000, "which is damaged or something else"),
        (json.dumps({"schema": 99, "new": 1}), r"expected schema 1 or earlier, got 99 in .*: install a newer"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, capsys, content, message):
    if content is not None:
        (tmp_path / "report.json").write_text(content, encoding="utf-8")
    assert main(["report", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("pytest-lens: error: ")
    assert re.search(message, error)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reprot", "x"], "expected a command, got 'reprot' (did you mean 'repro' or 'report'?)"),
        (["zoo", "lst"], "expected a command, got 'lst' (did you mean 'list'?)"),
        (["zoo", "quux"], "invalid choice: 'quux'"),
        ([], "the following arguments are required: COMMAND"),
        (["merge", "a"], "the following arguments are required: --out"),
    ],
)
def test_mistakes_in_use(capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_the_command_needs_no_torch(tmp_path):
    folder = write(tmp_path / "out", passed())
    program = "import sys; from pytest_torchlens.cli import main; main(sys.argv[1:]); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program, "report", str(folder)], check=True)


class Broken(io.StringIO):
    """Standard output that takes nothing more."""

    def __init__(self, error, method):
        super().__init__()
        setattr(self, method, lambda *_: (_ for _ in ()).throw(error))


@pytest.mark.parametrize("method", ["write", "flush"])
@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (
            OSError(errno.ENOSPC, "No space left"),
            2,
            "pytest-lens: error: standard output cannot be written: No space left",
        ),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 1, ""),
    ],
)
def test_output_that_cannot_be_written(tmp_path, monkeypatch, capsys, method, error, status, message):
    folder = write(tmp_path / "out", passed())
    monkeypatch.setattr("sys.stdout", Broken(error, method))
    assert main(["report", str(folder)]) == status
    assert capsys.readouterr().err.partition("; ")[0] == message


@pytest.mark.parametrize("error", [OSError("a device is gone"), BrokenPipeError("a device is gone")])
def test_another_error_is_not_one_of_the_output(monkeypatch, capsys, error):
    monkeypatch.setattr("pytest_torchlens.cli.report_command.run", lambda _: (_ for _ in ()).throw(error))
    assert main(["report", "out"]) == 2
    assert capsys.readouterr().err == "pytest-lens: error: a device is gone\n"


NULL = "a\0b"


@pytest.mark.parametrize(
    "arguments",
    [
        ["report", NULL],
        ["report", "x", f"--out={NULL}"],
        ["merge", NULL, "--out=o"],
        ["merge", "x", f"--out={NULL}"],
        ["show", f"{NULL}.json"],
        ["show", "m", f"--root={NULL}"],
        ["accept", "m", f"--dir={NULL}"],
        ["matrix", NULL, NULL],
        ["matrix", "x", "y", f"--md={NULL}"],
        ["zoo", "list", f"{NULL}.yaml"],
        ["zoo", "probe", "torchvision", "alexnet", f"--out={NULL}"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_a_null_character_in_a_path_is_an_error_in_words(tmp_path, monkeypatch, capsys, arguments):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith("pytest-lens: error: ")
    assert not list(tmp_path.iterdir())
