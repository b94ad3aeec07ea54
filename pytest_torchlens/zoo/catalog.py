"""Finds zoo files, the user's own and those that ship with the package, and matches model names with globs."""

from __future__ import annotations

import glob as literal
import os
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pytest_torchlens.records import nearest
from pytest_torchlens.records.model_names import ZOO_ENDINGS
from pytest_torchlens.records.model_names import ModelName
from pytest_torchlens.records.model_names import readings
from pytest_torchlens.zoo.errors import ZooError

ZOO_FOLDER = "model_zoo_configs"


def find_zoo_file(name: str, folders: Collection[Path], registered: Collection[Path] = (), model: str = "") -> Path:
    """Return the file of the zoo called `name`: the first in `folders`, else a registered one, else the shipped one.

    Raises
    ------
    ZooError
        If there is none; the message suggests the nearest names, or how to run the `model` of a file that lies here.
    """
    for path in _all_zoo_files(folders, registered):
        if path.stem == name:
            return path
    hint = nearest(name, zoo_names(folders, registered))
    if here := next((file for ending in ZOO_ENDINGS if (file := Path(name + ending)).is_file()), None):
        hint = f"{here} lies here, and is run by file: pytest {here}{f'::{model}' if model else ''}"
    elif not hint.startswith("did you mean"):
        searched = ", ".join(f"{folder.name}/" for folder in folders)
        hint += f"; your own are found in {searched} (ini key lens_zoo_paths), or run by file: pytest DIR/{name}.yaml"
    raise ZooError(f"unknown zoo {name!r}: {hint}")


def find_model(text: str, folders: Collection[Path], registered: Collection[Path] = ()) -> tuple[Path, str]:
    """Return the zoo file, and the name or globs of its models, that a text names; ``""`` if it names a zoo alone.

    Raises
    ------
    ZooError
        If there is no such zoo or file; the message suggests the nearest names.
    """
    known = zoo_names(folders, registered)
    meanings = [ModelName(text.strip(), ""), *readings(text)]
    files = [one for one in meanings if one.zoo.endswith(ZOO_ENDINGS)]
    if found := next((one for one in files if Path(one.zoo).is_file()), None):
        return Path(os.path.abspath(found.zoo)), found.name  # noqa: PTH100 - Path.resolve would follow links
    zoo, name = next((one for one in meanings if one.zoo in known), meanings[min(1, len(meanings) - 1)])
    if zoo not in known and files:
        file = Path(files[0].zoo)
        raise ZooError(f"file not found: {file}: {nearest(str(file), map(str, zoo_files([file.parent])))}")
    model = "" if is_glob(name) or "," in name else name
    return find_zoo_file(zoo, folders, registered, model), name


def zoo_names(folders: Collection[Path], registered: Collection[Path] = ()) -> set[str]:
    """Return the names of all zoos that `find_zoo_file` knows."""
    return {path.stem for path in _all_zoo_files(folders, registered)}


def _all_zoo_files(folders: Collection[Path], registered: Collection[Path]) -> list[Path]:
    return [*zoo_files(folders), *registered, *zoo_files([shipped_folder()])]


def zoo_files(folders: Iterable[Path]) -> list[Path]:
    """Return the zoo files in folders, sorted within each folder."""
    return [
        path
        for folder in folders
        if folder.is_dir()
        for path in sorted(folder.iterdir())
        if path.suffix in ZOO_ENDINGS and path.is_file()
    ]


def registered_files(answers: Iterable[Any]) -> list[Path]:
    """Return the zoo files in the answers of plugins to ``pytest_lens_register_zoo``: each a path, or several."""
    every = ([answer] if isinstance(answer, str | os.PathLike) else answer or [] for answer in answers)
    return [Path(path) for paths in every for path in paths]


def shipped_folder() -> Path:
    """Return the folder of the zoo files that ship with the package."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "zoo_configs"
    return installed if installed.is_dir() else package.parent / ZOO_FOLDER


def is_glob(text: str) -> bool:
    """Whether a text has signs of a glob."""
    return any(sign in text for sign in "*?[")


def matches(name: str, glob: str, names: Collection[str]) -> bool:
    """Whether a glob matches one of `names`; a glob that is an exact name matches no other, but for ``*``: all.

    Examples
    --------
    >>> [name for name in ("net", "net[v2]", "net2") if matches(name, "net[v2]", {"net", "net[v2]", "net2"})]
    ['net[v2]']
    """
    return name == glob if glob in names and glob != "*" else fnmatchcase(name, glob)


def split_globs(text: str, names: Collection[str]) -> Iterator[str]:
    """Yield the globs of a comma-separated list; a name that contains commas stays whole.

    Examples
    --------
    >>> list(split_globs("x,y, a*", {"x", "x,y", "abc"}))
    ['x,y', 'a*']
    """
    parts = text.split(",")
    longest = 1 + max((name.count(",") for name in names), default=0)
    while parts:
        counts = range(min(longest, len(parts)), 1, -1)
        count = next((count for count in counts if ",".join(parts[:count]).strip() in names), 1)
        yield ",".join(parts[:count]).strip()
        parts = parts[count:]


def covering_globs(group: Collection[str], names: Collection[str]) -> list[str]:
    """Return globs that match all of `group` and no other of `names`, each as short as whole words allow.

    Examples
    --------
    >>> covering_globs({"beit_base", "beit_large", "cait"}, ["beit_base", "beit_large", "beitv2", "cait", "coat"])
    ['beit_*', 'cait']
    """
    others = set(names) - set(group)
    found: dict[str, None] = {}
    for name in sorted(group):
        prefix = next(
            prefix
            for prefix in _prefixes(name)
            if f"{prefix}*" not in names and not any(other.startswith(prefix) for other in others)
        )
        alone = sum(other.startswith(prefix) for other in group) == 1
        found[name if alone or prefix.endswith(_END) else f"{literal.escape(prefix)}*"] = None
    return list(found)


_END = "\n"
"""Marks the end of a name: no other name begins with a name and this."""


def _prefixes(name: str) -> Iterator[str]:
    """Yield the prefixes of a name: first those of whole words, then all, then the name with an end mark."""
    ends = [end for end in range(1, len(name)) if name[end - 1] == "_" or name[end] == "_" or name[end].isdigit()]
    for end in (*ends, *range(1, len(name) + 1)):
        yield name[:end]
    yield f"{name}{_END}"
