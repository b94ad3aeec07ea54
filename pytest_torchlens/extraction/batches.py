"""What a loader yields: the model's inputs, the labels, the number of examples."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import xxhash

from pytest_torchlens.capture import TraceError
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.leaves import ATOMS
from pytest_torchlens.capture.leaves import substitute
from pytest_torchlens.capture.leaves import walk
from pytest_torchlens.capture.leaves import walk_all
from pytest_torchlens.capture.looks import named_buffers
from pytest_torchlens.capture.looks import named_parameters
from pytest_torchlens.extraction.index import ExtractError
from pytest_torchlens.history.history_options import Arguments
from pytest_torchlens.history.history_options import arguments_of
from pytest_torchlens.records import close

TakeInputs = Callable[[Any], Any]


@dataclass(frozen=True)
class LoadedBatch:
    """One batch of the loader.

    Attributes
    ----------
    number
        From 0.
    arguments
        Positional and keyword arguments of the model, on its device.
    labels
        Labels of the examples; None if none were asked for.
    examples
        Their number: the first dimension of the first input.
    digest
        Digest of the inputs.
    """

    number: int
    arguments: Arguments
    labels: torch.Tensor | None
    examples: int
    digest: str

    @property
    def name(self) -> str:
        """How messages name it, from 1."""
        return f"batch {self.number + 1}"

    def copied(self) -> LoadedBatch:
        """Return the batch with inputs of its own."""
        return dataclasses.replace(self, arguments=substitute(self.arguments, _copied))


def _copied(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf


class Loader:
    """Reads the batches of a data loader.

    Parameters
    ----------
    model
        The model that they are for.
    batches
        Yields tensors, tuples with the input first, or dicts of keyword arguments.
    inputs
        Returns the model's inputs in a batch; None for the usual.
    labels
        Place or key of the labels in a batch; None if they are not stored.
    """

    def __init__(
        self, model: torch.nn.Module, batches: Iterable[Any], inputs: TakeInputs | None, labels: int | str | None
    ) -> None:
        self._model = model
        self._batches = batches
        self._inputs = inputs
        self._labels = labels
        self._device = device_of(model)

    def __iter__(self) -> Iterator[LoadedBatch]:
        """Yield the batches."""
        for number, batch in enumerate(self._batches):
            yield self._read(number, batch)

    def _read(self, number: int, batch: Any) -> LoadedBatch:
        where = f"batch {number + 1}"
        inputs = self._usual_inputs(batch, where) if self._inputs is None else self._inputs(batch)
        args, kwargs = self._arguments(inputs, where)
        tensors = [tensor for _, tensor in walk((args, kwargs))]
        if not tensors or tensors[0].dim() == 0:
            raise ExtractError(f"{where}: expected a tensor with the examples in its first dimension, {_usage(inputs)}")
        examples, digest = len(tensors[0]), digest_of((args, kwargs))
        labels = None if self._labels is None else self._labels_in(batch, examples, where)
        args, kwargs = substitute((args, kwargs), self._on_device)
        return LoadedBatch(number, (args, kwargs), labels, examples, digest)

    def _on_device(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and self._device is not None and leaf.device != self._device:
            return leaf.to(self._device)
        return leaf

    def _arguments(self, inputs: Any, where: str) -> Arguments:
        if not isinstance(inputs, Mapping | torch.Tensor | list | tuple):
            raise ExtractError(f"{where}: {_usage(inputs)}")
        named = dict(inputs) if isinstance(inputs, Mapping) else None
        args = (inputs,) if isinstance(inputs, torch.Tensor) else () if named is not None else tuple(inputs)
        try:
            return arguments_of(self._model, args, named)
        except TraceError as error:
            fix = "" if self._inputs else " Give inputs=, a function of the batch that returns what forward takes."
            raise ExtractError(f"{where}: {error}{fix}") from None

    def _usual_inputs(self, batch: Any, where: str) -> Any:
        if isinstance(batch, Mapping):
            return {key: value for key, value in batch.items() if key != self._labels}
        if isinstance(batch, torch.Tensor):
            return batch
        if isinstance(batch, list | tuple) and batch:
            return batch[0]
        raise ExtractError(f"{where}: {_usage(batch)}")

    def _labels_in(self, batch: Any, examples: int, where: str) -> torch.Tensor:
        """Return the labels in a batch, as a tensor of one or more numbers an example."""
        key: Any = self._labels
        try:
            found = batch[key] if isinstance(batch, Mapping | list | tuple) else None
        except (KeyError, IndexError, TypeError):
            found = None
        if found is None:
            known = map(str, batch) if isinstance(batch, Mapping) else []
            hint = close(str(key), known) or f"it is {_kind(batch)}"
            raise ExtractError(f"labels: {where} has no {key!r}; {hint}")
        try:
            labels = torch.as_tensor(found).detach()
        except (TypeError, ValueError, RuntimeError):
            raise ExtractError(f"labels: {where}: expected numbers, got {_kind(found)}") from None
        if labels.dim() == 0 or len(labels) != examples:
            raise ExtractError(f"labels: {where} has {examples} examples, and labels of shape {tuple(labels.shape)}")
        return labels


def _usage(got: Any) -> str:
    return (
        f"got {_kind(got)}; a batch is a tensor, a tuple with the input first, or a dict of the model's keyword "
        "arguments; for any other, give inputs=, a function of the batch that returns one of these"
    )


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} of {', '.join(map(str, itertools.islice(value, 6))) or 'nothing'}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {', '.join(type(item).__name__ for item in value[:6]) or 'nothing'}"
    return f"{type(value).__name__}: {value!r:.60}"


def device_of(model: torch.nn.Module) -> torch.device | None:
    """Return the device of a model's first parameter or buffer; None if it has none."""
    members = itertools.chain(named_parameters(model), named_buffers(model))
    return next((tensor.device for _, tensor in members), None)


def digest_of(value: Any) -> str:
    """Return a digest of all tensors and plain values in a container."""
    parts = [_text(path, item) for path, item in walk_all(value)]
    return xxhash.xxh3_64_hexdigest("\n".join(parts).encode(errors="surrogatepass"))


def digest_of_weights(model: torch.nn.Module) -> str:
    """Return a digest of the names and contents of all parameters and buffers."""
    return digest_of(dict(itertools.chain(named_parameters(model), named_buffers(model))))


def _text(path: str, item: Any) -> str:
    if isinstance(item, torch.Tensor):
        return f"{path} {item.dtype} {tuple(item.shape)} {fingerprint(item)}"
    return f"{path} {item!r}" if type(item) in ATOMS else path


def name_of(function: Any) -> str:
    """Return a name of a function, as ``"module.function"``."""
    function = inspect.unwrap(getattr(function, "func", function))
    name = getattr(function, "__qualname__", type(function).__qualname__)
    module = getattr(function, "__module__", None) or ""
    return f"{module}.{name}" if module not in ("", "builtins", "__main__") else name
