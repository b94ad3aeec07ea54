"""Every file is written by `records/files.py`: nothing else in the package opens, makes or removes one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "pytest_torchlens"
WRITERS = {
    *("write_text", "write_bytes", "mkdir", "makedirs", "touch", "unlink", "rmdir", "removedirs", "symlink_to"),
    *("hardlink_to", "rename", "rmtree", "copyfile", "copytree", "copy2", "move", "mkstemp", "mkdtemp"),
    *("TemporaryFile", "NamedTemporaryFile", "TemporaryDirectory", "SpooledTemporaryFile", "FileLock", "mkfifo"),
    *("save_file", "write_table", "savez", "to_csv", "to_parquet_file", "ZipFile", "chmod", "truncate"),
}
"""Functions and methods that write, make or remove a file, whatever module they come from."""
ALLOWED = {
    "capture/tensor_files.py save_file": "inside `replacing`",
    "recorder/worker/tables.py write_table": "inside `replacing`",
    "extraction/exports.py write_table": "the same",
    "recorder/worker/files.py open": "a file that grows: `WholeFile` undoes an incomplete write, inside `writing`",
    "recorder/worker/files.py truncate": "the same",
    "recorder/output.py FileLock": "a lock on the folder, without which the recorder works too",
    "recorder/ring.py mkstemp": "memory without a name, where the system has no memfd",
    "recorder/ring.py unlink": "the same",
    "recorder/ring.py truncate": "the same",
    "recorder/worker/video.py open": "FFmpeg writes to memory, which `WholeFile` appends",
    "plugin/results.py mkdir": "of pytest's cache",
    "validate/record_invariants.py unlink": "of a graph in memory",
    "run/module_calls.py unlink": "the same",
    "extraction/graphs.py unlink": "the same",
    "validate/resources.py truncate": "puts back a user's file in memory",
    "run/child.py write_text": "of /proc, which is no file",
}


def writes(source: str) -> Iterator[str]:
    """Yield the name of each call that writes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            is_ours = isinstance(node.func, ast.Name) and name in ("rename", "touch")  # those of `records/files.py`
            if (name in WRITERS and not is_ours) or (name == "open" and opens_to_write(node)):
                yield name


def opens_to_write(call: ast.Call) -> bool:
    values = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    modes = [each.value for each in values if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return any(set(mode) <= set("rwaxbt+") and set(mode) & set("wax+") for mode in modes)


def test_no_module_writes_a_file_but_by_records_files():
    found = {
        f"{path.relative_to(PACKAGE).as_posix()} {name}"
        for path in PACKAGE.rglob("*.py")
        for name in writes(path.read_text(encoding="utf-8"))
        if path != PACKAGE / "records" / "files.py"
    }
    assert found == set(ALLOWED)


@pytest.mark.parametrize(
    "source",
    [
        "open(path, 'w')",
        "path.open('ab')",
        "path.open(mode='x')",
        "path.write_text('a')",
        "shutil.rmtree(folder)",
        "tempfile.TemporaryFile()",
        "folder.mkdir(parents=True)",
    ],
)
def test_a_writer_is_found(source: str):
    assert len(list(writes(source))) == 1


@pytest.mark.parametrize("source", ["open(path)", "path.open(encoding='utf-8')", "path.open('rb')", "zoo.open(name)"])
def test_a_reader_is_not(source: str):
    assert list(writes(source)) == []
