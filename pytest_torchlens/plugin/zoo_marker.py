"""``@pytest.mark.lens_zoo``: models of a zoo as parameters of a test."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING
from typing import Any

import pytest

from pytest_torchlens.plugin.arguments import zoo_folders
from pytest_torchlens.plugin.hooks import hooked
from pytest_torchlens.plugin.selection import registered_zoos
from pytest_torchlens.zoo import Zoo
from pytest_torchlens.zoo import ZooError
from pytest_torchlens.zoo import load_zoo
from pytest_torchlens.zoo.catalog import find_zoo_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from pytest_torchlens.zoo import ModelCase

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
    """Give a test that asks for ``lens_model`` the models of its marks; one that has no mark is told how to."""
    marks = list(metafunc.definition.iter_markers("lens_zoo"))
    if not marks:
        pytest.fail(f"{metafunc.definition.nodeid}: lens_model needs @pytest.mark.lens_zoo('ZOO', …)", pytrace=False)
    try:
        cases = [case for mark in marks for case in _chosen(metafunc.config, *mark.args, **mark.kwargs)]
    except (ZooError, TypeError, ValueError) as error:
        said = str(error).removeprefix("_chosen() ")
        pytest.fail(f"{metafunc.definition.nodeid}: lens_zoo: {said}", pytrace=False)
    several = len({case.zoo for case in cases}) > 1
    parameters = [pytest.param(case, marks=_marks(case), id=_id(case, several)) for case in cases]
    metafunc.parametrize("lens_model", parameters, indirect=True)


def loaned(case: ModelCase) -> Iterator[LensModel]:
    """Build a model for as long as one test needs it, and put back what it changed in the process."""
    from pytest_torchlens.run.left_as_found import left_as_found

    with left_as_found():
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


def _chosen(
    config: pytest.Config,
    zoo: str,
    *,
    include: str | list[str] | tuple[str, ...] = "*",
    exclude: str | list[str] | tuple[str, ...] = (),
    limit: int | None = None,
) -> list[ModelCase]:
    """Return the models that a mark's arguments name, sorted."""
    if limit is not None and (type(limit) is not int or limit < 1):
        raise ValueError(f"limit is {limit!r}, not a number of models from 1")
    found = _zoo(config, zoo)
    wanted = {name for glob in _globs(include) for name in found.select(glob)}
    names = sorted(name for name in wanted if not any(fnmatchcase(name, glob) for glob in _globs(exclude)))
    if not names:
        raise ValueError(f"exclude={exclude!r} leaves no model of zoo {zoo!r}")
    return [hooked(found.case(name), config) for name in names[:limit]]


def _globs(value: str | list[str] | tuple[str, ...]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _zoo(config: pytest.Config, name: str) -> Zoo:
    zoos = config.stash.setdefault(ZOOS, {})
    if name not in zoos:
        zoos[name] = load_zoo(find_zoo_file(name, zoo_folders(config), registered_zoos(config)))
    return zoos[name]
