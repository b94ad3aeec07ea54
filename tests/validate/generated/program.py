"""Random model programs: seeded steps over a list of live tensors, and the module whose forward runs them.

A step draws the tensors that it takes from those alive, by a seed of its own.  It is left out where nothing fits, so
any list of steps is a program, and a program with fewer steps is one too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import warnings
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

LARGEST = 150  # elements of a live tensor that a step may take
KINDS_OF_ONE = 8  # kinds of steps in one program
DEEPEST = 2
Live = list[torch.Tensor]


class UnfitError(Exception):
    """No live tensor fits a step: the step is left out."""


@dataclasses.dataclass(frozen=True)
class Step:
    """A step by name, the seed that it draws with, and the steps inside it if it is a block."""

    name: str
    seed: int
    body: tuple[Step, ...] = ()


@dataclasses.dataclass(frozen=True)
class Program:
    """Steps, the modes that forward runs in, the form of its output, and how many of the last tensors are returned."""

    steps: tuple[Step, ...]
    mode: str = "grad"
    training: bool = False
    input_requires_grad: bool = False
    form: str = "tuple"
    returned: int = 3

    def in_mode(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context that forward is called in."""
        return MODES[self.mode]()


MODES: dict[str, Callable[[], Any]] = {
    "grad": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}
FORMS: dict[str, Callable[[Live], Any]] = {
    "tuple": tuple,
    "one": lambda tensors: tensors[-1],
    "dict": lambda tensors: {f"out{place}": tensor for place, tensor in enumerate(tensors)},
    "nested": lambda tensors: {"first": tensors[0], "rest": [(tensor, place) for place, tensor in enumerate(tensors)]},
}


@dataclasses.dataclass(frozen=True)
class Kind:
    """What a step does: its function, and the kind of program that it makes."""

    name: str
    run: Callable[..., Any]
    is_block: bool = False


STEPS: dict[str, Kind] = {}


def step(kind: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a step: a function of the model and the `Draw` that returns a tensor or several."""
    return lambda function: _register(Kind(kind, function))


def block(kind: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a block: a function of the model, the `Draw`, and ``run``, which runs the body on a list of tensors."""
    return lambda function: _register(Kind(kind, function, is_block=True))


def _register(kind: Kind) -> Callable[..., Any]:
    STEPS[kind.run.__name__] = kind
    return kind.run


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is strided and not quantised."""
    return tensor.layout is torch.strided and not tensor.is_quantized


def is_float(tensor: torch.Tensor) -> bool:
    return is_plain(tensor) and tensor.is_floating_point()


class Draw:
    """Draws the tensors, numbers and names of one step, and notes them."""

    def __init__(self, live: Live, seed: int, notes: list[str]) -> None:
        self.live = live
        self._random = random.Random(seed)
        self._notes = notes

    def of(self, fits: Callable[[torch.Tensor], bool]) -> torch.Tensor:
        """Return a live tensor that fits; the latest ones are the most likely."""
        places = [place for place, t in enumerate(self.live) if t.numel() <= LARGEST and fits(t)]
        if not places:
            raise UnfitError
        place = self._random.choice(places[-5:] if self._random.random() < 0.7 else places)
        self._notes.append(f"t{place}")
        return self.live[place]

    def any(self) -> torch.Tensor:
        return self.of(is_plain)

    def filled(self) -> torch.Tensor:
        """Return a tensor with at least one dimension and one element."""
        return self.of(lambda t: is_plain(t) and t.dim() > 0 and t.numel() > 0)

    def float(self) -> torch.Tensor:
        return self.of(is_float)

    def filled_float(self) -> torch.Tensor:
        return self.of(lambda t: is_float(t) and t.dim() > 0 and t.numel() > 0)

    def integer(self) -> torch.Tensor:
        return self.of(lambda t: is_plain(t) and t.dtype is torch.int64)

    def rows(self) -> torch.Tensor:
        """Return floats whose last dimension is of four."""
        return self.of(lambda t: is_float(t) and t.dim() > 0 and t.shape[-1] == 4 and t.numel() > 0)

    def matrix(self) -> torch.Tensor:
        """Return a matrix of floats with four columns."""
        return self.of(lambda t: is_float(t) and t.dim() == 2 and t.shape[1] == 4 and t.shape[0] > 0)

    def broadcast_with(self, other: torch.Tensor) -> torch.Tensor:
        return self.of(lambda t: is_plain(t) and _alike(t, other))

    def fitting_into(self, target: torch.Tensor) -> torch.Tensor:
        """Return a tensor that can be written over `target`."""
        return self.of(lambda t: is_float(t) and _goes_into(t, target))

    def number(self, limit: int) -> int:
        drawn = self._random.randrange(limit)
        self._notes.append(str(drawn))
        return drawn

    def choice(self, *names: str) -> str:
        name = self._random.choice(names)
        self._notes.append(name)
        return name


def _alike(t: torch.Tensor, s: torch.Tensor) -> bool:
    return all(m == n or 1 in (m, n) for m, n in zip(reversed(t.shape), reversed(s.shape), strict=False))


def _goes_into(s: torch.Tensor, t: torch.Tensor) -> bool:
    pairs = zip(reversed(s.shape), reversed(t.shape), strict=False)
    return s.dim() <= t.dim() and all(m in (1, n) for m, n in pairs)


class StepRunner:
    """Runs steps on live tensors; notes what each drew and gave if asked to."""

    def __init__(self, model: nn.Module, log: list[str] | None = None) -> None:
        self.model = model
        self.log = log

    def run(self, steps: tuple[Step, ...], live: Live, depth: int = 0) -> None:
        for place, one in enumerate(steps):
            try:
                self._step(one, live, depth)
            except UnfitError:
                continue
            except Exception as error:
                error.place = (place, *getattr(error, "place", ()))  # unwrapped: checkpoints raise and catch their own
                raise

    def _step(self, one: Step, live: Live, depth: int) -> None:
        notes: list[str] = []
        draw, kind, before = Draw(live, one.seed, notes), STEPS[one.name], len(live)
        line = len(self.log) if self.log is not None else 0
        if kind.is_block:
            made = kind.run(self.model, draw, lambda inner: self.run(one.body, inner, depth + 1))
        else:
            made = kind.run(self.model, draw)
        live.extend([made] if isinstance(made, torch.Tensor) else made or ())
        if self.log is not None:
            new = ", ".join(f"t{n}: {_described(t)}" for n, t in enumerate(live[before:], before))
            self.log.insert(
                line, f"{'  ' * depth}{kind.name}.{one.name}({', '.join(notes)})" + f" -> {new}" * bool(new)
            )


def _described(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def inputs_of(program: Program) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return fresh arguments: floats, a vector, and indices inside a dictionary."""
    x = torch.linspace(-1.0, 1.5, 12).view(3, 4).clone().requires_grad_(program.input_requires_grad)
    y = torch.tensor([0.5, -0.25, 2.0, 1.25])
    return (x, y), {"more": {"ids": torch.tensor([2, 0, 3])}}


Parts = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


def refused(program: Program, build: Callable[[Program], Parts]) -> tuple[int, ...] | None:
    """Run a program; return the place of the step that PyTorch refuses, or whose use of memory it warns of."""
    model, args, kwargs = build(program)
    torch.manual_seed(6)
    with warnings.catch_warnings(), program.in_mode():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", message=".*(expanded|internal overlap|resized|multiple of)")
        try:
            model(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - whatever PyTorch raises
            return error.place
    return None


def without(steps: tuple[Step, ...], place: tuple[int, ...]) -> tuple[Step, ...]:
    """Return steps without the one at a place."""
    first, *rest = place
    if not rest:
        return (*steps[:first], *steps[first + 1 :])
    inner = dataclasses.replace(steps[first], body=without(steps[first].body, tuple(rest)))
    return (*steps[:first], inner, *steps[first + 1 :])


def generate(seed: int, build: Callable[[Program], Parts]) -> Program:
    """Return the program of a seed, without the steps that PyTorch refuses."""
    draw = random.Random(seed)
    mode = draw.choice(["grad", "grad", "no_grad", "inference", "autocast"])
    kinds = draw.sample(sorted({kind.name for kind in STEPS.values()} - {"fault"}), KINDS_OF_ONE)
    program = Program(
        steps=_steps(draw, kinds, draw.randrange(4, 16), depth=0),
        mode=mode,
        training=draw.random() < 0.5,
        input_requires_grad=draw.random() < 0.4 and mode != "inference",
        form=draw.choice(list(FORMS)),
        returned=draw.randrange(1, 9),
    )
    while (place := refused(program, build)) is not None:
        program = dataclasses.replace(program, steps=without(program.steps, place))
    return program


def _steps(draw: random.Random, kinds: list[str], count: int, depth: int) -> tuple[Step, ...]:
    """Draw steps of some kinds, each kind as likely as each other; blocks lie in each other twice at most."""
    by_kind: dict[str, list[str]] = {}
    for name, kind in STEPS.items():
        if kind.name in kinds and (not kind.is_block or depth < DEEPEST):
            by_kind.setdefault(kind.name, []).append(name)
    names = [draw.choice(by_kind[draw.choice(sorted(by_kind))]) for _ in range(count)]
    return tuple(
        Step(
            name,
            draw.randrange(10**6),
            _steps(draw, kinds, draw.randrange(1, 5), depth + 1) if STEPS[name].is_block else (),
        )
        for name in names
    )


def places(steps: tuple[Step, ...]) -> Iterator[tuple[int, ...]]:
    """Yield the place of each step, those of a block's body after the block's own."""
    for number, one in enumerate(steps):
        yield (number,)
        yield from ((number, *inner) for inner in places(one.body))


def smaller(program: Program) -> Iterator[Program]:
    """Yield the program with one step fewer, or one simpler setting."""
    for place in reversed([*places(program.steps)]):
        yield dataclasses.replace(program, steps=without(program.steps, place))
    for number, one in enumerate(program.steps):
        if one.body:  # the body in place of the block
            yield dataclasses.replace(program, steps=(*program.steps[:number], *one.body, *program.steps[number + 1 :]))
    simple = {"mode": "no_grad", "training": False, "input_requires_grad": False, "form": "tuple", "returned": 1}
    for name, value in simple.items():
        if getattr(program, name) != value:
            yield dataclasses.replace(program, **{name: value})


def smallest(program: Program, fails: Callable[[Program], bool]) -> Program:
    """Return a smallest program that still fails: none with one step fewer does."""
    found: Program | None = program
    while found is not None:
        program, found = found, next((one for one in smaller(found) if fails(one)), None)
    return program


def in_words(program: Program, build: Callable[[Program], Parts]) -> str:
    """Return a program as readable steps, and the expression that makes it."""
    model, args, kwargs = build(program)
    log: list[str] = []
    model.log = log
    torch.manual_seed(6)
    with program.in_mode():
        model(*args, **kwargs)
    return "\n".join([f"t0: x (3, 4), t1: y (4,), t2: ids (3,), {program.mode}", *log, repr(program)])
