from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_torchlens.records import replacing
from pytest_torchlens.records import write_atomically

ROOT = Path(__file__).parents[2]
WRITERS = (
    *("text", "baseline", "pending", "results", "table", "drawing"),
    *("activations", "history", "parquet", "streamed", "thinned"),
)
unix = pytest.mark.skipif(sys.platform == "win32", reason="modes, links and limits of Unix")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    command = [sys.executable, "-m", "tests.records.full_disk", tmp_path_factory.mktemp("disk")]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@unix
@pytest.mark.parametrize("writer", WRITERS)
def test_a_full_disk_leaves_the_old_files_and_no_others(outcomes, writer):
    error, changed = outcomes[writer]
    assert "File too large" in error or "os error 27" in error
    assert changed == []


@unix
def test_every_writer_is_tested(outcomes):
    assert set(outcomes) == set(WRITERS)


@pytest.mark.parametrize("content", ["a\nb\udce9", b"a\nb\\udce9"])
def test_text_and_bytes_arrive_in_new_folders(tmp_path, content):
    path = tmp_path / "new" / "folder" / "file"
    assert write_atomically(path, content) == path
    assert path.read_bytes() == b"a\nb\\udce9"
    assert os.listdir(path.parent) == ["file"]


def test_a_missing_folder_is_an_error_that_names_the_file(tmp_path):
    path = tmp_path / "new" / "file"
    with pytest.raises(FileNotFoundError) as caught:
        write_atomically(path, "x", make_folders=False)
    assert str(caught.value).endswith(repr(str(path)))


@unix
def test_a_new_file_has_the_mode_of_any_other_and_an_old_one_keeps_its(tmp_path):
    (usual := tmp_path / "usual").write_text("")
    made = write_atomically(tmp_path / "made", "")
    assert made.stat().st_mode == usual.stat().st_mode
    made.chmod(0o640)
    write_atomically(made, "new")
    assert made.stat().st_mode & 0o777 == 0o640


@unix
def test_a_link_stays_and_its_file_is_replaced(tmp_path):
    (target := tmp_path / "target").write_text("old")
    (link := tmp_path / "link").symlink_to(target)
    write_atomically(link, "new")
    assert (link.is_symlink(), target.read_text()) == (True, "new")


@unix
def test_a_device_takes_what_is_written():
    command = "from pathlib import Path; from pytest_torchlens.records import write_atomically as write; "
    command += "write(Path('/dev/stdout'), 'text')"
    run = subprocess.run([sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout == "text"


def test_a_block_that_raises_leaves_the_old_file(tmp_path):
    path = write_atomically(tmp_path / "file", "old")
    with pytest.raises(KeyboardInterrupt), replacing(path) as part:  # noqa: PT012 - it writes, then it is interrupted
        part.write_text("new")
        raise KeyboardInterrupt
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {"file": "old"}
