"""Which zoo files there are: the user's own, and those that ship with the package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pytest_torchlens.records import nearest
from pytest_torchlens.zoo.errors import ZooError

if TYPE_CHECKING:
    from collections.abc import Collection
    from collections.abc import Iterable

ENDINGS = (".yaml", ".yml")
FOLDER = "model_zoo_configs"


def shipped_folder() -> Path:
    """Return the folder of the zoo files that ship with the package."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "zoo_configs"
    return installed if installed.is_dir() else package.parent / FOLDER


def zoo_files(folders: Iterable[Path]) -> list[Path]:
    """Return the zoo files in folders, sorted in each."""
    return [
        path
        for folder in folders
        if folder.is_dir()
        for path in sorted(folder.iterdir())
        if path.suffix in ENDINGS and path.is_file()
    ]


def find_zoo_file(name: str, folders: Collection[Path], registered: Collection[Path] = ()) -> Path:
    """Return the file of the zoo called `name`: the first in `folders`, else a registered one, or the one that ships.

    Raises
    ------
    ZooError
        If there is none; the nearest names are given.
    """
    for path in _known(folders, registered):
        if path.stem == name:
            return path
    raise ZooError(f"unknown zoo {name!r}: {nearest(name, zoo_names(folders, registered))}")


def zoo_names(folders: Collection[Path], registered: Collection[Path] = ()) -> set[str]:
    """Return the names of all zoos that `find_zoo_file` knows."""
    return {path.stem for path in _known(folders, registered)}


def _known(folders: Collection[Path], registered: Collection[Path]) -> list[Path]:
    return [*zoo_files(folders), *registered, *zoo_files([shipped_folder()])]
