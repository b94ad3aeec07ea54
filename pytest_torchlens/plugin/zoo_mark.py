"""What a mark ``lens_zoo`` says, checked: its arguments alone, without any zoo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Any

from pytest_torchlens.records import nearest

if TYPE_CHECKING:
    import pytest

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
        raise ValueError(f"limit is {value!r}, not a number of models from 1")
    return value
