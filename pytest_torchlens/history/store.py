"""Histories on disk: one folder with ``history.json`` and safetensors.

Nothing in the folder is ever run, and no pickle is read.  A history that was read is checked for contradictions before
anything is made of it.
"""

from __future__ import annotations

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
from pytest_torchlens.capture.tensor_files import why_no_path
from pytest_torchlens.capture.tensor_files import why_not_storable
from pytest_torchlens.history.live import BackwardPass
from pytest_torchlens.history.source import StackFrame
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import Operation
from pytest_torchlens.records import from_json
from pytest_torchlens.records import to_json
from pytest_torchlens.records import write_atomically

if TYPE_CHECKING:
    from pytest_torchlens.history.view import HistoryView


def problems_of(history: HistoryRecord, stacks: dict[str, tuple[int, ...]], frames: int) -> Iterator[str]:
    """Yield what does not fit together in a saved history, its call stacks and the number of their frames."""
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
    yield from _branch_problems(history)
    yield from _name_problems(history, labels)
    for label, stack in stacks.items():
        if label not in labels or any(not 0 <= place < frames for place in stack):
            yield f"the call stack of {label!r} points nowhere"
    if unknown := [label for label in history.layer_list if label not in labels]:
        yield f"layer_list has {unknown[0]!r}, which is not an operation"


def _pass_problems(operations: tuple[Operation, ...]) -> Iterator[str]:
    passes = Counter(op.layer_label for op in operations)
    for op in operations:
        if not 1 <= op.pass_num <= op.layer_passes_total == passes[op.layer_label]:
            there = passes[op.layer_label]
            yield f"{op.label!r} is pass {op.pass_num} of {op.layer_passes_total}, and there are {there}"


def _branch_problems(history: HistoryRecord) -> Iterator[str]:
    for escape in history.escapes:
        for lines in (escape.lines_taken, escape.lines_not_taken):
            pieces = list(zip_longest(lines[::2], lines[1::2], fillvalue=0))
            if not all(1 <= first <= last <= _MOST_LINES for first, last in pieces):
                yield f"a condition has lines {lines[:3]}, which are not a first and last line"


_MOST_LINES = 1_000_000


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
    if deep := [module for module in history.modules if module.address.count(".") > _DEEPEST]:
        yield f"module {deep[0].address[:80]!r}… lies in more than {_DEEPEST} others"
    for module in history.modules:
        for child in module.children:
            if child not in addresses or not child or child.rpartition(".")[0] != module.address:
                yield f"module {module.address!r} cannot contain {child!r}"


_DEEPEST = 200


def _edge_problems(operations: tuple[Operation, ...]) -> Iterator[str]:
    children: dict[str, set[str]] = {op.label: set() for op in operations}
    for op in operations:
        if (read := tuple(dict.fromkeys(edge.parent for edge in op.edges))) != op.parent_layers:
            yield f"{op.label} has edges from {_some(read)}, and {_some(op.parent_layers)} as parents"
        for parent in op.parent_layers:
            children.get(parent, set()).add(op.label)
    for op in operations:
        if children[op.label] != {*op.child_layers} or len(children[op.label]) != len(op.child_layers):
            yield f"{op.label} is read by {_some(children[op.label])}, and has {_some(op.child_layers)} as children"


def _some(labels: Iterable[str]) -> str:
    few = [*sorted(labels)[:_FEW_LABELS], "…"] if len(sorted(labels)) > _FEW_LABELS else sorted(labels)
    return ", ".join(few) or "none"


_FEW_LABELS = 3


def _label_problems(op: Operation) -> Iterator[str]:
    short = f"{op.layer_type}_{op.layer_type_num}"
    layer = short if op.layer_total_num < 0 else f"{short}_{op.layer_total_num}"
    expected = layer, f"{layer}:{op.pass_num}", short
    given = op.layer_label, op.layer_label_w_pass, op.layer_label_short
    for wanted, label in zip(expected, given, strict=True):
        if label != wanted:
            yield f"the label {label!r} should be {wanted!r}, by its type and numbers"


def _tensor_problems(op: Operation) -> Iterator[str]:
    sizes = op.tensor_shape
    is_dense = op.tensor_stride is not None
    if min(sizes, default=0) < (0 if is_dense else -1) or (is_dense and len(sizes) != len(op.tensor_stride or ())):
        yield f"{op.label} has the shape {sizes} with strides {op.tensor_stride}"
    dtype = getattr(torch, op.tensor_dtype.removeprefix("torch."), None)
    expected = math.prod(sizes) * dtype.itemsize if is_dense and isinstance(dtype, torch.dtype) else op.tensor_fsize
    if op.tensor_fsize != expected or expected < 0:
        yield f"{op.label} has {op.tensor_fsize} bytes, and {expected} by its shape and dtype"
    if len(op.parent_param_addresses) != len(op.parent_param_shapes):
        yield f"{op.label} has {len(op.parent_param_shapes)} shapes for its parameters {op.parent_param_addresses}"


def _key_problems(operations: tuple[Operation, ...]) -> Iterator[str]:
    keys = Counter(key for op in operations for key in op.lookup_keys)
    if several := [key for key, times in keys.items() if times > 1]:
        yield f"two operations have the lookup key {several[0]!r}"


def _call_problems(history: HistoryRecord) -> Iterator[str]:
    passes = {module.address: module.num_passes for module in history.modules}
    calls = {
        f"{module.address}:{place}" for module in history.modules for place, _ in enumerate(module.pass_children, 1)
    }
    for module in history.modules:
        if module.num_passes != len(module.pass_children):
            there = len(module.pass_children)
            yield f"module {module.address!r} was called {module.num_passes} times, and {there} calls are there"
        made = [call for children in module.pass_children for call in children]
        if strange := [call for call in (*made, *history.top_level_module_passes) if call not in calls]:
            yield f"{strange[0]!r} is not a call of a module"
    for op in history.operations:
        around = (*op.containing_module_origin_nested, *op.modules_entered, *op.modules_exited)
        if strange := [call for call in around if call not in calls and passes.get(call) != 1]:
            yield f"{op.label} is in or beside {strange[0]!r}, which is not a call of a module"


def _name_problems(history: HistoryRecord, labels: set[str]) -> Iterator[str]:
    layers = {op.layer_label for op in history.operations}
    for loop in history.loops:
        if strange := [layer for layer in loop.layers if layer not in layers]:
            yield f"a loop has {strange[0]!r}, which is not a layer"
    for escape in history.escapes:
        if escape.operation and escape.operation not in labels:
            yield f"a value was read from {escape.operation!r}, which is not an operation"


FORMAT = "pytest-torchlens history"
VERSION = 2
_FILE = "history.json"
_GRADIENT = re.compile(r"gradient (?P<number>[1-9]\d{0,8}) (?P<label>.+)")


class HistoryFileError(ValueError):
    """A saved history that cannot be written or read, with the reason."""


@dataclass(frozen=True)
class SavedFrame:
    """A place in the code with the lines around it, as they were when the history was saved."""

    file: str
    line: int
    function: str
    context: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SavedHistory:
    """What ``history.json`` holds besides the format's name and version."""

    history: HistoryRecord
    frames: tuple[SavedFrame, ...] = ()
    stacks: dict[str, tuple[int, ...]] | None = None
    """Frames of each operation by label, as places in `frames`, outermost first."""
    backward_passes: tuple[BackwardPass, ...] = ()
    left_out: dict[str, str] | None = None
    """Tensors that safetensors has no place for (sparse, nested, quantized), by name, and why."""
    digests: dict[str, str] | None = None
    """Type, shape and fingerprint of each tensor in the files, by name."""


def save(history: HistoryView, path: Path | str) -> None:
    """Write a history with its tensors into a folder, which is made if need be and has to be empty."""
    folder, writer = path_of(path), None
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise HistoryFileError(f"expected a new or empty folder, got {folder}, which exists already")
        writer = TensorWriter(folder)
        saved = _saved_history(history, *_write_tensors(history, writer))
        content = {"format": FORMAT, "version": VERSION, **json.loads(to_json(saved))}
        write_atomically(folder / _FILE, json.dumps(content, indent=1))
    except (OSError, TensorFileError) as error:
        if writer is not None:
            writer.discard()
            (folder / _FILE).unlink(missing_ok=True)
        raise HistoryFileError(_in_words(error, folder)) from None
    if saved.left_out:
        rendered = ", ".join(f"{name} ({why})" for name, why in list(saved.left_out.items())[:_FEW])
        more = len(saved.left_out) - _FEW
        warnings.warn(
            f"{folder}: safetensors cannot store {rendered}{f' and {more} more' if more > 0 else ''}; "
            "the rest of the history is saved",
            stacklevel=3,
        )


_FEW = 5


def _in_words(error: OSError | TensorFileError, folder: Path) -> str:
    if isinstance(error, TensorFileError):
        return str(error)
    return f"{error.filename or folder} cannot be written: {error.strerror}"


def path_of(path: object) -> Path:
    """Return a path given by a user.

    Raises
    ------
    TypeError
        If it is none.
    HistoryFileError
        If it has a character that no path has.
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
    """Write all that can be written; return what cannot, with the reasons, and the digests of what was written."""
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
    """A folder that a history was saved in, checked; tensors are read when asked for.

    Raises
    ------
    HistoryFileError
        If it is none, or damaged, or of a version that is not known here.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.saved = _parse(_content(folder), folder)
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
            there = op.label in self._tensors.names or op.label in (self.saved.left_out or {})
            if op.has_saved_activations and not there:
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


def _content(folder: Path) -> dict[str, Any]:
    file = folder / _FILE
    try:
        check_plain_file(file)
        content = json.loads(file.read_text(encoding="utf-8"), parse_int=_integer, parse_constant=_constant)
    except TensorFileError as error:
        raise HistoryFileError(str(error)) from None
    except OSError as error:
        streamed = folder.is_dir() and any(folder.glob("activations-*.safetensors"))
        hint = "; it has activations that were streamed to it: history.save(another folder) writes all" * streamed
        why = f"{_FILE} cannot be read ({error.strerror}){hint}"
        raise HistoryFileError(f"{folder} is not a saved history: {why}") from None
    except (ValueError, RecursionError) as error:
        raise HistoryFileError(f"{file} is damaged: {str(error) or type(error).__name__}") from None
    if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
        raise HistoryFileError(f"{file} is not a saved history: its format is not {FORMAT!r}")
    version = content.pop("version", None)
    if version != VERSION:
        raise HistoryFileError(f"{file}: expected version {VERSION}, got {version!r}: {_advice(version)}")
    return content


def _advice(version: object) -> str:
    if not isinstance(version, int) or version < 1:
        return "the file is damaged"
    return "update pytest-torchlens" if version > VERSION else "trace the model again and save the new history"


_DIGITS = 20  # of any 64-bit number


def _integer(text: str) -> int:
    if len(text.lstrip("-")) > _DIGITS:
        raise ValueError(f"a number has {len(text)} digits")
    return int(text)


def _constant(text: str) -> float:
    raise ValueError(f"{text} is not a valid number")


def _parse(content: dict[str, Any], folder: Path) -> SavedHistory:
    try:
        saved = from_json(json.dumps(content), SavedHistory)
    except (ValueError, RecursionError) as error:
        raise HistoryFileError(f"{folder / _FILE} is damaged: {error}") from None
    for problem in problems_of(saved.history, saved.stacks or {}, len(saved.frames)):
        raise HistoryFileError(f"{folder / _FILE} is damaged: {problem}")
    labels = {op.label for op in saved.history.operations}
    named = [_label_in(name) for name in saved.left_out or {}]
    for label in (*named, *(label for backward in saved.backward_passes for label in backward.layers)):
        if label not in labels:
            raise HistoryFileError(f"{folder / _FILE} is damaged: it names {label!r}, which is not an operation")
    return saved


def _label_in(name: str) -> str:
    """Return the label in the name of an activation or a gradient."""
    gradient = _GRADIENT.fullmatch(name)
    return gradient["label"] if gradient else name
