"""The marker ``lens_zoo``: checks its arguments, and parametrizes a test with models of a zoo."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Any
from typing import NoReturn

import pytest

from pytest_torchlens.plugin.arguments import zoo_folders
from pytest_torchlens.plugin.hooked_case import with_hooks
from pytest_torchlens.plugin.selection import ZooWarning
from pytest_torchlens.plugin.selection import registered_zoos
from pytest_torchlens.records import nearest
from pytest_torchlens.records.options import Option
from pytest_torchlens.records.options import check_options
from pytest_torchlens.records.options import optional
from pytest_torchlens.records.options import whole
from pytest_torchlens.zoo import Zoo
from pytest_torchlens.zoo import ZooError
from pytest_torchlens.zoo import load_zoo
from pytest_torchlens.zoo.catalog import find_zoo_file
from pytest_torchlens.zoo.catalog import zoo_names

if TYPE_CHECKING:
    from collections.abc import Collection
    from collections.abc import Iterator
    from pathlib import Path

    from torch import nn

    from pytest_torchlens.zoo import ModelCase


def _are_globs(value: Any) -> bool:
    return all(isinstance(glob, str) for glob in value)


_GLOBS = "a model's name, a glob such as 'resnet*', or a list of these"
_COLLECTIONS = (str, list, tuple, set, frozenset)
_ARGUMENTS = {
    "zoo": Option("the name of a zoo", (object,)),  # `_zoo` knows the names
    "include": Option(f"{_GLOBS}, not empty", _COLLECTIONS, lambda value: value and _are_globs(value)),
    "exclude": Option(_GLOBS, _COLLECTIONS, _are_globs),
    "limit": optional(whole(1)),
}


@dataclass(frozen=True)
class ZooMark:
    """The arguments of a mark ``lens_zoo``."""

    zoo: object = None
    """Should be the name of a zoo."""
    include: str | Collection[str] = "*"
    exclude: str | Collection[str] = ()
    limit: int | None = None

    @classmethod
    def of(cls, mark: pytest.Mark) -> ZooMark:
        """Read and check them.

        Raises
        ------
        ValueError
            If an argument is unknown, or its value invalid.
        """
        if len(mark.args) > 1:
            raise ValueError(f"expected a keyword such as include={mark.args[1]!r}, got {mark.args[1]!r} alone")
        if mark.args and "zoo" in mark.kwargs:
            raise ValueError(f"expected one zoo, got {mark.args[0]!r} and {mark.kwargs['zoo']!r}")
        given = {**dict(zip(("zoo",), mark.args, strict=False)), **mark.kwargs}
        check_options(_ARGUMENTS, given)
        return cls(**given)


def _globs(value: str | Collection[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


ZOOS = pytest.StashKey[dict[str, Zoo]]()


@dataclass
class LensModel:
    """A built model of a zoo, and its inputs: ``lens_model.model(*lens_model.args, **lens_model.kwargs)``."""

    zoo: str
    name: str
    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test that requests ``lens_model`` with the models of its marks, each once."""
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
    """Fail a test that has the mark but does not request ``lens_model``."""
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
    found, exclude = _zoo(config, mark.zoo), _globs(mark.exclude)
    names = sorted(_included(found, _globs(mark.include)) - _excluded(found, exclude, config))
    if not names:
        raise ValueError(f"exclude leaves no model of zoo {found.name!r}: {', '.join(map(repr, exclude))}")
    return [with_hooks(found.case(name), config) for name in names[: mark.limit]]


def _included(zoo: Zoo, globs: tuple[str, ...]) -> set[str]:
    try:
        return {name for glob in globs for name in zoo.select(glob)}
    except ZooError as error:
        raise ValueError(f"include: {error}") from None


def _excluded(zoo: Zoo, globs: tuple[str, ...], config: pytest.Config) -> set[str]:
    """Return the names that match; warn of a glob without a match, as another library version may have that model."""
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
        raise ValueError(f"expected the name of a zoo, got {'none' if name is None else repr(name)}; {known}")
    if name not in zoos:
        zoo, colon, models = name.partition(":")
        path = find_zoo_file(zoo, *_places(config))
        if colon:
            raise ValueError(
                f"expected the name of a zoo, got {name!r}: write lens_zoo({zoo!r}, include={models.split(',')!r})"
            )
        zoos[name] = load_zoo(path)
    return zoos[name]


def _places(config: pytest.Config) -> tuple[tuple[Path, ...], list[Path]]:
    return zoo_folders(config), registered_zoos(config)
