"""Histories on disk: one folder with ``history.json`` and safetensors; no pickle, and nothing in it is ever run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import torch

from pytest_torchlens.capture.tensor_files import TensorFileError
from pytest_torchlens.capture.tensor_files import TensorReader
from pytest_torchlens.capture.tensor_files import TensorWriter
from pytest_torchlens.capture.tensor_files import storable
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import Operation
from pytest_torchlens.records import from_json
from pytest_torchlens.records import to_json

if TYPE_CHECKING:
    from pytest_torchlens.history.view import HistoryView

FORMAT = "pytest-torchlens history"
VERSION = 1
_FILE = "history.json"
_GRADIENT = re.compile(r"gradient (?P<number>[1-9]\d{0,8}) (?P<label>.+)")


class HistoryFileError(ValueError):
    """A saved history that cannot be written or read, with the reason."""


@dataclass(frozen=True)
class SavedFrame:
    """A place in the code; its text is read when asked for, if the file is still there."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, kw_only=True)
class SavedHistory:
    """What ``history.json`` holds besides the format's name and version."""

    history: HistoryRecord
    frames: tuple[SavedFrame, ...] = ()
    stacks: dict[str, tuple[int, ...]] | None = None
    """Frames of each operation by label, as places in `frames`, outermost first."""
    left_out: tuple[str, ...] = ()
    """Operations whose tensor was saved in memory but has no place in safetensors (sparse, nested, quantized)."""


def save(history: HistoryView, folder: Path) -> None:
    """Write a history with its tensors into a folder, which is made if need be and has to be empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise HistoryFileError(f"{folder} is there already; save into a new or empty folder")
    left_out = _write_tensors(history, TensorWriter(folder))
    stacks = {op.label: [_frame(frame) for frame in op.func_call_stack] for op in history.operations}
    places = {frame: place for place, frame in enumerate({frame: 0 for stack in stacks.values() for frame in stack})}
    saved = SavedHistory(
        history=history.record(),
        frames=tuple(places),
        stacks={label: tuple(places[frame] for frame in stack) for label, stack in stacks.items() if stack},
        left_out=tuple(left_out),
    )
    content = {"format": FORMAT, "version": VERSION, **json.loads(to_json(saved))}
    (folder / _FILE).write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")


def _frame(frame: Any) -> SavedFrame:
    return SavedFrame(frame["call_fname"], frame["call_linenum"], frame["function"])


def _write_tensors(history: HistoryView, writer: TensorWriter) -> list[str]:
    left_out = []
    for op in history.operations:
        contents = op.tensor_contents
        if contents is not None and storable(contents):
            writer.write(op.label, contents)
        elif contents is not None:
            left_out.append(op.label)
        for number, gradient in op.gradients.items():
            if storable(gradient):
                writer.write(f"gradient {number} {op.label}", gradient)
    writer.flush()
    return left_out


class Stored:
    """A folder that a history was saved in, checked; tensors are read when asked for.

    Raises
    ------
    HistoryFileError
        If it is none, or damaged, or of a version that is not known here.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.saved = _parsed(_content(folder), folder)
        self._operations = {op.label: op for op in self.saved.history.operations}
        try:
            self._tensors = TensorReader(folder)
        except TensorFileError as error:
            raise HistoryFileError(str(error)) from None
        self._gradients: dict[str, list[int]] = {}
        self._check_names()

    def _check_names(self) -> None:
        for name in self._tensors.names:
            gradient = _GRADIENT.fullmatch(name)
            label = gradient["label"] if gradient else name
            if label not in self._operations:
                raise HistoryFileError(f"{self._folder}: the tensor {name!r} belongs to no operation")
            if gradient:
                self._gradients.setdefault(label, []).append(int(gradient["number"]))
        for op in self._operations.values():
            there = op.label in self._tensors.names or op.label in self.saved.left_out
            if op.has_saved_activations and not there:
                raise HistoryFileError(f"{self._folder}: the tensor of {op.label} is missing")

    def activation(self, label: str) -> torch.Tensor | None:
        """Return an operation's tensor."""
        return self._read(label) if label in self._tensors.names else None

    def gradients(self, label: str) -> dict[int, torch.Tensor]:
        """Return an operation's gradients by the number of the backward pass."""
        return {number: self._read(f"gradient {number} {label}") for number in sorted(self._gradients.get(label, []))}

    def _read(self, name: str) -> torch.Tensor:
        try:
            return self._tensors.read(name)
        except TensorFileError as error:
            raise HistoryFileError(str(error)) from None


def _content(folder: Path) -> dict[str, Any]:
    file = folder / _FILE
    try:
        content = json.loads(file.read_text(encoding="utf-8"), parse_int=_integer, parse_constant=_constant)
    except OSError as error:
        raise HistoryFileError(f"{folder} is no saved history: {_FILE} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise HistoryFileError(f"{file} is damaged: {str(error) or type(error).__name__}") from None
    if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
        raise HistoryFileError(f"{file} is no saved history: its format is not {FORMAT!r}")
    version = content.pop("version", None)
    if version != VERSION:
        newer = isinstance(version, int) and version > VERSION
        advice = "update pytest-torchlens" if newer else "the file is damaged"
        raise HistoryFileError(f"{file} has version {version!r}, and {VERSION} is known here: {advice}")
    return content


_DIGITS = 18


def _integer(text: str) -> int:
    if len(text.lstrip("-")) > _DIGITS:
        raise ValueError(f"a number has {len(text)} digits")
    return int(text)


def _constant(text: str) -> float:
    raise ValueError(f"{text} is no number")


def _parsed(content: dict[str, Any], folder: Path) -> SavedHistory:
    try:
        saved = from_json(json.dumps(content), SavedHistory)
    except (ValueError, RecursionError) as error:
        raise HistoryFileError(f"{folder / _FILE} is damaged: {error}") from None
    for problem in _problems(saved):
        raise HistoryFileError(f"{folder / _FILE} is damaged: {problem}")
    return saved


def _problems(saved: SavedHistory) -> Iterator[str]:
    """Yield what does not fit together."""
    labels = {op.label for op in saved.history.operations}
    if len(labels) != len(saved.history.operations):
        yield "two operations have the same label"
    yield from _graph_problems(saved.history.operations, labels)
    yield from _module_problems(saved.history)
    for label, stack in (saved.stacks or {}).items():
        if label not in labels or any(not 0 <= place < len(saved.frames) for place in stack):
            yield f"the call stack of {label!r} points nowhere"
    if unknown := [label for label in saved.history.layer_list if label not in labels]:
        yield f"layer_list has {unknown[0]!r}, which is no operation"


def _graph_problems(operations: tuple[Operation, ...], labels: set[str]) -> Iterator[str]:
    seen: set[str] = set()
    for op in operations:
        for label in (*op.parent_layers, *(edge.parent for edge in op.edges)):
            if label not in seen:
                yield f"{op.label} reads {label!r}, which does not come before it"
        for label in op.child_layers:
            if label not in labels or label in seen or label == op.label:
                yield f"{op.label} is read by {label!r}, which is not there or comes before it"
        seen.add(op.label)


def _module_problems(history: HistoryRecord) -> Iterator[str]:
    addresses = {module.address for module in history.modules}
    if "" not in addresses or len(addresses) != len(history.modules):
        yield "the model is not among its modules, or two have the same address"
    for module in history.modules:
        for child in module.children:
            if child not in addresses or not child or child.rpartition(".")[0] != module.address:
                yield f"module {module.address!r} cannot contain {child!r}"
