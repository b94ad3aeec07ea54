"""Prints recorded calls as the Python code that a person would write: ``y = torch.relu(x)``."""

from __future__ import annotations

import math
import operator
import re
import types
from collections.abc import Callable
from collections.abc import Iterable
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from typing import Any

import torch
from torch.overrides import resolve_name

from pytest_torchlens.capture.leaves import substitute

WIDTH = 100
_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "truediv": "/",
    "floordiv": "//",
    "mod": "%",
    "pow": "**",
    "matmul": "@",
    "and": "&",
    "or": "|",
    "xor": "^",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
}
_CASTS = (".half", ".bfloat16", ".float")
_PREFIX = {"__neg__": "-", "__invert__": "~"}


class UnprintableError(ValueError):
    """A call has no form as code of torch alone; the message says why."""


@dataclass(frozen=True)
class Name:
    """An expression in the place of a tensor: ``x``, ``y[0]``."""

    text: str


@dataclass(frozen=True)
class Statement:
    """One call: its function, its arguments with a `Name` for each tensor, and the variable for what it returns.

    Attributes
    ----------
    function
        How the function is called: ``"torch.relu"``; ``".view"`` for a method, ``"=T"`` for a property.
    target
        The variable; empty if the call only overwrites its arguments.
    before
        A line that precedes it: the state of the random generator.
    """

    function: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    target: str = ""
    before: str = ""

    def lines(self, *, returns: bool = False) -> list[str]:
        """Return its lines of code, without indentation; with `returns` they return what it computes."""
        line = self._line()
        short = f"return {line}" if returns else f"{self.target} = {line}" if self.target else line
        whole = [short] if len(short) <= WIDTH or "(" not in short else self._wrapped(short)
        return [self.before, *whole] if self.before else whole

    def with_numbers(self, change: Callable[[int], int]) -> Statement:
        """Return it with other whole numbers among its arguments."""

        def changed(leaf: Any) -> Any:
            return change(leaf) if type(leaf) is int else leaf

        args, kwargs = substitute(self.args, changed), substitute(self.kwargs, changed)
        return Statement(self.function, args, kwargs, self.target, self.before)

    def in_float64(self) -> Statement:
        """Return it with float64 in the place of other floating-point types that it names."""

        def widened(leaf: Any) -> Any:
            return torch.float64 if isinstance(leaf, torch.dtype) and leaf.is_floating_point else leaf

        function = ".double" if self.function in _CASTS else self.function
        return replace(
            self, function=function, args=substitute(self.args, widened), kwargs=substitute(self.kwargs, widened)
        )

    def numbers(self) -> set[int]:
        """Return the whole numbers among its arguments."""
        found: set[int] = set()

        def note(number: int) -> int:
            found.add(number)
            return number

        self.with_numbers(note)
        return found

    def _line(self) -> str:
        name = self.function.lstrip(".=")
        if self.function.startswith("="):
            return f"{literal(self.args[0])}.{name}"
        if not self.function.startswith("."):
            return f"{self.function}({', '.join(self._arguments(self.args))})"
        if len(self.args) > 1 and name in ("__getitem__", "__setitem__"):
            place = f"{literal(self.args[0])}[{_index(self.args[1])}]"
            return place if name == "__getitem__" else f"{place} = {literal(self.args[2])}"
        if line := self._operator(name):
            return line
        return f"{literal(self.args[0])}.{name}({', '.join(self._arguments(self.args[1:]))})"

    def _operator(self, name: str) -> str:
        """Return a call of a special method as an operator; ``""`` if there is none."""
        if name in _PREFIX:
            return f"{_PREFIX[name]}{literal(self.args[0])}"
        found = re.fullmatch(r"__([ir]?)(\w+?)__", name)
        symbol = next((_INFIX[key] for key in (name.strip("_"), found[2] if found else "") if key in _INFIX), "")
        if not found or not symbol or len(self.args) != 2 or self.kwargs:  # noqa: PLR2004 - a binary operator
            return ""
        one, other = (f"({text})" if text.startswith("-") else text for text in map(literal, self.args))
        if name.strip("_") in _INFIX:
            return f"{one} {symbol} {other}"
        if found[1] == "r":
            return f"{other} {symbol} {one}"
        return f"{one} {symbol}= {other}" if one.isidentifier() else ""

    def _arguments(self, args: Iterable[Any]) -> list[str]:
        return [*map(literal, args), *(f"{name}={literal(value)}" for name, value in self.kwargs.items())]

    def _wrapped(self, line: str) -> list[str]:
        """Return a long call with its arguments on a line of their own, or on one line each."""
        skipped = 1 if self.function.startswith(".") else 0
        arguments = self._arguments(self.args[skipped:])
        together = ", ".join(arguments)
        head, found, _ = line.partition(f"({together})")
        if len(together) <= WIDTH:
            return [f"{head}(", f"    {together}", ")"] if found else [line]
        return [f"{head}(", *(f"    {argument}," for argument in arguments), ")"] if found else [line]


def function_text(func: Any, name: str) -> str:
    """Return how a function is called, as `Statement.function` has it.

    Raises
    ------
    UnprintableError
        If it is not a function of torch.
    """
    if isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return _operator_text(func)
    if isinstance(func, types.MethodWrapperType) and func.__name__ == "__get__":
        descriptor: Any = func.__self__
        return f"={descriptor.__name__}"
    text = str(resolve_name(func) or "")
    if _is(text, func):
        kind, _, method = text.rpartition(".")
        return f".{method}" if kind == "torch.Tensor" else text
    if func is getattr(torch.Tensor, name, None):
        return f".{name}"
    for place in ("torch", "torch.nn.functional", "torch._C._nn", "torch._VF"):
        if _is(f"{place}.{name}", func):
            return f"{place}.{name}"
    raise UnprintableError(f"{name} is not a function of torch")


def _operator_text(func: Any) -> str:
    library = str(func).partition(".")[0]
    if library not in ("aten", "prims"):
        raise UnprintableError(f"torch.ops.{func} is an operator of the library {library!r}, not of torch")
    return f"torch.ops.{func}"


def _is(text: str, func: Any) -> bool:
    """Return whether a dotted name is that of the function."""
    try:
        return text.startswith("torch.") and bool(operator.attrgetter(text.removeprefix("torch."))(torch) == func)
    except AttributeError:
        return False


def literal(value: Any) -> str:
    """Return an argument as code."""
    kind = tuple if hasattr(type(value), "_fields") else type(value)
    if kind not in _LITERALS:
        raise UnprintableError(f"an argument is of class {kind.__name__}")
    return _LITERALS[kind](value)


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(map(literal, values))


def _tuple(value: tuple[Any, ...]) -> str:
    return f"({_listed(value)}{',' * (len(value) == 1)})"


def _quoted(value: str) -> str:
    return repr(value) if '"' in value or "\\" in value or not value.isprintable() else f'"{value}"'


_LITERALS: dict[type, Callable[[Any], str]] = {
    **dict.fromkeys((bool, int, complex, type(None)), repr),
    **dict.fromkeys((torch.dtype, torch.memory_format, torch.layout), str),
    Name: lambda name: str(name.text),
    float: lambda number: repr(number) if math.isfinite(number) else f'float("{number}")',
    str: _quoted,
    type(...): lambda dots: "...",
    torch.device: lambda device: f'"{device}"',
    tuple: _tuple,
    torch.Size: _tuple,
    list: lambda values: f"[{_listed(values)}]",
    dict: lambda pairs: f"{{{', '.join(f'{literal(key)}: {literal(item)}' for key, item in pairs.items())}}}",
    slice: lambda part: f"slice({_listed((part.start, part.stop, part.step))})",
}


def _index(value: Any) -> str:
    """Return what stands in brackets."""
    if type(value) is tuple and value:
        return ", ".join(map(_index, value)) + "," * (len(value) == 1)
    if type(value) is slice:
        start, stop, step = (("" if part is None else literal(part)) for part in (value.start, value.stop, value.step))
        return f"{start}:{stop}" + (f":{step}" if step else "")
    return literal(value)
