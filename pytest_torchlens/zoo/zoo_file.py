"""A zoo file: which models there are, and how each is to be built and called."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_torchlens.records import nearest
from pytest_torchlens.zoo.case import ModelCase
from pytest_torchlens.zoo.catalog import fits
from pytest_torchlens.zoo.errors import ZooError
from pytest_torchlens.zoo.providers import Provider
from pytest_torchlens.zoo.providers import find_provider
from pytest_torchlens.zoo.yaml_lines import LinedDict
from pytest_torchlens.zoo.yaml_lines import check_keys
from pytest_torchlens.zoo.yaml_lines import read_yaml
from pytest_torchlens.zoo.zoo_settings import SETTINGS
from pytest_torchlens.zoo.zoo_settings import Settings
from pytest_torchlens.zoo.zoo_settings import parse_settings


@dataclass(frozen=True)
class ModelRule:
    """Settings of the models that the globs mean."""

    globs: tuple[str, ...]
    settings: dict[str, Any]
    where: str = ""
    """File and line."""
    places: dict[str, str] = field(default_factory=dict)
    """File and line of each of the constructor's arguments."""


@dataclass(frozen=True)
class Zoo:
    """The models of one zoo file."""

    path: Path
    provider: Provider
    rules: tuple[ModelRule, ...]
    """The defaults first; of two rules that fit, the later wins."""

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return self.path.stem

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All models, sorted."""
        return tuple(sorted(set(self.provider.names())))

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.names)

    def exactly(self, name: str) -> str:
        """Return `name` if there is a model of that name.

        Raises
        ------
        ZooError
            If there is none; the nearest names are given.
        """
        if name not in self.names:
            raise ZooError(f"zoo {self.name!r} has no model {name!r}: {nearest(name, self.names)}")
        return name

    def fitting(self, glob: str) -> list[str]:
        """Return the models that a glob means, sorted: the one of that very name, else all that fit."""
        return [name for name in self.names if fits(name, glob, self._known)]

    def select(self, pattern: str) -> list[str]:
        """Return the names that fit a glob, or the one of that name.

        Raises
        ------
        ZooError
            If there is none; the nearest names are given.
        """
        if not any(sign in pattern for sign in "*?["):
            return [self.exactly(pattern)]
        if found := self.fitting(pattern):
            return found
        raise ZooError(self.unfit(pattern))

    def unfit(self, glob: str) -> str:
        """Return the message for a glob that fits no model: a slip of the pen, most likely."""
        return f"no model of zoo {self.name!r} fits {glob!r}: {nearest(glob, self.names)}"

    def idle_globs(self) -> list[str]:
        """Return a message for each glob of a rule that fits no model."""
        pairs = [(rule, glob) for rule in self.rules for glob in rule.globs]
        return [f"{rule.where}: {self.unfit(glob)}" for rule, glob in pairs if not self.fitting(glob)]

    def case(self, name: str) -> ModelCase:
        """Return the model `name` with the settings that the file gives it; nothing is built yet."""
        merged: dict[str, Any] = {}
        places: dict[str, str] = {}
        for rule in self.rules:
            if any(fits(name, glob, self._known) for glob in rule.globs):
                kwargs = {**merged.get("kwargs", {}), **rule.settings.get("kwargs", {})}
                merged = {**merged, **rule.settings, "kwargs": kwargs}
                places |= rule.places
        settings = Settings(**merged)
        return ModelCase(
            file=self.path, zoo=self.name, name=name, settings=settings, provider=self.provider, places=places
        )


def load_zoo(path: Path) -> Zoo:
    """Read a zoo file.

    Raises
    ------
    ZooError
        If the file, one of its keys or a value is wrong (file and line are named), or if the provider's
        library is not installed.
    """
    raw = read_yaml(path)
    check_keys(raw, ("provider", "defaults", "rules"))
    if not isinstance(raw.get("provider"), str):
        lack = f"not {raw['provider']!r}" if "provider" in raw else "and is missing"
        message = f"'provider' says where the models come from, for example 'provider: timm', {lack}"
        raise raw.error("provider", message)
    rules = [] if raw.get("defaults") is None else [_as_rule(("*",), _mapping(raw, "defaults"))]
    rules += [_rule(item, raw) for item in _list(raw, "rules")]
    try:
        return Zoo(path, find_provider(raw["provider"], path.parent), tuple(rules))
    except ZooError as error:
        raise raw.error("provider", str(error)) from error.__cause__


def _rule(item: Any, parent: LinedDict) -> ModelRule:
    if not isinstance(item, LinedDict):
        raise parent.error("rules", f"a rule is a mapping with the key 'match', not {item!r}")
    check_keys(item, ("match", *SETTINGS))
    globs = item.get("match")
    globs = [globs] if isinstance(globs, str) else globs
    if not isinstance(globs, list) or not globs or not all(isinstance(glob, str) for glob in globs):
        raise item.error("match", "a rule needs 'match': a glob of model names, or a list of such")
    settings = LinedDict((key, value) for key, value in item.items() if key != "match")
    settings.path, settings.line, settings.lines = item.path, item.line, item.lines
    return _as_rule(tuple(globs), settings)


def _as_rule(globs: tuple[str, ...], raw: LinedDict) -> ModelRule:
    settings = parse_settings(raw)
    places = {name: f"{raw.path}:{line}" for name, line in raw["kwargs"].lines.items()} if "kwargs" in raw else {}
    return ModelRule(globs, settings, f"{raw.path}:{raw.line}", places)


def _mapping(raw: LinedDict, key: str) -> LinedDict:
    value = raw[key]
    if not isinstance(value, LinedDict):
        raise raw.error(key, f"{key!r} is a mapping of settings, not {value!r}")
    return value


def _list(raw: LinedDict, key: str) -> list[Any]:
    items = [] if raw.get(key) is None else raw[key]
    if not isinstance(items, list):
        raise raw.error(key, f"{key!r} is a list, each item with 'match', not {items!r}")
    return items
