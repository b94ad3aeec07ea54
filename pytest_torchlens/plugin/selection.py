"""Which models this run is about, and how pytest is told."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_torchlens.plugin.options import ENDINGS
from pytest_torchlens.plugin.options import ZOO_FOLDER
from pytest_torchlens.plugin.options import may_be_zoo
from pytest_torchlens.zoo import Zoo
from pytest_torchlens.zoo.catalog import find_zoo_file
from pytest_torchlens.zoo.catalog import shipped_folder
from pytest_torchlens.zoo.catalog import zoo_files
from pytest_torchlens.zoo.errors import ZooError

if TYPE_CHECKING:
    from pytest_torchlens.plugin.options import LensOptions


@dataclass
class Choice:
    """A zoo file, and which of its models were asked for."""

    zoo: Zoo
    nodeid: str
    names: set[str] = field(default_factory=set)


class Selection:
    """The models that options and arguments name, by zoo file."""

    def __init__(self, config: pytest.Config, options: LensOptions) -> None:
        self.choices: dict[Path, Choice] = {}
        self._config = config
        self._folders = options.zoo_paths
        try:
            self._read_arguments()
            for text in options.zoos:
                self._read_option(text)
        except ZooError as error:
            raise pytest.UsageError(str(error)) from error.__cause__

    def __len__(self) -> int:
        return sum(len(choice.names) for choice in self.choices.values())

    def zoo_of(self, nodeid: str) -> str | None:
        """Return the zoo of the model with that node id; None for the items of others."""
        file, _, name = nodeid.rpartition("::")
        for choice in self.choices.values():
            if choice.nodeid == file and name in choice.names:
                return choice.zoo.name
        return None

    def _read_option(self, text: str) -> None:
        """Take one value of ``--lens-zoo``; where the user named no path, its file is all that is collected."""
        name, _, patterns = text.partition(":")
        path = find_zoo_file(name.strip(), self._folders)
        choice = self._choose(path)
        for pattern in patterns.split(",") if patterns.strip() else ["*"]:
            choice.names.update(choice.zoo.select(pattern.strip()))
        config = self._config
        if config.args_source is not config.ArgsSource.ARGS:
            config.args, config.args_source = [], config.ArgsSource.ARGS
        # The file alone: its collector yields the chosen models, and pytest compares no name with each of 1,400.
        config.args = [*config.args, str(path)]

    def _read_arguments(self) -> None:
        """Take the zoo files that the user named as paths, and those whose node ids were given back."""
        config = self._config
        if config.args_source is not config.ArgsSource.ARGS:
            return
        config.args = [self._existing(arg) for arg in config.args]
        for arg in config.args:
            if may_be_zoo(arg):
                self._read_argument(arg)

    def _read_argument(self, arg: str) -> None:
        text, _, name = arg.partition("::")
        path = _absolute(self._config.invocation_params.dir / text)
        if path.is_dir() and self._is_zoo_folder(path):
            for file in zoo_files([path]).values():
                if file.parent == path:
                    choice = self._choose(file)
                    choice.names.update(choice.zoo.names)
        elif path.is_file() and (self._is_zoo_folder(path.parent) or _names_a_provider(path)):
            choice = self._choose(path)
            choice.names.update([choice.zoo.exactly(name)] if name else choice.zoo.names)

    def _existing(self, arg: str) -> str:
        """Return the argument, with the shipped file in place of ``model_zoo_configs/<zoo>.yaml`` if it has to be."""
        text, colons, name = arg.partition("::")
        path = Path(text)
        shipped = shipped_folder() / path.name
        if path.parent.name != ZOO_FOLDER or (self._config.invocation_params.dir / path).exists():
            return arg
        return f"{shipped}{colons}{name}" if shipped.is_file() else arg

    def _is_zoo_folder(self, path: Path) -> bool:
        return path.name == ZOO_FOLDER or path in (*self._folders, shipped_folder())

    def _choose(self, path: Path) -> Choice:
        from pytest_torchlens.zoo import load_zoo

        path = _absolute(path)
        if path not in self.choices:
            self.choices[path] = Choice(load_zoo(path), self._nodeid(path))
        return self.choices[path]

    def _nodeid(self, path: Path) -> str:
        if path.parent == shipped_folder():
            return f"{ZOO_FOLDER}/{path.name}"
        if path.is_relative_to(self._config.rootpath):
            return path.relative_to(self._config.rootpath).as_posix()
        return path.as_posix()


def _names_a_provider(path: Path) -> bool:
    """Whether a YAML file, named by the user, is a zoo file and not something of another plugin's."""
    if path.suffix not in ENDINGS:
        return False
    return bool(re.search(r"^provider\s*:", path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE))


def _absolute(path: Path) -> Path:
    """Return the path as pytest forms those of its nodes: absolute, links not followed."""
    return Path(os.path.abspath(path))  # noqa: PTH100: Path.resolve would follow links
