"""Tells two calls of one function apart from one call that is spelled in two ways.

``conv2d(x, w, b, (1, 1), (1, 1))`` is ``conv2d(x, w, b, padding=1)``: a module spells its call in another way than a
person does.
"""

from __future__ import annotations

import ast
import re

from pytest_torchlens.baseline.snapshot import Step

_SIGNATURES = {
    "conv1d conv2d conv3d": "input weight bias stride=1 padding=0 dilation=1 groups=1",
    "linear": "input weight bias",
    "gelu": "input approximate='none'",
    "softplus": "input beta=1 threshold=20",
    "softmax logsoftmax cumsum squeeze unsqueeze": "input dim",
    "mean sum amax amin argmax argmin": "input dim keepdim=False",
    "clamp": "input min max",
    "pow": "input exponent",
    "maskedfill": "input mask value",
    "tril triu": "input diagonal=0",
    "topk": "input k dim=-1 largest=True sorted=True",
    "cat stack": "tensors dim=0",
    "chunk": "input chunks dim=0",
    "unbind": "input dim=0",
    "flatten": "input start_dim=0 end_dim=-1",
    "transpose": "input dim0 dim1",
    "where": "condition input other",
}
PARAMETERS = {
    name: [parameter.partition("=")[::2] for parameter in text.split()]
    for names, text in _SIGNATURES.items()
    for name in names.split()
}
"""Functions that take arguments by place or by name as their caller likes: names and texts of defaults."""
_PLACES = {
    function: {name: str(place) for place, (name, _) in enumerate(parameters)}
    for function, parameters in PARAMETERS.items()
}
_OF_OTHERS = {"input": "0"}
"""Of all other functions, where no other argument was given first."""
_IDLE = ("inplace", "_stacklevel")
"""Arguments on which no value depends; whether a call wrote in place is known apart from them."""


def place_of(step: Step, argument: str) -> str:
    """Return an argument's place as text, or that of an item of it; its name, if its place is not known or taken."""
    name, dot, item = argument.partition(".")
    place = _PLACES.get(step.function, _OF_OTHERS).get(name)
    return f"{place}{dot}{item}" if place and place not in _written(step) else argument


def _written(step: Step) -> set[str]:
    """Return the names and places by which a call's arguments were given."""
    arguments = [edge.argument for edge in (*step.parents, *step.reads)]
    return {re.split(r"[.=]", argument, maxsplit=1)[0] for argument in (*arguments, *step.arguments)}


def texts_of(step: Step) -> dict[str, str]:
    """Return the arguments of a call that are no tensors as they were written, by their places."""
    return {place_of(step, text.partition("=")[0]): text for text in step.arguments}


def reads_by_place(step: Step) -> dict[str, str]:
    """Return the parameters and buffers that a call reads by the places of its arguments."""
    return {place_of(step, edge.argument): edge.parent for edge in step.reads}


def other_arguments(before: Step, after: Step) -> set[str]:
    """Return the places of the arguments, apart from tensors, that have other values."""
    if before.arguments == after.arguments:
        return set()
    old, new = values_of(before), values_of(after)
    return {place for place in [*old, *new] if old.get(place) != new.get(place)}


def values_of(step: Step) -> dict[str, str]:
    """Return the values by their places, without defaults and what no value depends on."""
    texts = {place: text.partition("=")[2] for place, text in texts_of(step).items() if place not in _IDLE}
    found = {place: _value(step.function, text) for place, text in texts.items()}
    defaults = _defaults(step.function)
    return {place: value for place, value in found.items() if value not in ("None", defaults.get(place))}


def _defaults(function: str) -> dict[str, str]:
    places = _PLACES.get(function, {})
    return {places[name]: _value(function, text) for name, text in PARAMETERS.get(function, ()) if text}


def _value(function: str, text: str) -> str:
    """Return a value's text; of a list that of a tuple, and of equal sizes of a convolution that of one."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):  # no literal, or one of a damaged file
        return text
    if isinstance(value, list | tuple):
        is_one = function.startswith("conv") and len(set(map(str, value))) == 1
        return repr(value[0]) if is_one else repr(tuple(value))
    return repr(int(value)) if isinstance(value, float) and value.is_integer() else repr(value)
