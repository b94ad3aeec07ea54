"""Finds the zoo files and models that command-line arguments and ``--lens-zoo`` name."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from typing import NamedTuple

import pytest

from pytest_torchlens.plugin.arguments import ZOO_FOLDER
from pytest_torchlens.plugin.arguments import argument_path
from pytest_torchlens.plugin.arguments import names_zoo
from pytest_torchlens.plugin.arguments import zoo_folders
from pytest_torchlens.zoo import ZooError
from pytest_torchlens.zoo.catalog import find_model
from pytest_torchlens.zoo.catalog import registered_files
from pytest_torchlens.zoo.catalog import shipped_folder
from pytest_torchlens.zoo.catalog import split_globs
from pytest_torchlens.zoo.catalog import zoo_files

if TYPE_CHECKING:
    from pytest_torchlens.zoo import Zoo


class ModelName(NamedTuple):
    """A model's zoo, and its name in it."""

    zoo: str
    name: str


@dataclass
class Choice:
    """A zoo file, and the selected models."""

    zoo: Zoo
    nodeid: str
    names: set[str] = field(default_factory=set)

    def models(self) -> dict[str, ModelName]:
        """Return zoo and name of each selected model by node id, sorted by name."""
        return {f"{self.nodeid}::{name}": ModelName(self.zoo.name, name) for name in sorted(self.names)}


class Selection:
    """The models that options and arguments select, by zoo file.

    Raises
    ------
    pytest.UsageError
        If a zoo or a model is unknown, a zoo file is wrong, or a zoo's library is not installed.
    """

    def __init__(self, config: pytest.Config, zoos: tuple[str, ...]) -> None:
        self.choices: dict[Path, Choice] = {}
        self._config = config
        try:
            if config.args_source is config.ArgsSource.ARGS:
                config.args = [self._read_argument(arg) for arg in config.args]
            for text in zoos:
                self._read_option(text)
            self._warn_about_unused_globs()
        except (ZooError, ZooWarning) as error:
            raise pytest.UsageError(str(error)) from error.__cause__

    def _warn_about_unused_globs(self) -> None:
        """Warn about rules that match no model, except in shipped files, which cover several library versions."""
        if hasattr(self._config, "workerinput"):
            return
        for path, choice in self.choices.items():
            for message in choice.zoo.unused_globs() if path.parent != shipped_folder() else ():
                self._config.issue_config_time_warning(ZooWarning(message), stacklevel=2)

    @cached_property
    def models(self) -> dict[str, ModelName]:
        """Zoo and name of each model by node id, in the order of collection."""
        return {nodeid: model for choice in self.choices.values() for nodeid, model in choice.models().items()}

    def check_families(self) -> None:
        """Reject models whose provider raises for their family, before xdist workers sort by it.

        Raises
        ------
        pytest.UsageError
            If a provider raises.
        """
        try:
            for choice in self.choices.values():
                for name in sorted(choice.names):
                    _ = choice.zoo.case(name).family
        except ZooError as error:
            raise pytest.UsageError(str(error)) from error.__cause__

    def _read_option(self, text: str) -> None:
        """Read one value of ``--lens-zoo``; if the command line has no path, pytest collects only its file."""
        config = self._config
        path, patterns = find_model(text, zoo_folders(config), registered_zoos(config))
        choice = self._choose(path)
        for pattern in split_globs(patterns, choice.zoo.names) if patterns else ["*"]:
            choice.names.update(choice.zoo.select(pattern))
        if config.args_source is not config.ArgsSource.ARGS:
            config.args, config.args_source = [], config.ArgsSource.ARGS
        config.args = self._with_file(config.args, path)

    def _with_file(self, args: list[str], path: Path) -> list[str]:
        """Add only the file: its collector yields the selected models, so pytest need not match 1,400 names.

        The file is not added if an argument names a folder above it, because pytest (8.0 in one way, 9 in another)
        would then lose one of the two.  It replaces arguments that name single models of the file.
        """
        paths = {arg: argument_path(self._config, arg) for arg in args}
        if any(path.is_relative_to(other) and other != path for other in paths.values()):
            return args
        return [*(arg for arg, other in paths.items() if other != path), str(path)]

    def _read_argument(self, arg: str) -> str:
        """Select the models that an argument names; return the argument for pytest."""
        if not names_zoo(self._config, arg):
            return arg
        path, name = argument_path(self._config, arg), arg.partition("::")[2]
        if path.is_dir():
            for file in zoo_files([path]):
                self._choose(file, every=True)
            return arg
        # The node id of a shipped zoo, as pytest printed it.
        if not path.exists() and (shipped := shipped_folder() / path.name).is_file():
            path = shipped
        if not path.exists():
            return arg
        choice = self._choose(path, every=not name)
        if not name:
            return str(path)
        choice.names.add(choice.zoo.check_name(name))
        return f"{path}::{name}"

    def _choose(self, path: Path, *, every: bool = False) -> Choice:
        choice = self.choices.get(path)
        if choice is None:
            choice = self.choices[path] = Choice(self._load(path), self._nodeid(path))
        if every:
            choice.names.update(choice.zoo.names)
        return choice

    def _load(self, path: Path) -> Zoo:
        """Read a zoo file; two files of one name would overwrite each other's baselines and pages."""
        for other in self.choices:
            if other.stem == path.stem and not other.samefile(path):
                raise ZooError(f"{other} and {path} are both the zoo {path.stem!r}: rename one of the files")
        from pytest_torchlens.zoo import load_zoo

        return load_zoo(path)

    def _nodeid(self, path: Path) -> str:
        if path.parent == shipped_folder():
            return f"{ZOO_FOLDER}/{path.name}"
        if path.is_relative_to(self._config.rootpath):
            return path.relative_to(self._config.rootpath).as_posix()
        return path.as_posix()


def registered_zoos(config: pytest.Config) -> list[Path]:
    """Return the zoo files that plugins and conftest files name."""
    return registered_files(config.hook.pytest_lens_register_zoo(config=config))


class ZooWarning(pytest.PytestWarning):
    """A zoo file probably has a mistake."""
