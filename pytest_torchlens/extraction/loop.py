"""`extract`: runs a model over a data loader and stores the activations of chosen layers."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import check_model
from pytest_torchlens.capture import record
from pytest_torchlens.capture.generators import Generators
from pytest_torchlens.capture.looks import named_modules
from pytest_torchlens.extraction.activations import Activations
from pytest_torchlens.extraction.batches import LoadedBatch
from pytest_torchlens.extraction.batches import Loader
from pytest_torchlens.extraction.batches import TakeInputs
from pytest_torchlens.extraction.graphs import ChosenOutputs
from pytest_torchlens.extraction.graphs import Graphs
from pytest_torchlens.extraction.index import FILE
from pytest_torchlens.extraction.index import LABELS
from pytest_torchlens.extraction.index import Batch
from pytest_torchlens.extraction.index import ExtractError
from pytest_torchlens.extraction.index import Index
from pytest_torchlens.extraction.index import Provenance
from pytest_torchlens.extraction.index import begun
from pytest_torchlens.extraction.index import folder_of
from pytest_torchlens.extraction.provenance import index_of
from pytest_torchlens.extraction.provenance import now
from pytest_torchlens.extraction.provenance import provenance_of
from pytest_torchlens.extraction.resume import check_activations
from pytest_torchlens.extraction.resume import check_batch
from pytest_torchlens.extraction.resume import check_repeatable
from pytest_torchlens.extraction.resume import check_same_run
from pytest_torchlens.extraction.shards import ShardWriter
from pytest_torchlens.extraction.shards import stored
from pytest_torchlens.extraction.state_before import StateBefore
from pytest_torchlens.extraction.transforms import Transformer
from pytest_torchlens.extraction.transforms import Transforms
from pytest_torchlens.history import LayersToSave
from pytest_torchlens.records.files import UnwritableError
from pytest_torchlens.records.files import exclusive
from pytest_torchlens.records.options import FLAG
from pytest_torchlens.records.options import Option
from pytest_torchlens.records.options import check_options
from pytest_torchlens.records.options import optional
from pytest_torchlens.records.options import whole

__tracebackhide__ = True  # pytest leaves our frames out of the traceback of what a model raises

_OPTIONS = {
    "labels": optional(Option("the place or key of the labels in a batch", (int, str))),
    "random_seed": optional(whole(0)),
    "eval_mode": FLAG,
    "shard_bytes": whole(1),
}


def extract(  # noqa: PLR0913 - options by name
    model: torch.nn.Module,
    loader: Iterable[Any],
    layers: LayersToSave,
    out: Path | str,
    *,
    transform: Transforms = None,
    inputs: TakeInputs | None = None,
    labels: int | str | None = None,
    random_seed: int | None = None,
    eval_mode: bool = True,
    shard_bytes: int = 64 << 20,
) -> Activations:
    """Run a model over a data loader, and store the activations of chosen layers in a folder.

    The model runs once for each batch, without gradients.  Memory holds the chosen activations of one batch, and one
    shard.  If the process is killed, the same call goes on behind the last shard: it checks that model, weights,
    options and batches are the same, runs the first and the last stored batch again and compares their activations.
    Afterwards the training modes of all modules and the global random generators are as they were before.

    Parameters
    ----------
    model
        Any `torch.nn.Module`.  Inputs are moved to the device of its first parameter.
    loader
        Yields batches, always in the same order: a `torch.utils.data.DataLoader` or another iterable.  A batch is a
        tensor, a tuple with the input first, or a dict of keyword arguments.  The first dimension of the first input
        counts the examples.
    layers
        As ``layers_to_save`` of `log_forward_pass`: labels, module addresses, parts of labels, queries, functions of an
        operation; also patterns (``"blocks.*.mlp"``) of labels and addresses.  A layer with several passes is
        stored as several.
    out
        The folder: new, empty, or with what an earlier run of the same call has stored.
    transform
        Function of an activation that returns the tensor to store, or a dict of functions by layer.  The first
        dimension of its result counts the examples.
    inputs
        Function of a batch that returns the model's inputs: a tensor, a tuple of positional arguments, or a dict of
        keyword arguments.  None (default) takes the usual ones.
    labels
        Place (in a tuple) or key (in a dict) of numbers to store with the examples, which the model does not get.
    random_seed
        Seed for the first batch; each later batch has the next number.  None (default) seeds nothing; then what draws
        random numbers cannot be resumed.
    eval_mode
        Whether to run the model in evaluation mode (default), or as it is.
    shard_bytes
        A file is written as soon as it has as many bytes; 64 MiB by default.

    Returns
    -------
    Activations
        What `load_activations` reads from the folder.

    Raises
    ------
    ExtractError
        If the folder has other files or what another call stored, a batch is not understood, a layer is missing in a
        batch, or its first dimension does not count the examples.
    LookupKeyError
        If a key does not match a layer; the message has the nearest one.
    OptionError, TypeError
        If an option is not valid.
    TraceError
        If `model` is not a module.
    Exception
        Whatever the model or the loader raises; what is stored until then stays.

    Examples
    --------
    >>> acts = extract(model, loader, ["layer4", "fc"], "acts")  # doctest: +SKIP
    >>> acts["layer4"][100:200].mean(dim=(2, 3))  # doctest: +SKIP
    """
    check_model(model)
    options = {"labels": labels, "random_seed": random_seed, "eval_mode": eval_mode, "shard_bytes": shard_bytes}
    check_options(_OPTIONS, options)
    if isinstance(loader, torch.Tensor):
        raise TypeError("loader: expected batches, got a tensor: give [tensor], or tensor.split(32) for several")
    if not isinstance(loader, Iterable):
        raise TypeError(f"loader: expected an iterable of batches, such as a DataLoader, got {loader!r:.60}")
    if inputs is not None and not callable(inputs):
        raise TypeError(f"inputs: expected a function of a batch, got {inputs!r:.60}")
    run = _Run(model, folder_of(out), Graphs(layers), Transformer(transform), random_seed)
    describe = partial(provenance_of, model, inputs, labels, random_seed)
    try:
        with exclusive(run.folder / FILE), _preserved(model, eval_mode), torch.no_grad():
            run.over(Loader(model, loader, inputs, labels), describe, shard_bytes)
    except UnwritableError as error:
        raise ExtractError(str(error)) from None
    return Activations(run.folder)


@contextlib.contextmanager
def _preserved(model: torch.nn.Module, eval_mode: bool) -> Iterator[None]:
    """Put back the modes of all modules and the states of the random generators."""
    modes = [(module, module.training) for _, module in named_modules(model)]
    generators = Generators()
    try:
        if eval_mode:
            model.eval()
        yield
    finally:
        generators.restore()
        for module, training in modes:
            module.training = training


class _Run:
    """One model over one data loader."""

    def __init__(
        self, model: torch.nn.Module, folder: Path, graphs: Graphs, transformer: Transformer, seed: int | None
    ) -> None:
        self.folder = folder
        self._model = model
        self._graphs = graphs
        self._transformer = transformer
        self._seed = seed
        self._written: set[str] = set()
        self._dtypes: dict[str, torch.dtype] = {}

    def over(self, loader: Loader, describe: Callable[[], Provenance], shard_bytes: int) -> None:
        """Store the activations of all batches that are not stored yet."""
        before = begun(self.folder)
        known = [] if before is None else before.batches
        batches = iter(loader)
        first = next(batches, None)
        if first is None:
            raise ExtractError("the loader is empty: it has no batch")
        writer, number = self._begin(first, before, describe(), shard_bytes), 0
        last: LoadedBatch | None = None
        for number, batch in enumerate(batches, 1):
            if number < len(known):
                check_batch(self.folder, batch, known[number])
                last = batch.copied() if number == len(known) - 1 else None  # some loaders use its memory again
                continue
            if before is not None and number == len(known):
                self._check_can_go_on(before, last)
            self._add(writer, batch, self._tensors(batch))
        if number + 1 < len(known):
            raise ExtractError(f"the loader ended after {number + 1} batches; {self.folder} has {len(known)} of before")
        writer.end()

    def _begin(self, first: LoadedBatch, before: Index | None, provenance: Provenance, shard_bytes: int) -> ShardWriter:
        """Run the first batch; store it, or compare it with what is stored."""
        tensors = self._tensors(first)
        index = index_of(provenance, self._graphs.operations, self._transformer)
        if before is None:
            writer = ShardWriter(self.folder, index, shard_bytes)
            self._add(writer, first, tensors)
            return writer
        check_same_run(self.folder, before, index)
        check_batch(self.folder, first, before.batches[0])
        check_activations(self.folder, before, first, tensors)
        resumed = dataclasses.replace(before.provenance, resumed=(*before.provenance.resumed, now()))
        return ShardWriter(self.folder, dataclasses.replace(before, provenance=resumed), shard_bytes)

    def _check_can_go_on(self, before: Index, last: LoadedBatch | None) -> None:
        """Check that later batches do not depend on those that are stored, of which `last` runs again."""
        check_repeatable(self.folder, before)
        if last is not None:
            check_activations(self.folder, before, last, self._tensors(last))

    def _add(self, writer: ShardWriter, batch: LoadedBatch, tensors: dict[str, torch.Tensor]) -> None:
        writer.note(self._written, self._graphs.random)
        writer.add(Batch(batch.examples, batch.digest), tensors)

    def _tensors(self, batch: LoadedBatch) -> dict[str, torch.Tensor]:
        """Run a batch and return what is to be stored of it, by name."""
        found = self._activations(batch)
        if self._transformer.unresolved:
            self._transformer.resolve(self._graphs.operations)
        tensors = {} if batch.labels is None else {LABELS: batch.labels}
        for label in list(found):
            tensors[label] = self._transformer.apply(label, found.pop(label), batch.name)
        return {name: self._checked(name, tensors.pop(name), batch) for name in list(tensors)}

    def _checked(self, name: str, tensor: torch.Tensor, batch: LoadedBatch) -> torch.Tensor:
        kept = stored(tensor, batch.examples, f"{name} in {batch.name}")
        expected = self._dtypes.setdefault(name, kept.dtype)
        if kept.dtype != expected:
            raise ExtractError(f"{name} in {batch.name} is of {kept.dtype}, in the batches before of {expected}")
        return kept

    def _activations(self, batch: LoadedBatch) -> dict[str, torch.Tensor]:
        """Run a batch; once more if it has a new graph, of which a chosen activation was not kept."""
        before = StateBefore(self._model, batch.arguments, with_contents=not self._graphs.known)
        outputs, touched = self._pass(batch, before)
        if any(tensor is None for tensor in outputs.values()):
            if lost := before.lost(touched):
                raise ExtractError(
                    f"{batch.name} runs other operations than those before, or holds more than 256 MiB, and would have "
                    f"to run twice; but the model writes to {lost[0]}: begin with a small batch of all operations"
                )
            before.restore()
            outputs, touched = self._pass(batch, before)
        self._written.update(label for label in touched if not label.startswith("input"))
        if missing := [label for label, tensor in outputs.items() if tensor is None]:
            raise ExtractError(f"{batch.name}: {missing[0]} cannot be kept: the model runs otherwise each time")
        if self._seed is not None:
            before.generators.restore()  # the loader's random numbers do not depend on the model
        return {label: tensor for label, tensor in outputs.items() if tensor is not None}

    def _pass(self, batch: LoadedBatch, before: StateBefore) -> tuple[dict[str, torch.Tensor | None], list[str]]:
        """Run a batch; return the chosen activations, None where one was not kept, and what the model wrote to."""
        keepers: list[ChosenOutputs] = []

        def keep(recording: Recording) -> ChosenOutputs:
            keepers.append(ChosenOutputs(recording, self._graphs.known))
            return keepers[0]

        seed = None if self._seed is None else self._seed + batch.number
        recording = record(self._model, *batch.arguments, keep=keep, seed=seed)
        graph = keepers[0].followed_graph() or self._graphs.add(recording, batch.name)
        outputs = {label: keepers[0].read(place) for label, place in graph.chosen.items()}
        self._graphs.note_random(recording, graph)
        rebound = before.rebound() if batch.number else []  # batch 1 does it again when a run is resumed
        return outputs, [*_written(recording), *rebound, *recording.silent_writes]


def _written(recording: Recording) -> Iterator[str]:
    """Yield what the model wrote to: inputs, parameters, buffers, and tensors of attributes and globals."""
    for source in recording.sources:
        if source.written and source.kind != "constant":
            yield source.label
        elif source.written and source.name:  # what has no name was made in the pass
            yield f"tensor {source.name!r}"
