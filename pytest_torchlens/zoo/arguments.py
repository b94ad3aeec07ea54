"""What is wrong with an argument of a zoo file that a model's constructor does not take."""

from __future__ import annotations

import inspect
import re
import traceback
from types import FunctionType
from typing import TYPE_CHECKING
from typing import Any

from pytest_torchlens.records import nearest
from pytest_torchlens.zoo.errors import ZooError

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping

_REFUSED = re.compile(r"(?P<callee>\S+?)(\.__init__)?\(\) got an unexpected keyword argument '(?P<name>\w+)'")
_BY_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def refused_argument(
    error: TypeError, model: str, kwargs: dict[str, Any], places: Mapping[str, str]
) -> ZooError | None:
    """Return an error that points at the line of the argument which a constructor refused; None if none of ours was."""
    found = _REFUSED.search(str(error))
    if found is None or found["name"] not in kwargs:
        return None
    name = found["name"]
    place = f"{places[name]}: " if name in places else ""
    known = _parameters(_callee(error, found["callee"]))
    hint = f": {nearest(name, known)}" if known else ""
    return ZooError(f"{place}'kwargs' of model {model!r}: {error}{hint}")


def _callee(error: TypeError, qualified_name: str) -> Callable[..., Any] | None:
    """Return what was called, from the names that the code which called it can see."""
    *_, (caller, _) = traceback.walk_tb(error.__traceback__)
    seen = (*caller.f_locals.values(), *caller.f_globals.values())
    called = (
        value for value in seen if isinstance(value, type | FunctionType)
    )  # what else may answer is imported by that
    return next((value for value in called if value.__qualname__ == qualified_name), None)


def _parameters(callee: Callable[..., Any] | None) -> list[str]:
    try:
        known = inspect.signature(callee).parameters if callee else {}
    except (TypeError, ValueError):  # of a builtin that does not tell
        known = {}
    return [name for name, parameter in known.items() if parameter.kind in _BY_KEYWORD]
