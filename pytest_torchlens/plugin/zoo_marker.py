"""The marker ``lens_zoo``: checks its arguments, and parametrizes a test with models of a zoo."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Any
from typing import NoReturn

import pytest

from pytest_torchlens.plugin.arguments import zoo_folders
from pytest_torchlens.plugin.hooks import with_hooks
from pytest_torchlens.plugin.selection import ZooWarning
from pytest_torchlens.plugin.selection import registered_zoos
from pytest_torchlens.records import nearest
from pytest_torchlens.zoo import Zoo
from pytest_torchlens.zoo import ZooError
from pytest_torchlens.zoo import load_zoo
from pytest_torchlens.zoo.catalog import find_zoo_file
from pytest_torchlens.zoo.catalog import zoo_names

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import nn

    from pytest_torchlens.zoo import ModelCase


_ARGUMENTS = ("zoo", "include", "exclude", "limit")


@dataclass(frozen=True)
class ZooMark:
    """The arguments of a mark ``lens_zoo``."""

    zoo: object
    """What shall be the name of a zoo; None where none is given."""
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    limit: int | None

    @classmethod
    def of(cls, mark: pytest.Mark) -> ZooMark:
        """Read and check them.

        Raises
        ------
        ValueError
            If there is no such argument, or it takes no such value.
        """
        given = _named(mark)
        return cls(
            zoo=given.get("zoo"),
            include=_globs("include", given.get("include", "*"), empty="leave it out for all models"),
            exclude=_globs("exclude", given.get("exclude", ())),
            limit=_count(given.get("limit")),
        )


def _named(mark: pytest.Mark) -> dict[str, Any]:
    for name in mark.kwargs:
        if name not in _ARGUMENTS:
            raise ValueError(f"it takes no {name!r}: {nearest(name, _ARGUMENTS)}")
    if len(mark.args) > 1:
        raise ValueError(f"{mark.args[1]!r} stands without a name: say include={mark.args[1]!r}")
    if mark.args and "zoo" in mark.kwargs:
        raise ValueError(f"zoo is given twice, {mark.args[0]!r} and {mark.kwargs['zoo']!r}: a mark is about one")
    return {**dict(zip(_ARGUMENTS, mark.args, strict=False)), **mark.kwargs}


def _globs(name: str, value: Any, *, empty: str = "") -> tuple[str, ...]:
    globs = (value,) if isinstance(value, str) else value
    if not isinstance(globs, list | tuple | set | frozenset) or not all(isinstance(glob, str) for glob in globs):
        raise ValueError(f"{name} is {value!r}; it takes a model's name or a glob, as 'resnet*', or a list of such")
    if empty and not globs:
        raise ValueError(f"{name} is {value!r} and names no model: {empty}")
    return tuple(globs)


def _count(value: Any) -> int | None:
    if value is not None and (type(value) is not int or value < 1):
        raise ValueError(f"limit: expected a positive number of models, got {value!r}")
    return value


ZOOS = pytest.StashKey[dict[str, Zoo]]()


@dataclass
class LensModel:
    """A model of a zoo, built, and what it is called with: ``case.model(*case.args, **case.kwargs)``."""

    zoo: str
    name: str
    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Give a test that asks for ``lens_model`` the models of its marks, each once."""
    marks = list(metafunc.definition.iter_markers("lens_zoo"))
    if not marks:
        _refuse(metafunc, "lens_model needs @pytest.mark.lens_zoo('ZOO', …)")
    try:
        chosen = [case for mark in marks for case in _chosen(metafunc.config, ZooMark.of(mark))]
    except ValueError as error:
        _refuse(metafunc, f"lens_zoo: {error}")
    cases = {(case.zoo, case.name): case for case in chosen}.values()
    several = len({case.zoo for case in cases}) > 1
    parameters = [pytest.param(case, marks=_marks(case), id=_id(case, several)) for case in cases]
    metafunc.parametrize("lens_model", parameters, indirect=True)


def reject_unused_mark(metafunc: pytest.Metafunc) -> None:
    """Fail a test whose mark does nothing."""
    name = metafunc.definition.name
    _refuse(metafunc, f"lens_zoo: the test does not ask for the models that it names: def {name}(lens_model)")


def _refuse(metafunc: pytest.Metafunc, why: str) -> NoReturn:
    raise pytest.fail.Exception(f"{metafunc.definition.nodeid}: {why}", pytrace=False) from None


def lend_model(case: ModelCase) -> Iterator[LensModel]:
    """Build a model for as long as one test needs it."""
    model = case.build()
    args, kwargs = case.make_inputs(model)
    yield LensModel(case.zoo, case.name, model, args, kwargs)
    del model, args, kwargs
    gc.collect()


def _id(case: ModelCase, several: bool) -> str:
    return f"{case.zoo}:{case.name}" if several else case.name


def _marks(case: ModelCase) -> list[pytest.MarkDecorator]:
    settings = case.settings
    found = [getattr(pytest.mark, name) for name in ("lens", *settings.marks)]
    if settings.skip:
        found.append(pytest.mark.skip(reason=settings.skip))
    if settings.xfail:
        found.append(pytest.mark.xfail(reason=settings.xfail, strict=True))
    return found


def _chosen(config: pytest.Config, mark: ZooMark) -> list[ModelCase]:
    """Return the models that a mark names, sorted."""
    found = _zoo(config, mark.zoo)
    names = sorted(_included(found, mark.include) - _excluded(found, mark.exclude, config))
    if not names:
        raise ValueError(f"exclude leaves no model of zoo {found.name!r}: {', '.join(map(repr, mark.exclude))}")
    return [with_hooks(found.case(name), config) for name in names[: mark.limit]]


def _included(zoo: Zoo, globs: tuple[str, ...]) -> set[str]:
    try:
        return {name for glob in globs for name in zoo.select(glob)}
    except ZooError as error:
        raise ValueError(f"include: {error}") from None


def _excluded(zoo: Zoo, globs: tuple[str, ...], config: pytest.Config) -> set[str]:
    """Return the names that fit; of a glob that fits none it is only told, for another version may have that model."""
    names: set[str] = set()
    for glob in globs:
        try:
            names.update(zoo.select(glob))
        except ZooError as error:
            _warn(f"exclude: {error}", config)
    return names


def _warn(message: str, config: pytest.Config) -> None:
    try:
        config.issue_config_time_warning(ZooWarning(f"lens_zoo: {message}"), stacklevel=2)
    except ZooWarning:  # by -W error
        raise ValueError(message) from None


def _zoo(config: pytest.Config, name: object) -> Zoo:
    zoos = config.stash.setdefault(ZOOS, {})
    if not isinstance(name, str):
        known = nearest(str(name), zoo_names(*_places(config)))
        raise ValueError(f"{'it names no zoo' if name is None else f'zoo is {name!r}, not the name of one'}: {known}")
    if name not in zoos:
        zoo, colon, models = name.partition(":")
        path = find_zoo_file(zoo, *_places(config))
        if colon:
            raise ValueError(f"no zoo is called {name!r}: say lens_zoo({zoo!r}, include={models.split(',')!r})")
        zoos[name] = load_zoo(path)
    return zoos[name]


def _places(config: pytest.Config) -> tuple[tuple[Path, ...], list[Path]]:
    return zoo_folders(config), registered_zoos(config)
