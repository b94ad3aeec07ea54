"""The folder of a reproduction: writes it, and knows one that a person has changed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from safetensors.torch import save

from pytest_torchlens.records.files import check_folder
from pytest_torchlens.records.files import make_folder
from pytest_torchlens.records.files import write_atomically
from pytest_torchlens.run.repro.gap import Gap
from pytest_torchlens.run.repro.program import Program
from pytest_torchlens.run.repro.script import SCRIPT
from pytest_torchlens.run.repro.script import TENSORS
from pytest_torchlens.run.repro.script import tensors_of


class FolderError(ValueError):
    """The folder is not ours to write to; the message says what to do."""


def write_reproduction(folder: Path, text: str, program: Program, expected: torch.Tensor | None, gap: Gap) -> None:
    """Write both files.

    Raises
    ------
    UnwritableError
        If they cannot be written.
    """
    check_folder(folder)
    make_folder(folder)
    write_atomically(folder / TENSORS, save(tensors_of(program, expected, gap)))
    write_atomically(folder / SCRIPT, f"{text}{_MARK}{_digest(text)}\n")


_MARK = "\n# pytest-lens repro "
"""Precedes the digest of all above: a file that a person has changed is not written again."""


def check_is_ours(folder: Path) -> None:
    """Check that a folder may be written to: it does not exist, is empty, or has an unchanged reproduction alone.

    Raises
    ------
    FolderError
        If not.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise FolderError(f"{folder} is a file; name another folder with --out")
    others = sorted({path.name for path in folder.iterdir()} - {SCRIPT, TENSORS})
    if others:
        raise FolderError(f"{folder} has other files ({others[0]}); name another folder with --out")
    if any(folder.iterdir()) and not _is_unchanged(folder / SCRIPT):
        raise FolderError(f"{folder / SCRIPT} was changed by hand; keep it, and name another folder with --out")


def _is_unchanged(script: Path) -> bool:
    try:
        text, _, digest = script.read_text(encoding="utf-8").rpartition(_MARK)
    except (OSError, UnicodeDecodeError):
        return False
    return digest.strip() == _digest(text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
