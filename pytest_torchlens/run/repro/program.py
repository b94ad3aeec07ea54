"""Takes some calls out of a recording, with the tensors that they read: a program that runs without the model."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from itertools import count
from typing import Any
from typing import Protocol

import torch

from pytest_torchlens.baseline.run_alone import copy_with_layout
from pytest_torchlens.capture import Aliased
from pytest_torchlens.capture import Call
from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import Value
from pytest_torchlens.capture import ambient
from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture.functions import Kind
from pytest_torchlens.capture.leaves import substitute
from pytest_torchlens.capture.leaves import walk
from pytest_torchlens.capture.tensor_files import why_not_storable
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.replay import Player
from pytest_torchlens.replay.player import Arguments
from pytest_torchlens.run.repro.statements import Name
from pytest_torchlens.run.repro.statements import Statement
from pytest_torchlens.run.repro.statements import UnprintableError
from pytest_torchlens.run.repro.statements import function_text
from pytest_torchlens.run.repro.statements import literal

Read = Value | Aliased
Stored = Callable[[Call, str, Read], torch.Tensor | None]
"""Returns a better tensor than the replay's for an argument of a call, by its path; None if there is none."""


class Way(Protocol):
    """How the calls of a program run another way: its text has the functions ``plain`` and ``other``."""

    together: bool
    """Whether inputs of one shape say the same of the same elements, so that they shrink together or not at all."""

    def settings(self, program: Program) -> Mapping[str, str]:
        """Return the settings of the process that hold for both functions."""

    def functions(self, program: Program) -> str:
        """Return both functions as code."""

    def ending(self, program: Program, *, is_complex: bool) -> str:
        """Return the code that runs them and ends with 0 or 1."""

    def with_result(self, place: int) -> Way:
        """Return the way of a program with one of its results alone."""


@dataclass(frozen=True)
class Program:
    """A few calls, the tensors that they read, and what they return.

    Attributes
    ----------
    inputs
        Tensors by the names of the variables, in their memory layout.
    statements
        The calls, in order.
    results
        Expressions of the tensors to compare.
    settings
        Settings of the process that the calls ran under, in words as `ambient.in_words` has them.
    leaves
        Names of the inputs that require gradients.
    way
        How the calls run another way, to be compared with this one; None to compare environments.
    """

    inputs: dict[str, torch.Tensor]
    statements: tuple[Statement, ...]
    results: tuple[str, ...]
    settings: dict[str, str] = field(default_factory=dict)
    leaves: tuple[str, ...] = ()
    way: Way | None = None

    @property
    def size(self) -> int:
        """Number of elements of all inputs."""
        return sum(tensor.numel() for tensor in self.inputs.values())

    def with_result(self, place: int) -> Program:
        """Return it with one of its results alone."""
        way = self.way and self.way.with_result(place)
        return replace(self, results=(self.results[place],), way=way)


def why_unprintable(recording: Recording, number: int) -> str:
    """Return why a call has no form as code of torch alone; ``""`` if it has one."""
    call = recording.calls[number]
    if call.info.opaque:
        return "its inside was not recorded: it is compiled, scripted or a function transform"
    if call.info.kind is Kind.GRADIENT or number in recording.code_in_gradients:
        return "it needs the autograd graph"
    try:
        if not call.info.bookkeeping:
            function_text(call.info.func, call.info.name)
        _literals(call.args)
        _literals(call.kwargs)
    except UnprintableError as error:
        return str(error)
    return ""


def _literals(template: Any) -> None:
    def check(leaf: Any) -> Any:
        if not isinstance(leaf, Value | Aliased):
            literal(leaf)
        return leaf

    substitute(template, check)


class ProgramPlayer(Player):
    """Notes where the tensors are in what each call returns."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        self.paths: dict[int, list[str]] = {}

    def result(self, call: Call, arguments: Arguments) -> Any:
        """Return what the function returns."""
        result = super().result(call, arguments)
        self.paths[id(call)] = [path for path, _ in walk(result)]
        return result


def program_of(
    recording: Recording,
    numbers: Sequence[int],
    stored: Stored = lambda call, path, read: None,
    prepare: Callable[[Player], object] = lambda player: None,
) -> Program:
    """Return the program of some calls; its results are those of the last one.

    Parameters
    ----------
    recording
        Its model and inputs must hold the values that they had before the pass.
    numbers
        Numbers of printable calls, in order.
    stored
        Where a tensor comes from that is not to be computed here.
    prepare
        Puts other inputs in the place of the recorded ones.

    Raises
    ------
    UnprintableError
        If it has no form as code.
    """
    builder = _Builder(recording, set(numbers), stored)
    with ProgramPlayer(recording) as player:
        prepare(player)
        for number, call in enumerate(recording.calls[: numbers[-1] + 1]):
            if number in builder.members:
                builder.read(player, call)
            returned, _ = player.play(number, call, player.arguments(call))
            if number in builder.members:
                builder.add(number, call, player.paths[id(call)])
            player.store(number, call, returned)
    return builder.program(recording.calls[numbers[-1]])


def inputs_of(recording: Recording, number: int) -> dict[str, torch.Tensor]:
    """Return what a call reads, by the names of a program's inputs, without running it.

    Raises
    ------
    UnprintableError
        If a tensor cannot be stored.
    """
    builder = _Builder(recording, {number}, lambda call, path, read: None)
    with ProgramPlayer(recording) as player:
        for at, call in enumerate(recording.calls[:number]):
            returned, _ = player.play(at, call, player.arguments(call))
            player.store(at, call, returned)
        builder.read(player, recording.calls[number])
    return builder.inputs


class _Builder:
    def __init__(self, recording: Recording, members: set[int], stored: Stored) -> None:
        self.members = members
        self._recording = recording
        self._stored = stored
        self._names: dict[tuple[int, ...], Name] = {}
        """Expression of each value and the writes from outside that show in it, by id."""
        self.inputs: dict[str, torch.Tensor] = {}
        self._leaves: list[str] = []
        self._statements: list[Statement] = []
        self._reads: dict[int, Name] = {}
        """Expression of each read of the call that runs, by id."""

    def read(self, player: Player, call: Call) -> None:
        """Note the expressions of what a call reads; what comes from outside becomes an input."""
        self._reads = {}
        for path, read in edges_in(call):
            key = self._key(read)
            if key not in self._names:
                self._names[key] = self._new_input(player, call, path, read)
            self._reads[id(read)] = self._names[key]

    def _key(self, read: Read) -> tuple[int, ...]:
        writes = read.writes if isinstance(read, Aliased) else ()
        return id(value_of(read)), *(id(write) for write in writes if write.call not in self.members)

    def _new_input(self, player: Player, call: Call, path: str, read: Read) -> Name:
        value = value_of(read)
        tensor = self._stored(call, path, read)
        tensor = player.at(value.slot) if tensor is None else tensor
        if reason := why_not_storable(tensor):
            raise UnprintableError(f"its argument {path} is a tensor {reason}, which safetensors cannot store")
        name = self._unused(self._input_name(value))
        self.inputs[name] = copy_with_layout(tensor)
        if value.requires_grad and not any(value.slot in self._recording.calls[n].writes for n in self.members):
            self._leaves.append(name)
        return Name(name)

    def _input_name(self, value: Value) -> str:
        source = self._recording.sources[value.position] if value.call < 0 else None
        name = source.name.rpartition(".")[2] if source is not None and source.kind in ("parameter", "buffer") else "x"
        return name if name.isidentifier() else "x"

    def _unused(self, name: str) -> str:
        taken = {*self.inputs, *(statement.target for statement in self._statements)}
        return next(one for number in count() if (one := f"{name}{number or ''}") not in taken | _RESERVED)

    def add(self, number: int, call: Call, paths: list[str]) -> None:
        """Add the statement of a call."""
        if call.info.bookkeeping:  # it computes nothing
            self._names[(id(call.outputs[0]),)] = next(iter(self._reads.values()))
            return
        read = {value_of(read).slot: self._reads[id(read)] for _, read in edges_in(call)}
        written = {slot: read[slot] for slot in call.writes if slot in read}
        target = self._unused("y") if any(value.slot not in written for value in call.outputs) else ""
        for value, path in zip(call.outputs, paths if call.returned else [""] * len(call.outputs), strict=True):
            self._names[(id(value),)] = written.get(value.slot) or Name(target + _place(path))
        args, kwargs = self._filled(call.args), self._filled(call.kwargs)
        kwargs = {name: value for name, value in kwargs.items() if not name.startswith("_")}
        function, before = function_text(call.info.func, call.info.name), self._seed(call)
        self._statements.append(Statement(function, args, kwargs, target, before))

    def _filled(self, template: Any) -> Any:
        def fill(leaf: Any) -> Any:
            if isinstance(leaf, Value | Aliased):
                return self._reads[id(leaf)]
            return tuple(leaf) if type(leaf) is torch.Size else leaf

        return substitute(template, fill)

    def _seed(self, call: Call) -> str:
        """Return a line that restores the random generator; ``""`` for a call that drew nothing."""
        if call.random is None:
            return ""
        name = self._unused("rng_state")
        self.inputs[name] = call.random.state.clone()
        where = "torch" if call.random.generator.device.type == "cpu" else f"torch.{call.random.generator.device.type}"
        return f"{where}.set_rng_state({name})"

    def program(self, end: Call) -> Program:
        """Return the finished program."""
        results = tuple(self._names[(id(value),)].text for value in end.outputs)
        settings = ambient.in_words(self._recording.ambient.rows[end.ambient])
        return Program(self.inputs, tuple(self._statements), results, settings, tuple(self._leaves))


_RESERVED = {"torch", "sys", "json", "math", "compute", "load", "expected", "Path", "lambda", "inside"}


def _place(path: str) -> str:
    """Return the brackets for a path in a result: ``"[1][0]"``."""
    parts = path.split(".") if path else []
    if odd := next((part for part in parts if not part.isdigit()), ""):
        raise UnprintableError(f"it returns its tensors by name ({odd})")
    return "".join(f"[{part}]" for part in parts)


def printable_before(recording: Recording, numbers: list[int], reasons: Mapping[int, str]) -> list[int]:
    """Return the calls that can be statements; what the others make is then an input."""
    return [number for number in numbers if not reasons[number] and not recording.calls[number].uninitialised]
