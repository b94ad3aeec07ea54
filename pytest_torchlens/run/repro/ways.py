"""How the calls of a program run another way: each gives the text of two functions, ``plain`` and ``other``."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from typing import TYPE_CHECKING
from typing import Any
from typing import ClassVar
from typing import NamedTuple

import torch

from pytest_torchlens.run.repro.program import Program
from pytest_torchlens.run.repro.script import TENSORS_TEXT
from pytest_torchlens.run.repro.script import definition_text
from pytest_torchlens.run.repro.script import layout_lines
from pytest_torchlens.run.repro.script import settings_lines
from pytest_torchlens.run.repro.script import signature
from pytest_torchlens.run.repro.statements import Statement

if TYPE_CHECKING:
    from typing_extensions import Self

    from pytest_torchlens.checks.side_by_side import Fit

INSIDE = "inside"
"""Name of the input that tells which elements are inside."""
_OF_A_FUNCTION = ("gradients", "inference mode", "autocast")
"""Settings that a decorator sets."""


_ENDING = f"""if __name__ == "__main__":
    tensors = {TENSORS_TEXT}
    expected = plain(**{{name: one.clone() for name, one in tensors.items()}})
    try:
        got = other(**tensors)
    except Exception as error:
        sys.exit(f"torch {{torch.__version__}}: {{type(error).__name__}}: {{error}}")
    if expected.shape != got.shape:
        sys.exit(f"{{tuple(got.shape)}}, expected {{tuple(expected.shape)}}")
    expected, got = expected.detach().cpu().to(WIDE), got.detach().cpu().to(WIDE)
    wrong = ~torch.isclose(got, expected, rtol=0, atol=LIMIT, equal_nan=True)
    largest = (got - expected)[wrong].abs().max() if wrong.any() else 0.0
    found = f"{{wrong.sum()}} of {{wrong.numel()}} values differ from those of the plain run by more than {{LIMIT}}"
    print(f"torch {{torch.__version__}}: {{found}}, at most by {{largest:.2g}}")
    sys.exit(int(wrong.any()))
"""


class _Both:
    """What the ways have in common."""

    together = False

    def settings(self, program: Program) -> Mapping[str, str]:
        """Return the settings of the process that hold for both functions."""
        return program.settings

    def ending(self, program: Program, *, is_complex: bool) -> str:
        """Return the code that compares the results of both functions."""
        return _ENDING.replace("WIDE", "torch.complex128" if is_complex else "torch.float64")

    def with_result(self, place: int) -> Self:
        """Return the way of a program with one of its results alone."""
        return self


class Part(NamedTuple):
    """A part of a tensor: a slice of each dimension up to the last that is not taken whole."""

    slices: tuple[slice, ...] = ()

    @property
    def text(self) -> str:
        """The part as code: ``"[:, :1]"``; empty for the whole."""
        return "" if self == WHOLE else f"[{', '.join(map(_slice_text, self.slices))}]"

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the part of a tensor."""
        return tensor if self == WHOLE else tensor[self.slices]


WHOLE = Part()


def _slice_text(part: slice) -> str:
    start, stop, step = ("" if one is None else one for one in (part.start, part.stop, part.step))
    return f"{start}:{stop}" + (f":{step}" if step else "")


@dataclass(frozen=True)
class Beside(_Both):
    """The same calls on a part of the inputs, in another layout of them, or under other settings.

    Attributes
    ----------
    plain
        The calls of the plain run, on inputs of its own.
    parts
        Which part of an input of the other run that of the plain one is, by name.
    results
        The same of the results, in the other run.
    """

    plain: Program
    parts: Mapping[str, Part] = field(default_factory=dict)
    results: Sequence[Part] = ()
    same_statements: bool = True
    """Whether both runs make the calls with the same arguments."""

    def settings(self, program: Program) -> Mapping[str, str]:
        """Return the settings that both runs share."""
        own = self.plain.settings
        return {name: word for name, word in program.settings.items() if own.get(name) == word}

    def functions(self, program: Program) -> str:
        """Return both functions."""
        plain = replace(self.plain, inputs=program.inputs, statements=self._statements(program))
        cut = tuple(f"{text}{part.text}" for text, part in zip(program.results, self.results, strict=True))
        other = replace(program, results=cut)
        texts = definition_text(plain, "plain", self._own(plain, program), [*self._layouts(program)])
        return f"{texts}\n\n\n{definition_text(other, 'other', self._own(program, plain))}"

    def _statements(self, program: Program) -> tuple[Statement, ...]:
        return program.statements if self.same_statements else self.plain.statements

    def _own(self, program: Program, beside: Program) -> list[str]:
        """Return the lines for the settings of one run that the other one does not have."""
        words = program.settings
        names = [name for name in words if words[name] != beside.settings.get(name) and name not in _OF_A_FUNCTION]
        return [*settings_lines({name: words[name] for name in names}, defaults=False)]

    def _layouts(self, program: Program) -> list[str]:
        lines = []
        for name, tensor in program.inputs.items():
            part, like = self.parts.get(name, WHOLE), self.plain.inputs[name]
            as_stored = part == WHOLE and like.is_contiguous()
            lines += [*layout_lines(program, {name: tensor.contiguous() if as_stored else tensor})]
            if part != WHOLE:
                lines.append(f"{name} = {name}{part.text}")
            view = part.of(tensor)
            if not as_stored and like.is_contiguous() and not view.is_contiguous():
                lines.append(f"{name} = {name}.contiguous()")
            elif not like.is_contiguous() and like.stride() != view.stride():
                memory = f"torch.empty_strided({tuple(like.shape)}, {like.stride()}, dtype={name}.dtype)"
                lines.append(f"{name} = {memory}.copy_({name})")
        return lines

    def with_result(self, place: int) -> Self:
        """Return the way of one result."""
        return replace(self, plain=self.plain.with_result(place), results=(self.results[place],))


def parts_like(tensor: torch.Tensor, like: torch.Tensor, fit: Fit) -> list[Part]:
    """Return the parts of a tensor that may be another one, by its shape and a fit; the likeliest first."""
    if tensor.shape == like.shape:
        return [WHOLE]
    places = torch.arange(tensor.numel()).view(tensor.shape)
    views = [view for view in fit(places, like) if view.dim() == tensor.dim() and view.numel()]
    return [Part(_without_whole([_slice(view, dim, tensor.shape) for dim in range(view.dim())])) for view in views]


def _slice(places: torch.Tensor, dim: int, shape: torch.Size) -> slice:
    """Return the slice of a dimension that a view takes, from the places of its elements in the whole."""
    first = places.select(dim, 0).flatten()[0]
    at = [int(torch.unravel_index(place, shape)[dim]) for place in (first, *_along(places, dim))]
    step = at[1] - at[0] if len(at) > 1 else 1
    reaches_end = at[-1] + step >= shape[dim]
    return slice(at[0] or None, None if reaches_end else at[-1] + 1, None if step == 1 else step)


def _along(places: torch.Tensor, dim: int) -> list[torch.Tensor]:
    """Return the second and the last place along a dimension; none if it has one element."""
    line = places[(0,) * dim + (slice(None),) + (0,) * (places.dim() - dim - 1)]
    return [line[1], line[-1]] if len(line) > 1 else []


def _without_whole(slices: list[slice]) -> tuple[slice, ...]:
    """Return slices up to the last that does not take the whole of its dimension."""
    cut = [number for number, one in enumerate(slices) if one != slice(None)]
    return tuple(slices[: cut[-1] + 1]) if cut else ()


@dataclass(frozen=True)
class Compiled(_Both):
    """The calls compiled by `torch.compile`."""

    options: Mapping[str, Any]
    gradients: bool = False

    def functions(self, program: Program) -> str:
        """Return both functions."""
        given = "".join(f", {name}={value!r}" for name, value in self.options.items()).replace("'", '"')
        if not self.gradients:
            return f"{definition_text(program, 'plain')}\n\n\nother = torch.compile(plain{given})"
        names = ", ".join(program.inputs)
        gradients = [
            *signature("gradients", ["function", *program.inputs]),
            f"    results = function({names})",
            "    results = results if isinstance(results, tuple) else (results,)",
            "    total = sum((one * torch.linspace(-1, 1, one.numel()).view_as(one)).sum() for one in results)",
            f"    found = torch.autograd.grad(total, [{', '.join(program.leaves)}])",
            "    return torch.cat([one.flatten() for one in found])",
            "",
            "",
            *signature("plain", program.inputs),
            *(f"    {name}.requires_grad_()" for name in program.leaves),
            f"    return gradients(piece, {names})",
            "",
            "",
            *signature("other", program.inputs),
            *(f"    {name}.requires_grad_()" for name in program.leaves),
            f"    return gradients(torch.compile(piece{given}), {names})",
        ]
        return "\n".join([definition_text(replace(program, leaves=()), "piece"), "", "", *gradients])


@dataclass(frozen=True)
class ExportedAlone(_Both):
    """The calls as a program of `torch.export`."""

    def functions(self, program: Program) -> str:
        """Return both functions."""
        names = ", ".join(program.inputs)
        lines = [
            "class Piece(torch.nn.Module):",
            *(f"    {line}" for line in signature("forward", ["self", *program.inputs])),
            f"        return plain({names})",
            "",
            "",
            *signature("other", program.inputs),
            f"    program = torch.export.export(Piece(), ({names},), strict=False)",
            f"    return program.module()({names})",
        ]
        return "\n".join([definition_text(program, "plain"), "", "", *lines])


@dataclass(frozen=True)
class InFloat64(_Both):
    """The calls in float64, and in their type.

    Attributes
    ----------
    dtype
        The type that is to explain the difference.
    least
        The smallest error that it does not explain, as a part of the RMS; 0 for any beyond one rounding.
    """

    dtype: torch.dtype
    least: float = 0.0

    def functions(self, program: Program) -> str:
        """Return both functions."""
        doubled = replace(program, results=tuple(f"{one}.double()" for one in program.results))
        exact = replace(doubled, statements=tuple(one.in_float64() for one in program.statements))
        casts = [f"{name} = {name}.double()" for name, one in program.inputs.items() if one.is_floating_point()]
        texts = definition_text(exact, "plain", casts), definition_text(doubled, "other")
        return "\n\n\n".join(texts)


@dataclass(frozen=True)
class _OtherInputs(_Both):
    """The calls with other values in some of their inputs.

    Attributes
    ----------
    changed
        Names of these inputs; the others in their place are called by the same names, each with one of `ends`.
    """

    together = True
    ends: ClassVar[tuple[str, ...]]
    beside: ClassVar[tuple[str, ...]] = ()
    """Names of inputs that the calls do not read."""
    changed: Sequence[str]

    def functions(self, program: Program) -> str:
        """Return both functions."""
        added = {f"{name}_{end}" for name in self.changed for end in self.ends} | {*self.beside}
        own = [name for name in program.inputs if name not in added]
        operation = replace(program, inputs={name: program.inputs[name] for name in own})
        calls = {
            end: f"operation({', '.join(f'{name}_{end}' if name in self.changed else name for name in own)})"
            for end in self.ends
        }
        plain = f"operation({', '.join(own)})"
        lines = [
            *signature("plain", program.inputs),
            f"    return {plain}",
            "",
            "",
            *signature("other", program.inputs),
            *(f"    {line}" for line in self._other(plain, calls)),
        ]
        return "\n".join([definition_text(operation, "operation"), "", "", *lines])

    def _other(self, plain: str, calls: Mapping[str, str]) -> list[str]:
        raise NotImplementedError


@dataclass(frozen=True)
class OtherRows(_OtherInputs):
    """The calls with other rows of the batch, and with another first row: no element may change with both."""

    ends = ("others", "first")

    def _other(self, plain: str, calls: Mapping[str, str]) -> list[str]:
        return [
            '"""Return the results, with those of other rows where these and the first row both change them."""',
            f"result = {plain}",
            f"others = {calls['others']}",
            f"first = {calls['first']}",
            "return torch.where((others != result) & (first != result), others, result)",
        ]


@dataclass(frozen=True)
class OtherPositions(_OtherInputs):
    """The calls with other values outside some positions of a sequence: inside, no element may change."""

    ends = ("changed",)
    beside = (INSIDE,)

    def _other(self, plain: str, calls: Mapping[str, str]) -> list[str]:
        return [
            '"""Return the result, with that of the changed inputs at the positions where they must change nothing."""',
            f"changed = {calls['changed']}",
            f"return torch.where({INSIDE}, changed, {plain})",
        ]
