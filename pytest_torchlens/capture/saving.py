"""Saves activations: by options, with gradients, or streamed to disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pytest_torchlens.capture.calls import Recording
from pytest_torchlens.capture.gradients import Gradients
from pytest_torchlens.capture.memory import Retention
from pytest_torchlens.capture.memory import detached
from pytest_torchlens.capture.memory import duplicate
from pytest_torchlens.capture.memory import rekey
from pytest_torchlens.capture.storage import storage_key
from pytest_torchlens.capture.storage import storage_of
from pytest_torchlens.capture.tensor_files import TensorReader
from pytest_torchlens.capture.tensor_files import TensorWriter
from pytest_torchlens.capture.tensor_files import why_not_storable
from pytest_torchlens.capture.values import Value
from pytest_torchlens.capture.values import version_of
from pytest_torchlens.records.files import why_no_path


class SavingError(RuntimeError):
    """An activation cannot be saved as the options say; the message names the operation and the reason."""


@dataclass(frozen=True)
class SaveOptions:
    """Steps applied to each activation before it is saved, in the order of the attributes; the model is not affected.

    Raises
    ------
    TypeError, ValueError
        If the value of an option is not valid.

    Attributes
    ----------
    detach
        Whether to detach it from the autograd graph.
    transform
        Function of the activation that returns a tensor to save in its place.  It must not write to its argument or
        draw random numbers: both would change the model's results.
    dtype
        Type to convert floating-point activations to; others stay as they are.
    device
        Device to move it to: ``"cpu"``.
    stream_to
        Folder to write it to while the model runs, as safetensors; it is read back on demand.  Only about 64 MiB stay
        in memory, so a model's activations may exceed it.  All activations are written while the model runs, because
        labels are known only after the pass; then those that `layers_to_save` does not select are removed.
    gradients
        Whether to record the gradient of each activation in every later backward pass.
    """

    detach: bool = False
    transform: Callable[[torch.Tensor], torch.Tensor] | None = None
    dtype: torch.dtype | None = None
    device: torch.device | str | None = None
    stream_to: Path | str | None = None
    gradients: bool = False

    def __post_init__(self) -> None:
        """Check the options before anything runs."""
        for name, (is_valid, expected) in _CHECKS.items():
            if not is_valid(value := getattr(self, name)):
                raise TypeError(f"{name} of SaveOptions: expected {expected}, got {value!r:.80}")
        if self.device is not None:
            _check_device(self.device)

    def apply(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor to save for an activation; it may share the activation's memory."""
        saved = detached(tensor) if self.detach else tensor
        if self.transform is not None:
            before = version_of(tensor)
            saved = self.transform(saved)
            if version_of(tensor) != before:
                raise RuntimeError("the transform wrote to its argument, which the model still uses; clone it first")
            if not isinstance(saved, torch.Tensor):
                raise TypeError(f"the transform: expected a tensor as its result, got {type(saved).__name__}")
        if self.dtype is not None and saved.is_floating_point():
            saved = saved.to(self.dtype)
        return saved if self.device is None else saved.to(self.device)


def _is_truth(value: object) -> bool:
    return isinstance(value, bool)


def _is_path(value: object) -> bool:
    return isinstance(value, str | Path) and value != "" and not why_no_path(value)


_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "detach": (_is_truth, "True or False"),
    "gradients": (_is_truth, "True or False"),
    "transform": (lambda value: value is None or callable(value), "a function of a tensor"),
    "dtype": (
        lambda value: value is None or (isinstance(value, torch.dtype) and value.is_floating_point),
        "a floating-point type such as torch.float16",
    ),
    "stream_to": (lambda value: value is None or _is_path(value), "the path of a folder"),
}


def _check_device(device: object) -> None:
    try:
        torch.device(device)  # type: ignore[call-overload]
    except (RuntimeError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"device of SaveOptions: expected a device of torch, got {device!r:.80}: {reason}") from None


class Stream:
    """Activations that are on disk instead of in memory, by value."""

    def __init__(self, folder: Path) -> None:
        self._writer = TensorWriter(folder)
        self._reader: TensorReader | None = None

    def write(self, value: Value, tensor: torch.Tensor) -> None:
        """Write an activation."""
        self._writer.write(_name(value), tensor)

    def close(self) -> None:
        """Write the activations that are still in memory."""
        self._writer.flush()

    def has(self, value: Value) -> bool:
        """Return whether a value's activation was written."""
        return _name(value) in self._writer.names

    def keep_only(self, values: Iterable[Value]) -> None:
        """Remove all other values from the disk."""
        self._reader = None
        self._writer.keep_only({_name(value) for value in values})

    def read(self, value: Value) -> torch.Tensor:
        """Read an activation."""
        if self._reader is None:
            self._reader = TensorReader(self._writer.folder)
        return self._reader.read(_name(value))


def _name(value: Value) -> str:
    return f"{value.call}.{value.position}"


class OptionRetention(Retention):
    """Saves activations as the options say, and records their gradients."""

    def __init__(self, recording: Recording, options: SaveOptions) -> None:
        super().__init__(in_graph=options.gradients and not options.detach)
        self._calls = recording.calls
        self._options = options
        self._gradients = recording.gradients = Gradients() if options.gradients else None
        self._stream = recording.stream = Stream(Path(options.stream_to)) if options.stream_to is not None else None

    def keep_output(self, value: Value, tensor: torch.Tensor, key: int) -> None:
        """Save an output of a call."""
        with torch._C.DisableTorchFunction():  # the model does none of this
            call = self._calls[value.call]
            self.watch(value, tensor, call.info.writer is not None or "out" in call.kwargs)
            saved = self._apply_options(value, tensor)
            if self._stream is not None and not why_not_storable(saved):
                self._stream.write(value, saved)
            elif storage_key(saved) == key:
                self.keep(value, saved, key)
            else:
                value.tensor = saved

    def watch(self, value: Value, tensor: torch.Tensor, written: bool = False) -> None:
        """Record the gradients of a tensor, if the options say so."""
        if self._gradients is not None and value.requires_grad:
            self._gradients.watch(value, tensor, written)

    def _apply_options(self, value: Value, tensor: torch.Tensor) -> torch.Tensor:
        try:
            return self._options.apply(tensor)
        except Exception as error:
            name = self._calls[value.call].info.name
            raise SavingError(
                f"the output of {name} (call {value.call}, shape {tuple(value.shape)}) cannot be saved: "
                f"{type(error).__name__}: {error}"
            ) from error


@dataclass
class _Held:
    """Memory that saved outputs hold, of which each holds all: its key, how many hold it, its size."""

    key: int
    of_source: bool
    uses: int = 0
    nbytes: int = 0


class RecentOutputs(Retention):
    """Saves outputs as `Retention` does, and lets go of the oldest when they hold more than 16 MiB.

    Of those that are overwritten, 4 MiB are copied in a pass.  Memory of sources does not count: they hold it anyway.
    """

    def __init__(self) -> None:
        super().__init__()
        self._saved: deque[tuple[Value, _Held]] = deque()
        self._held: dict[int, _Held] = {}
        self._nbytes = self._copied = 0

    def keep_output(self, value: Value, tensor: torch.Tensor, key: int) -> None:
        """Save an output of a call."""
        held = self._held.get(key) or _Held(key, of_source=key != 0 and key in self._by_memory)
        self.keep(value, tensor, key)
        if key:  # tensors without memory share nothing
            self._held[key] = held
        held.uses += 1
        self._saved.append((value, held))
        self._charge(held, 0 if held.of_source else _size_of_memory(value, tensor))
        while self._nbytes > _MOST_RECENT and len(self._saved) > 1:
            self._let_go(*self._saved.popleft())

    def _charge(self, held: _Held, nbytes: int) -> None:
        self._nbytes += nbytes - held.nbytes
        held.nbytes = nbytes

    def _let_go(self, value: Value, held: _Held) -> None:
        value.tensor = None
        held.uses -= 1
        if held.uses == 0:
            self._charge(held, 0)
            if self._held.get(held.key) is held:  # not copied
                del self._held[held.key]
                if not held.of_source:
                    del self._by_memory[held.key]

    def follow_move(self, old: int, new: int) -> None:
        """Find the saved tensors over memory `old` at `new` from now on."""
        super().follow_move(old, new)
        if old in self._held:
            self._held[old].key = new
        rekey(self._held, old, new)

    def before_write(self, key: int) -> None:
        """Copy the saved tensors over this memory; let go of outputs if that many bytes are copied already."""
        held = self._held.pop(key, None)
        if held is not None:
            self._copied += held.nbytes
            if self._copied > _MOST_COPIED:
                self._charge(held, 0)
                for value in self._by_memory.get(key, ()):
                    value.tensor = value.tensor if value.call < 0 else None
        if key in self._by_memory:
            self._by_memory[key] = [value for value in self._by_memory[key] if value.tensor is not None]
        super().before_write(key)


def _size_of_memory(value: Value, tensor: torch.Tensor) -> int:
    if type(value.digest) is int:  # a plain tensor, whose storage needs no care
        return tensor.untyped_storage().nbytes()
    with torch._C.DisableTorchFunction():
        storage = storage_of(tensor)
        return value.nbytes if storage is None else storage.nbytes()


_MOST_RECENT = 16 * 2**20
_MOST_COPIED = 4 * 2**20


class FunctionCopies(Retention):
    """Saves copies of the outputs of some functions; later writes by the model do not change them.

    Parameters
    ----------
    recording
        The recording.
    names
        The functions' own names: ``"add_"``.
    """

    def __init__(self, recording: Recording, names: frozenset[str]) -> None:
        super().__init__()
        self._calls = recording.calls
        self._names = names

    def keep_output(self, value: Value, tensor: torch.Tensor, key: int) -> None:
        """Save a copy of an output if its function is one of them."""
        if self._calls[value.call].info.name in self._names:
            with torch._C.DisableTorchFunction():
                value.tensor = duplicate(tensor)
