"""Files are written whole or not at all, by every part of the package that writes one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pytest_torchlens.capture.tensor_files import save_tensors
from pytest_torchlens.records import files
from pytest_torchlens.records import replacing
from pytest_torchlens.records import write_atomically
from pytest_torchlens.records.files import UnwritableError

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def full_disk(tmp_path_factory):
    command = [sys.executable, "-m", "tests.records.full_disk", str(tmp_path_factory.mktemp("full"))]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(run.stdout.splitlines()[-1])


def test_every_writer_raises_on_a_full_disk(full_disk):
    assert len(full_disk) == 11
    assert {name: error for name, (error, _) in full_disk.items() if "too large" not in error} == {}


def test_a_full_disk_changes_no_file_and_leaves_no_new_one(full_disk):
    assert {name: files for name, (_, files) in full_disk.items() if files} == {}


@pytest.mark.parametrize("content", ["a\nb\udce9", b"a\nb\\udce9"], ids=["text", "bytes"])
def test_text_and_bytes_arrive_in_new_folders(tmp_path, content):
    path = tmp_path / "new" / "folder" / "file"
    assert write_atomically(path, content) == path
    assert path.read_bytes() == b"a\nb\\udce9"
    assert list(path.parent.iterdir()) == [path]


def test_a_missing_folder_is_an_error_that_names_the_file(tmp_path):
    path = tmp_path / "new" / "file"
    with pytest.raises(OSError, match="cannot be written") as caught:
        write_atomically(path, "x", make_folders=False)
    assert isinstance(caught.value, UnwritableError)
    assert str(caught.value) == f"{path} cannot be written: No such file or directory; make its folder first"


WRITERS = {
    "write_atomically": lambda path: write_atomically(path, "x"),
    "replacing": lambda path: replacing(path).__enter__(),
    "exclusive": lambda path: files.exclusive(path).__enter__(),
    "append": lambda path: files.append(path, b""),
    "rename": lambda path: files.rename(path.parent, path),
    "make_folder": files.make_folder,
    "touch": files.touch,
    "check_file": files.check_file,
    "check_folder": files.check_folder,
}


@pytest.mark.parametrize(("name", "why"), [("a\0b", "null character"), ("a\ud800b", "is not a valid character")])
@pytest.mark.parametrize("use", WRITERS.values(), ids=WRITERS)
def test_a_text_that_is_no_path_is_an_error_that_names_it(tmp_path, use, name, why):
    with pytest.raises(UnwritableError) as caught:
        use(tmp_path / name)
    assert repr(str(tmp_path / name)) in str(caught.value)
    assert why in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_block_that_is_interrupted_leaves_the_old_file(tmp_path):
    path = write_atomically(tmp_path / "file", "old")
    with pytest.raises(KeyboardInterrupt), replacing(path) as part:  # noqa: PT012 - it writes, then it is interrupted
        part.write_text("new")
        raise KeyboardInterrupt
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {"file": "old"}


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    write_atomically(path, "old")
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("no space")))
    with pytest.raises(OSError, match="no space"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_a_new_file_has_the_mode_of_the_umask_whatever_wrote_it(tmp_path):
    tensors, text = tmp_path / "a.safetensors", tmp_path / "a.txt"
    before = os.umask(0o027)
    try:
        save_tensors({"a": torch.ones(1)}, tensors)
        write_atomically(text, "x")
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (tensors, text)] == [0o640, 0o640]


def test_a_link_stays_a_link_and_a_file_keeps_its_mode(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    write_atomically(link, b"new")
    assert link.is_symlink()
    assert (target.read_bytes(), target.stat().st_mode & 0o777) == (b"new", 0o640)


def test_a_pipe_is_written_into(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomically(pipe, "caf\udce9")
        assert os.read(reader, 100) == b"caf\\udce9"
    finally:
        os.close(reader)
