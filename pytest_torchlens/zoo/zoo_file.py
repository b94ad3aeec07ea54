"""A zoo file: which models exist, and how each is built and called."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_torchlens.records import nearest
from pytest_torchlens.zoo.case import ModelCase
from pytest_torchlens.zoo.catalog import is_glob
from pytest_torchlens.zoo.catalog import matches
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
    """Settings of the models that the globs match."""

    globs: tuple[str, ...]
    settings: dict[str, Any]
    place: str = ""
    """File and line."""
    kwarg_places: dict[str, str] = field(default_factory=dict)
    """File and line of each constructor argument."""


@dataclass(frozen=True)
class Zoo:
    """The models of one zoo file."""

    path: Path
    provider: Provider
    rules: tuple[ModelRule, ...]
    """The defaults first; if two rules match, the later wins."""

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return self.path.stem

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All models, sorted."""
        return tuple(sorted(set(self.provider.names())))

    @cached_property
    def _name_set(self) -> frozenset[str]:
        return frozenset(self.names)

    def check_name(self, name: str) -> str:
        """Return `name` if a model has that name.

        Raises
        ------
        ZooError
            If there is none; the message suggests the nearest names.
        """
        if name not in self.names:
            raise ZooError(f"zoo {self.name!r} has no model {name!r}: {nearest(name, self.names)}")
        return name

    def matching_names(self, glob: str) -> list[str]:
        """Return the models that a glob matches, sorted; a glob that is an exact name matches that model only."""
        return [name for name in self.names if matches(name, glob, self._name_set)]

    def select(self, pattern: str) -> list[str]:
        """Return the names that a glob matches, or the one name.

        Raises
        ------
        ZooError
            If there is none; the message suggests the nearest names.
        """
        if not is_glob(pattern):
            return [self.check_name(pattern)]
        if found := self.matching_names(pattern):
            return found
        raise ZooError(self._no_match(pattern))

    def _no_match(self, glob: str) -> str:
        """Return the message for a glob that matches no model; most likely it is misspelled."""
        return f"no model of zoo {self.name!r} matches {glob!r}: {nearest(glob, self.names)}"

    def unused_globs(self) -> list[str]:
        """Return a message for each glob of a rule that matches no model."""
        pairs = [(rule, glob) for rule in self.rules for glob in rule.globs]
        return [f"{rule.place}: {self._no_match(glob)}" for rule, glob in pairs if not self.matching_names(glob)]

    def case(self, name: str) -> ModelCase:
        """Return the model `name` with its settings from the file; it is not built yet."""
        merged: dict[str, Any] = {}
        kwarg_places: dict[str, str] = {}
        for rule in self.rules:
            if any(matches(name, glob, self._name_set) for glob in rule.globs):
                kwargs = {**merged.get("kwargs", {}), **rule.settings.get("kwargs", {})}
                checks = {**merged.get("checks", {}), **rule.settings.get("checks", {})}
                merged = {**merged, **rule.settings, "kwargs": kwargs, "checks": checks}
                kwarg_places |= rule.kwarg_places
        settings = Settings(**merged)
        return ModelCase(
            file=self.path,
            zoo=self.name,
            name=name,
            settings=settings,
            provider=self.provider,
            kwarg_places=kwarg_places,
        )


def load_zoo(path: Path) -> Zoo:
    """Read a zoo file.

    Raises
    ------
    ZooError
        If the file, a key or a value is wrong (the message names file and line), or the provider's
        library is not installed.
    """
    raw = read_yaml(path)
    check_keys(raw, ("provider", "defaults", "rules"))
    if not isinstance(raw.get("provider"), str):
        got = repr(raw["provider"]) if "provider" in raw else "a file without it"
        raise raw.error("provider", f"provider: expected the source of the models, such as timm, got {got}")
    rules = [] if raw.get("defaults") is None else [_as_rule(("*",), _mapping(raw, "defaults"))]
    rules += [_rule(item, raw) for item in _list(raw, "rules")]
    try:
        return Zoo(path, find_provider(raw["provider"], path.parent), tuple(rules))
    except ZooError as error:
        raise raw.error("provider", str(error)) from error.__cause__


def _rule(item: Any, parent: LinedDict) -> ModelRule:
    if not isinstance(item, LinedDict):
        raise parent.error("rules", f"rules: expected a mapping with the key 'match', got {item!r}")
    check_keys(item, ("match", *SETTINGS))
    globs = item.get("match")
    globs = [globs] if isinstance(globs, str) else globs
    if not isinstance(globs, list) or not globs or not all(isinstance(glob, str) for glob in globs):
        got = repr(item["match"]) if "match" in item else "a rule without it"
        raise item.error("match", f"match: expected a glob of model names, or a list of globs, got {got}")
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
        raise raw.error(key, f"{key}: expected a mapping of settings, got {value!r}")
    return value


def _list(raw: LinedDict, key: str) -> list[Any]:
    items = [] if raw.get(key) is None else raw[key]
    if not isinstance(items, list):
        raise raw.error(key, f"{key}: expected a list of rules, got {items!r}")
    return items
