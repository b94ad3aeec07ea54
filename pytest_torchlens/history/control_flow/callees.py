"""Which functions of the model's code called which, where the recording shows it."""

from __future__ import annotations

import ast
import functools
import itertools
from collections import Counter
from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Iterator
from types import CodeType

from pytest_torchlens.capture import Recording
from pytest_torchlens.capture.calls import Call
from pytest_torchlens.capture.calls import Escape
from pytest_torchlens.capture.calls import Frames
from pytest_torchlens.capture.calls import ModuleCall
from pytest_torchlens.history.control_flow.syntax import Function
from pytest_torchlens.history.control_flow.syntax import function_of
from pytest_torchlens.history.control_flow.syntax import node_at
from pytest_torchlens.history.control_flow.syntax import parent_of
from pytest_torchlens.history.source import by_identity
from pytest_torchlens.history.source import model_frames_of

_Chain = tuple[ModuleCall | None, Frames]
"""A module call, and the code positions below it."""


class Callees:
    """The functions that each call in the source ran, and the recursive functions.

    Parameters
    ----------
    recording
        The forward pass.
    """

    def __init__(self, recording: Recording) -> None:
        self._module_calls = recording.module_calls
        self._chains: dict[tuple[object, ...], _Chain] = {}
        self._forward: dict[int, CodeType] = {}
        calls: list[Call | ModuleCall | Escape] = [*recording.calls, *recording.module_calls, *recording.escapes]
        for call in calls:
            module = call.parent if isinstance(call, ModuleCall) else call.module
            self._chains.setdefault((module and module.address, by_identity(call.frames)), (module, call.frames))
            if module is not None and call.frames and id(module) not in self._forward:
                self._forward[id(module)] = _outermost(call.frames)
        self._recursive = set(self._find_recursive())
        self.next_uses: dict[ast.expr, tuple[ast.expr, ...]] = {}
        """Expressions that read what an expression's value was stored in or passed to; `uses_of_value` fills it."""

    def is_recursive(self, module: ModuleCall | None, code: CodeType) -> bool:
        """Return whether a function called itself while it ran in one module."""
        return (module and module.address, id(code)) in self._recursive

    def parameters(self, argument: ast.expr) -> Iterator[tuple[Function, str]]:
        """Yield the functions that were called with an argument, and the name of the parameter that received it."""
        place: ast.AST = argument
        if isinstance(above := parent_of(place), ast.keyword):
            place, above = above, parent_of(above)
        if not isinstance(above, ast.Call):
            return
        for code in self._codes_by_call.get(above, ()):
            function = function_of(code)
            name = _parameter(above, place, function) if function is not None else None
            if function is not None and name is not None:
                yield function, name

    def _find_recursive(self) -> Iterator[tuple[object, int]]:
        for module, frames in self._chains.values():
            times = Counter(map(id, frames[::2]))
            yield from ((module and module.address, code) for code, often in times.items() if often > 1)
        for call in self._module_calls:
            if any(above.address == call.address for above in itertools.islice(call.stack(), 1, None)):
                yield call.address, id(self._forward.get(id(call)))

    @functools.cached_property
    def _codes_by_call(self) -> dict[ast.AST, dict[CodeType, None]]:
        codes: dict[ast.AST, dict[CodeType, None]] = defaultdict(dict)
        for caller, code in self._pairs():
            if (node := node_at(*caller)) is not None:
                codes[node][code] = None
        return codes

    def _pairs(self) -> Iterator[tuple[tuple[CodeType, int], CodeType]]:
        """Yield each pair of a caller, as code and instruction, and the code that it called."""
        for _, frames in self._chains.values():
            for inner, outer in itertools.pairwise(model_frames_of(frames)):
                yield outer, inner[0]
        for call in self._module_calls:
            caller, code = next(model_frames_of(call.frames), None), self._forward.get(id(call))
            if caller is not None and code is not None:
                yield caller, code


def _outermost(frames: Frames) -> CodeType:
    code = frames[-2]
    assert isinstance(code, CodeType)  # noqa: S101 - codes and positions alternate
    return code


def _parameter(call: ast.Call, argument: ast.AST, function: Function) -> str | None:
    """Return the name of the parameter that takes an argument of a call; None if a starred argument hides it."""
    if isinstance(argument, ast.keyword):
        return argument.arg
    names = [parameter.arg for parameter in (*function.args.posonlyargs, *function.args.args)][_is_method(function) :]
    before = _before(call.args, argument)
    return (
        names[len(before)] if len(before) < len(names) and not any(isinstance(b, ast.Starred) for b in before) else None
    )


def _is_method(function: Function) -> bool:
    """Return whether a function receives ``self`` or ``cls`` before its arguments."""
    static = any(getattr(part, "id", "") == "staticmethod" for part in getattr(function, "decorator_list", ()))
    return isinstance(parent_of(function), ast.ClassDef) and not static


def _before(arguments: Iterable[ast.expr], argument: ast.AST) -> list[ast.expr]:
    return list(itertools.takewhile(lambda other: other is not argument, arguments))
