"""The error that a command reports, and the exit status of an incomplete command."""

from __future__ import annotations

from pathlib import Path

from pytest_torchlens.records.files import UnwritableError
from pytest_torchlens.records.files import check_file
from pytest_torchlens.records.files import check_folder

INCOMPLETE = 1
"""Exit status of a command that could not do everything, and printed what is missing."""


class CommandError(Exception):
    """An error that the user can fix; the message names the reason and the fix."""


def check_output(path: Path | None, *, is_folder: bool = False) -> None:
    """Check that an output can be written, before the work for it.

    Raises
    ------
    CommandError
        If it cannot.
    """
    try:
        if path is not None:
            check_folder(path) if is_folder else check_file(path, make_folders=False)
    except UnwritableError as error:
        raise CommandError(str(error)) from None
