"""Histories on disk: one folder with ``history.json`` and safetensors.

Nothing in the folder is ever run, and no pickle is read.  A history is checked for contradictions when it is read.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import warnings
from collections import Counter
from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import torch

from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.tensor_files import TensorFileError
from pytest_torchlens.capture.tensor_files import TensorReader
from pytest_torchlens.capture.tensor_files import TensorWriter
from pytest_torchlens.capture.tensor_files import check_plain_file
from pytest_torchlens.capture.tensor_files import why_not_storable
from pytest_torchlens.history.live import BackwardPass
from pytest_torchlens.history.source import StackFrame
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import Operation
from pytest_torchlens.records import from_json
from pytest_torchlens.records import to_json
from pytest_torchlens.records import write_atomically
from pytest_torchlens.records.files import remove
from pytest_torchlens.records.files import touch
from pytest_torchlens.records.files import why_no_path
from pytest_torchlens.records.files import writing

if TYPE_CHECKING:
    from pytest_torchlens.history.view import HistoryView


FORMAT = "pytest-torchlens history"


VERSION = 2


_FILE = "history.json"


_GRADIENT = re.compile(r"gradient (?P<number>[1-9]\d{0,8}) (?P<label>.+)")


class HistoryFileError(ValueError):
    """A saved history that cannot be written or read, with the reason."""


@dataclass(frozen=True)
class SavedFrame:
    """A code position with the lines around it, as they were when the history was saved."""

    file: str
    line: int
    function: str
    context: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SavedHistory:
    """The content of ``history.json``, without the format's name and version."""

    history: HistoryRecord
    frames: tuple[SavedFrame, ...] = ()
    stacks: dict[str, tuple[int, ...]] | None = None
    """Frames of each operation by label, as indices into `frames`, outermost first."""
    backward_passes: tuple[BackwardPass, ...] = ()
    left_out: dict[str, str] | None = None
    """Tensors that safetensors cannot store (sparse, nested, quantized), by name, with the reason."""
    digests: dict[str, str] | None = None
    """Type, shape and fingerprint of each tensor in the files, by name."""


def save(history: HistoryView, path: Path | str) -> None:
    """Write a history with its tensors into a folder; make the folder if it does not exist.

    ``history.json`` is written last: a folder without it is not a saved history.  A folder that a killed process left
    is written anew.
    """
    folder, writer = path_of(path), None
    try:
        with writing(folder):
            _clear_unfinished(folder)
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise HistoryFileError(f"expected a new or empty folder, got {folder}, which exists already")
            writer = TensorWriter(folder)
            touch(folder / _UNFINISHED)
            saved = _saved_history(history, *_write_tensors(history, writer))
            content = {"format": FORMAT, "version": VERSION, **json.loads(to_json(saved))}
            write_atomically(folder / _FILE, json.dumps(content, indent=1))
            remove(folder / _UNFINISHED)
    except (OSError, TensorFileError) as error:
        if writer is not None:
            _discard(writer, folder)
        raise HistoryFileError(str(error)) from None
    if saved.left_out:
        rendered = ", ".join(f"{name} ({why})" for name, why in list(saved.left_out.items())[:_MOST_NAMED])
        more = len(saved.left_out) - _MOST_NAMED
        warnings.warn(
            f"{folder}: safetensors cannot store {rendered}{f' and {more} more' if more > 0 else ''}; "
            "the rest of the history is saved",
            stacklevel=3,
        )


_MOST_NAMED = 5


def _clear_unfinished(folder: Path) -> None:
    """Remove what a process that was killed while it saved has left in a folder; other files stay."""
    if not (folder / _UNFINISHED).is_file() or (folder / _FILE).exists():
        return
    for file in [*folder.glob("activations-*.safetensors"), *folder.glob(".*.part"), folder / _UNFINISHED]:
        remove(file)


def _discard(writer: TensorWriter, folder: Path) -> None:
    """Remove the files of an attempt that failed; those that cannot be removed are removed by the next one."""
    with contextlib.suppress(OSError):
        writer.discard()
        remove(folder / _FILE)
        remove(folder / _UNFINISHED)


_UNFINISHED = ".unfinished"
"""A file that is in the folder while it is written."""


def path_of(path: object) -> Path:
    """Return a user's path as a `Path`.

    Raises
    ------
    TypeError
        If it is not a path.
    HistoryFileError
        If it has a character that a path cannot have.
    """
    if isinstance(path, str | Path) and path != "":
        if why := why_no_path(path):
            raise HistoryFileError(f"{str(path)!r:.80} is not a valid path: {why}")
        return Path(path)
    raise TypeError(f"expected the path of a folder, as 'run-1', got {path!r:.80}")


def _saved_history(history: HistoryView, left_out: dict[str, str], digests: dict[str, str]) -> SavedHistory:
    stacks = {op.label: [_frame(frame) for frame in op.func_call_stack] for op in history.operations}
    places = {frame: place for place, frame in enumerate({frame: 0 for stack in stacks.values() for frame in stack})}
    return SavedHistory(
        history=history.record(),
        frames=tuple(places),
        stacks={label: tuple(places[frame] for frame in stack) for label, stack in stacks.items() if stack},
        backward_passes=tuple(history.backward_passes),
        left_out=left_out or None,
        digests=digests or None,
    )


def _frame(frame: StackFrame) -> SavedFrame:
    return SavedFrame(frame["call_fname"], frame["call_linenum"], frame["function"], tuple(frame["code_context"]))


def _write_tensors(history: HistoryView, writer: TensorWriter) -> tuple[dict[str, str], dict[str, str]]:
    """Write the tensors; return those that cannot be stored, with the reasons, and the digests of the others."""
    left_out, digests = {}, {}
    for name, tensor in _tensors(history):
        if why := why_not_storable(tensor):
            left_out[name] = why
        else:
            digests[name] = _digest(writer.write(name, tensor))
    writer.flush()
    return left_out, digests


def _digest(tensor: torch.Tensor) -> str:
    plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return f"{plain.dtype} {list(plain.shape)} {fingerprint(plain)}"


def _tensors(history: HistoryView) -> Iterator[tuple[str, torch.Tensor]]:
    for op in history.operations:
        contents = op.tensor_contents
        if contents is not None:
            yield op.label, contents
        for number, gradient in op.gradients.items():
            yield f"gradient {number} {op.label}", gradient


class StoredHistory:
    """A folder with a saved history; checked at once, its tensors are read when they are used.

    Raises
    ------
    HistoryFileError
        If there is no saved history, it is damaged, or it has another version.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.saved = _parse(_read_content(folder), folder)
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
            is_there = op.label in self._tensors.names or op.label in (self.saved.left_out or {})
            if op.has_saved_activations and not is_there:
                raise HistoryFileError(f"{self._folder}: the tensor of {op.label} is missing")
        for name in self.saved.digests or {}:
            if name not in self._tensors.names:
                raise HistoryFileError(f"{self._folder}: the tensor {name!r} is missing")

    def activation(self, label: str) -> torch.Tensor | None:
        """Return an operation's tensor."""
        return self._read(label) if label in self._tensors.names else None

    def gradients(self, label: str) -> dict[int, torch.Tensor]:
        """Return an operation's gradients by the number of the backward pass."""
        return {number: self._read(f"gradient {number} {label}") for number in sorted(self._gradients.get(label, []))}

    def _read(self, name: str) -> torch.Tensor:
        try:
            tensor = self._tensors.read(name)
        except TensorFileError as error:
            raise HistoryFileError(str(error)) from None
        if _digest(tensor) != (self.saved.digests or {}).get(name):
            file = self._tensors.names[name]
            raise HistoryFileError(f"{file} is damaged: its tensor {name!r} is not the one that was saved")
        return tensor


def _read_content(folder: Path) -> dict[str, Any]:
    file = folder / _FILE
    try:
        check_plain_file(file)
        content = json.loads(
            file.read_text(encoding="utf-8"), parse_int=_parse_integer, parse_constant=_refuse_constant
        )
    except TensorFileError as error:
        raise HistoryFileError(str(error)) from None
    except OSError as error:
        why = f"{_FILE} cannot be read ({error.strerror}){_hint(folder, error)}"
        raise HistoryFileError(f"{folder} is not a saved history: {why}") from None
    except (ValueError, RecursionError) as error:
        raise HistoryFileError(f"{file} is damaged: {str(error) or type(error).__name__}") from None
    if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
        raise HistoryFileError(f"{file} is not a saved history: its format is not {FORMAT!r}")
    version = content.pop("version", None)
    if version != VERSION:
        raise HistoryFileError(f"{file}: expected version {VERSION}, got {version!r}: {_advice(version)}")
    return content


def _hint(folder: Path, error: OSError) -> str:
    """Return why a folder with activations may have no ``history.json``; ``""`` if it has none of them, or has it."""
    if not isinstance(error, FileNotFoundError) or not any(folder.glob("activations-*.safetensors")):
        return ""
    if (folder / _UNFINISHED).exists():
        return "; saving it was not finished: save it again"
    return (
        "; it has only activations: if they were streamed to it, history.save(another folder) writes the whole history"
    )


def _advice(version: object) -> str:
    if not isinstance(version, int) or version < 1:
        return "the file is damaged"
    return "update pytest-torchlens" if version > VERSION else "trace the model again and save the new history"


_DIGITS = 20  # of any 64-bit number


def _parse_integer(text: str) -> int:
    if len(text.lstrip("-")) > _DIGITS:
        raise ValueError(f"a number has {len(text)} digits")
    return int(text)


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a valid number")


def _parse(content: dict[str, Any], folder: Path) -> SavedHistory:
    try:
        saved = from_json(json.dumps(content), SavedHistory)
    except (ValueError, RecursionError) as error:
        raise HistoryFileError(f"{folder / _FILE} is damaged: {error}") from None
    for problem in problems_of(saved.history, saved.stacks or {}, len(saved.frames)):
        raise HistoryFileError(f"{folder / _FILE} is damaged: {problem}")
    labels = {op.label for op in saved.history.operations}
    labels_left_out = [_label_of_tensor(name) for name in saved.left_out or {}]
    for label in (*labels_left_out, *(label for backward in saved.backward_passes for label in backward.layers)):
        if label not in labels:
            raise HistoryFileError(f"{folder / _FILE} is damaged: it names {label!r}, which is not an operation")
    return saved


def _label_of_tensor(name: str) -> str:
    """Return the label of the operation that a saved activation or gradient belongs to."""
    gradient = _GRADIENT.fullmatch(name)
    return gradient["label"] if gradient else name


def problems_of(history: HistoryRecord, stacks: dict[str, tuple[int, ...]], frames: int) -> Iterator[str]:
    """Yield the contradictions in a saved history, given its call stacks and the number of their frames."""
    labels = {op.label for op in history.operations}
    if len(labels) != len(history.operations):
        yield "two operations have the same label"
    yield from _pass_problems(history.operations)
    yield from _graph_problems(history.operations, labels)
    yield from _edge_problems(history.operations)
    for op in history.operations:
        yield from _label_problems(op)
        yield from _tensor_problems(op)
    yield from _key_problems(history.operations)
    yield from _module_problems(history)
    yield from _call_problems(history)
    yield from _line_problems(history)
    yield from _name_problems(history, labels)
    for label, stack in stacks.items():
        if label not in labels or any(not 0 <= place < frames for place in stack):
            yield f"the call stack of {label!r} refers to frames that do not exist"
    if unknown := [label for label in history.layer_list if label not in labels]:
        yield f"layer_list has {unknown[0]!r}, which is not an operation"


def _pass_problems(operations: tuple[Operation, ...]) -> Iterator[str]:
    passes = Counter(op.layer_label for op in operations)
    for op in operations:
        if not 1 <= op.pass_num <= op.layer_passes_total == passes[op.layer_label]:
            count = passes[op.layer_label]
            yield f"{op.label!r} is pass {op.pass_num} of {op.layer_passes_total}, but there are {count}"


def _graph_problems(operations: tuple[Operation, ...], labels: set[str]) -> Iterator[str]:
    seen: set[str] = set()
    for op in operations:
        for label in (*op.parent_layers, *(edge.parent for edge in op.edges)):
            if label not in seen:
                yield f"{op.label} reads {label!r}, which does not come before it"
        for label in op.child_layers:
            if label not in labels or label in seen or label == op.label:
                yield f"{op.label} is read by {label!r}, which does not exist or comes before it"
        seen.add(op.label)


def _edge_problems(operations: tuple[Operation, ...]) -> Iterator[str]:
    children: dict[str, set[str]] = {op.label: set() for op in operations}
    for op in operations:
        if (parents := tuple(dict.fromkeys(edge.parent for edge in op.edges))) != op.parent_layers:
            recorded = _first_labels(op.parent_layers)
            yield f"{op.label} has edges from {_first_labels(parents)}, but {recorded} as parents"
        for parent in op.parent_layers:
            children.get(parent, set()).add(op.label)
    for op in operations:
        readers = children[op.label]
        if readers != {*op.child_layers} or len(readers) != len(op.child_layers):
            recorded = _first_labels(op.child_layers)
            yield f"{op.label} is read by {_first_labels(readers)}, but has {recorded} as children"


_FEW_LABELS = 3


def _first_labels(labels: Iterable[str]) -> str:
    first = [*sorted(labels)[:_FEW_LABELS], "…"] if len(sorted(labels)) > _FEW_LABELS else sorted(labels)
    return ", ".join(first) or "none"


def _label_problems(op: Operation) -> Iterator[str]:
    short = f"{op.layer_type}_{op.layer_type_num}"
    layer = short if op.layer_total_num < 0 else f"{short}_{op.layer_total_num}"
    expected = layer, f"{layer}:{op.pass_num}", short
    actual = op.layer_label, op.layer_label_w_pass, op.layer_label_short
    for right, label in zip(expected, actual, strict=True):
        if label != right:
            yield f"the label {label!r} should be {right!r}, by its type and numbers"


def _tensor_problems(op: Operation) -> Iterator[str]:
    sizes = op.tensor_shape
    is_dense = op.tensor_stride is not None
    if min(sizes, default=0) < (0 if is_dense else -1) or (is_dense and len(sizes) != len(op.tensor_stride or ())):
        yield f"{op.label} has the shape {sizes} with strides {op.tensor_stride}"
    dtype = getattr(torch, op.tensor_dtype.removeprefix("torch."), None)
    expected = math.prod(sizes) * dtype.itemsize if is_dense and isinstance(dtype, torch.dtype) else op.tensor_fsize
    if op.tensor_fsize != expected or expected < 0:
        yield f"{op.label} has {op.tensor_fsize} bytes, but {expected} by its shape and dtype"
    if len(op.parent_param_addresses) != len(op.parent_param_shapes):
        yield f"{op.label} has {len(op.parent_param_shapes)} shapes for its parameters {op.parent_param_addresses}"


def _key_problems(operations: tuple[Operation, ...]) -> Iterator[str]:
    keys = Counter(key for op in operations for key in op.lookup_keys)
    if shared := [key for key, times in keys.items() if times > 1]:
        yield f"two operations have the lookup key {shared[0]!r}"


_DEEPEST = 200


def _module_problems(history: HistoryRecord) -> Iterator[str]:
    addresses = {module.address for module in history.modules}
    if "" not in addresses or len(addresses) != len(history.modules):
        yield "the model is not among its modules, or two have the same address"
    if too_deep := [module for module in history.modules if module.address.count(".") > _DEEPEST]:
        yield f"module {too_deep[0].address[:80]!r}… is inside more than {_DEEPEST} others"
    for module in history.modules:
        for child in module.children:
            if child not in addresses or not child or child.rpartition(".")[0] != module.address:
                yield f"module {module.address!r} cannot contain {child!r}"


def _call_problems(history: HistoryRecord) -> Iterator[str]:
    passes = {module.address: module.num_passes for module in history.modules}
    calls = {
        f"{module.address}:{place}" for module in history.modules for place, _ in enumerate(module.pass_children, 1)
    }
    for module in history.modules:
        if module.num_passes != len(module.pass_children):
            count = len(module.pass_children)
            yield f"module {module.address!r} was called {module.num_passes} times, but {count} calls are recorded"
        inner_calls = [call for children in module.pass_children for call in children]
        if unknown := [call for call in (*inner_calls, *history.top_level_module_passes) if call not in calls]:
            yield f"{unknown[0]!r} is not a call of a module"
    for op in history.operations:
        names = (*op.containing_module_origin_nested, *op.modules_entered, *op.modules_exited)
        if unknown := [call for call in names if call not in calls and passes.get(call) != 1]:
            yield f"{op.label} is in or beside {unknown[0]!r}, which is not a call of a module"


_MOST_LINES = 1_000_000


def _line_problems(history: HistoryRecord) -> Iterator[str]:
    for escape in history.escapes:
        for lines in (escape.lines_taken, escape.lines_not_taken):
            pieces = list(zip_longest(lines[::2], lines[1::2], fillvalue=0))
            if not all(1 <= first <= last <= _MOST_LINES for first, last in pieces):
                yield f"a condition has lines {lines[:3]}, which are not a first and last line"


def _name_problems(history: HistoryRecord, labels: set[str]) -> Iterator[str]:
    layers = {op.layer_label for op in history.operations}
    for label in (*(history.changed_by or ()), *(edit.operation for edit in history.edits if edit.operation)):
        if label not in labels:
            yield f"an edit changed {label!r}, which is not an operation"
    for loop in history.loops:
        if unknown := [layer for layer in loop.layers if layer not in layers]:
            yield f"a loop has {unknown[0]!r}, which is not a layer"
    for escape in history.escapes:
        if escape.operation and escape.operation not in labels:
            yield f"a value was read from {escape.operation!r}, which is not an operation"
