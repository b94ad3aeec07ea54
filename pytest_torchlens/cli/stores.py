"""What commands on baselines share: the options that say where these are, and the names of models and sets."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from pytest_torchlens.baseline.store import FOLDER
from pytest_torchlens.baseline.store import LOCAL
from pytest_torchlens.baseline.store import SET
from pytest_torchlens.baseline.store import Store
from pytest_torchlens.baseline.store import key_named
from pytest_torchlens.cli.baseline_dir import baseline_dir
from pytest_torchlens.cli.errors import CommandError
from pytest_torchlens.records import nearest

MODEL_HELP = "a model's name: zoo/model, zoo:model, zoo.yaml::model, or a test's"


def add_store_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options that say where the baselines are."""
    add_root_option(parser)
    add_dir_option(parser)
    parser.add_argument(
        *("--baseline", "--lens-baseline"), metavar="NAME", type=set_name, default="", help="the set of this name"
    )


def add_root_option(parser: argparse.ArgumentParser) -> None:
    """Declare the option that names the project."""
    parser.add_argument("--root", metavar="DIR", type=Path, help="the project (default: this folder, or one around it)")


def add_dir_option(parser: argparse.ArgumentParser) -> None:
    """Declare the option that names the folder of the baselines."""
    default = "those that the project's ini key lens_baseline_dir names, else lens_baselines in it"
    parser.add_argument("--dir", metavar="DIR", type=Path, help=f"its baselines (default: {default})")


def find_root(options: argparse.Namespace) -> Path:
    """Return the project, and note it in the options: by default the folder with baselines that this one is in.

    Where the project's ini file has the key ``lens_baseline_dir``, it is the folder of that file, and its baselines are
    noted, too.

    Raises
    ------
    CommandError
        If it is no folder, or its settings cannot be read.
    """
    if options.root is not None and not options.root.is_dir():
        raise CommandError(f"--root: expected a folder, got {str(options.root)!r}")
    if options.dir is None and (found := baseline_dir(options.root or Path())):
        options.root = _from_here(found.root) if options.root is None else options.root
        options.dir = _from_here(found.folder)
    if options.root is None:
        options.root = _folder_with_baselines(Path.cwd())
    return Path(options.root)


def _from_here(path: Path) -> Path:
    return Path(os.path.relpath(path))


def _folder_with_baselines(here: Path) -> Path:
    """Return the nearest folder with baselines or waiting results, within the repository; else `here`."""
    around = [here, *here.parents]
    for folder in around[: _place_of((".git",), around) or _place_of(_PROJECT_FILES, around)]:
        if (folder / FOLDER).is_dir() or (folder / LOCAL).is_dir():
            return Path(os.path.relpath(folder, here))
    return Path()


def _place_of(names: tuple[str, ...], around: list[Path]) -> int:
    """Return the number of folders up to the nearest with one of these; 0 if none has."""
    every = (number for number, folder in enumerate(around, 1) if any((folder / name).exists() for name in names))
    return next(every, 0)


_PROJECT_FILES = ("pyproject.toml", "pytest.ini", "tox.ini", "setup.cfg")
"""Outside of a repository, the nearest folder with one of these is the top of the project."""


def set_name(text: str) -> str:
    """Return the name of a set without the sign that its folder has."""
    return text.removeprefix(SET)


def store_of(options: argparse.Namespace) -> Store:
    """Return the baselines that the options name.

    Raises
    ------
    CommandError
        If the project is no folder.
    """
    return Store.of(find_root(options), options.dir, options.baseline)


def existing_store(options: argparse.Namespace) -> Store:
    """Return the baselines that the options name.

    Raises
    ------
    CommandError
        If the project has no set of that name, or is no folder.
    """
    store = store_of(options)
    if options.baseline and not (store or store.pending.is_dir()):
        raise CommandError(f"--baseline: {no_set(options.baseline, options)}")
    return store


def set_folder(text: str, options: argparse.Namespace) -> Path | None:
    """Return the folder of baselines that a text names: a set's name, with or without ``@``, or a path."""
    store = Store.of(options.root, options.dir, set_name(text))
    return store.folder if text and store else Path(text) if Path(text).is_dir() else None


def set_named(text: str, options: argparse.Namespace) -> Store:
    """Return the set that ``@name`` names.

    Raises
    ------
    CommandError
        If the project has no set of that name.
    """
    store = Store.of(options.root, options.dir, set_name(text))
    if text == SET or not (store or store.pending.is_dir()):
        raise CommandError(no_set(text, options))
    return store


def no_set(text: str, options: argparse.Namespace) -> str:
    """Return the message for a set that does not exist."""
    folder = Store.of(options.root, options.dir).folder
    sets = [path.name.removeprefix(SET) for path in folder.glob(f"{SET}*") if path.is_dir()]
    problem = f"expected the name of a set after {SET!r}" if text == SET else f"no set {set_name(text)!r} in {folder}"
    return f"{problem}: {nearest(set_name(text), sets)}"


def known_key(text: str, store: Store) -> str:
    """Return the key of the one model with a baseline, or a waiting result, that a text names.

    Raises
    ------
    CommandError
        If there is none, or several.
    """
    found = sorted({*store.models(text), *store.waiting(text)})
    if len(found) > 1:
        raise CommandError(f"{text!r} names {len(found)} models ({', '.join(found[:3])}, …): name one")
    if not found:
        raise CommandError(f"no baseline {text!r} in {store.folder}: {nearest_key(text, store)}")
    return found[0]


def nearest_key(text: str, store: Store, *, only_waiting: bool = False) -> str:
    """Return a hint with the keys that end in a text, or are most like it in any spelling."""
    keys = sorted({*store.waiting(), *(() if only_waiting else store.models())})
    if ends := [repr(key) for key in keys if key.endswith(f"/{text}")]:
        return f"did you mean {' or '.join(ends[:3])}?"
    return nearest(key_named(text), keys) if keys else "there is none yet"
