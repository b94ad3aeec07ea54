"""Finds the sequence in a model's inputs, what goes with it (masks, positions), and makes other sequences of it."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from pytest_torchlens.capture.looks import named_modules
from pytest_torchlens.checks.draws import is_whole
from pytest_torchlens.checks.draws import other_values
from pytest_torchlens.checks.inputs import arguments_by_name
from pytest_torchlens.checks.inputs import check_argument
from pytest_torchlens.checks.inputs import takes
from pytest_torchlens.checks.inputs import with_inputs
from pytest_torchlens.checks.subject import ModelRaisedError
from pytest_torchlens.checks.subject import NotApplicableError
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.subject import WrongOptionError
from pytest_torchlens.records import close

DECODER_IDS = "decoder_input_ids"
_IDS = ("input_ids", "inputs_embeds")
_FAMILIES = ("decoder", "tgt", "src", "memory", "encoder")
"""First words of names: arguments that begin with the same one belong together."""
POSITIONS = "position_ids"
CACHES = ("cache", "past_key_values", "cache_params", "past_key_value", "state")
"""Names of arguments and outputs that carry what was computed of former positions."""
_PAIR = 2
_PAIRS = ("mask", "bias")
"""What names of tables of pairs hold."""
_OF_EXAMPLES = ("attention_mask", "padding_mask")
"""How names of masks end whose tables have one row an example."""


class Sequence:
    """The sequence in the inputs of a model.

    Parameters
    ----------
    subject
        A subject whose inputs are keyword arguments.
    name
        The argument that holds the sequence.
    dim
        Its dimension of positions.
    """

    def __init__(self, subject: Subject, name: str, dim: int) -> None:
        self.subject = subject
        self.name = name
        self.dim = dim
        self.tensor: torch.Tensor = subject.kwargs[name]
        self.length = self.tensor.size(dim)

    def part(self, start: int, length: int) -> dict[str, Any]:
        """Return the arguments with only some of the positions."""

        def cut(name: str, tensor: torch.Tensor) -> torch.Tensor:
            for dim in self.dims_of(name):
                tensor = tensor.narrow(dim, start, length)
            return tensor.clone()

        kwargs = self.subject.kwargs
        return {name: cut(name, value) if self.goes_with(name) else value for name, value in kwargs.items()}

    def goes_with(self, name: str) -> bool:
        """Return whether an argument is the sequence, or has a value for each of its positions."""
        value = self.subject.kwargs.get(name)
        if name == self.name or not isinstance(value, torch.Tensor):
            return name == self.name
        return _belongs(name, self.name) and bool(self.dims_of(name))

    def dims_of(self, name: str) -> list[int]:
        """Return the dimensions of an argument that are those of the positions; two of a mask of pairs."""
        tensor = self.subject.kwargs[name]
        if name == self.name:
            return [self.dim]
        if self.is_of_pairs(name):
            return [tensor.dim() - 2, tensor.dim() - 1]
        dim = 0 if tensor.dim() == 1 and _says_positions(name) else self.dim
        return [dim] if tensor.dim() > dim and tensor.size(dim) == self.length else []

    def is_of_pairs(self, name: str) -> bool:
        """Return whether an argument has a value for each pair of positions.

        Where there are as many examples as positions, the name decides what a table is.
        """
        tensor = self.subject.kwargs[name]
        if name == self.name or tensor.dim() < _PAIR or tensor.shape[-_PAIR:] != (self.length, self.length):
            return False
        if self.tensor.shape.count(self.length) == 1:
            return True
        is_table = tensor.dim() == _PAIR
        if is_table and not self._has_examples(tensor):
            return True
        return any(word in name for word in _PAIRS) and not (is_table and name.endswith(_OF_EXAMPLES))

    def _has_examples(self, tensor: torch.Tensor) -> bool:
        """Return whether an argument may have a value for each example: where these are in the first dimension."""
        return bool(self.dim and tensor.dim()) and tensor.size(0) == self.tensor.size(0)

    def of_one_example(self) -> Sequence:
        """Return the sequence of the first example alone; itself, if there is no other, or the model refuses it."""
        if not self._has_examples(self.tensor) or self.tensor.size(0) == 1:
            return self
        kwargs = self.subject.kwargs
        whole = {id(value) for name, value in kwargs.items() if self.goes_with(name) and 0 in self.dims_of(name)}

        def first(tensor: torch.Tensor) -> torch.Tensor:
            return tensor[:1].clone() if self._has_examples(tensor) and id(tensor) not in whole else tensor

        key = ("one example", self.name, self.dim)
        try:
            alone = self.subject.once(key, lambda: self.of(with_inputs(self.subject, first).kwargs))
            alone.subject.deadline = self.subject.deadline
            _ = alone.subject.outputs
        except (ModelRaisedError, NotApplicableError):
            return self
        return alone

    def with_others(self, start: int, length: int, seed: int = 1) -> dict[str, Any]:
        """Return the arguments with other values at some of the positions: of whole numbers some that are in it."""
        return self.subject.kwargs | {self.name: _with_others(self.tensor, self.dim, start, length, seed)}

    def with_new(self, start: int, length: int) -> dict[str, Any]:
        """Return the arguments with ids at some of the positions that the sequence does not have.

        They are between its least and its largest, so that any table has them, and none of those that a configuration
        names (`eos_token_id`).  If there are none, they are those of `with_others`.
        """
        tensor, kwargs = self.tensor, self.subject.kwargs
        new = _ids_between(tensor, _special_ids(self.subject.model)) if is_whole(tensor) else []
        if not new:
            return self.with_others(start, length)
        made = tensor.detach().clone()
        part = made.narrow(self.dim, start, length)
        chosen = torch.randint(len(new), part.shape, generator=torch.Generator().manual_seed(1))
        part.copy_(torch.tensor(new)[chosen])
        return kwargs | {self.name: made}

    @property
    def others(self) -> list[str]:
        """The inputs beside the sequence, masks and positions of it: an image whose places are in a text."""
        tensors = [name for name, value in self.subject.kwargs.items() if isinstance(value, torch.Tensor)]
        named = [name for name in tensors if "mask" not in name and "position" not in name]
        return [name for name in named if not self.goes_with(name) and _belongs(name, self.name)]

    def of(self, kwargs: dict[str, Any]) -> Sequence:
        """Return the sequence in other arguments of the same names, for the same model."""
        return Sequence(self.subject.with_inputs((), kwargs), self.name, self.dim)


def _says_positions(name: str) -> bool:
    return any(word in name for word in ("position", "mask")) and "head" not in name


def _belongs(name: str, to: str) -> bool:
    """Return whether two arguments are of one part of a model: ``mask`` is that of ``src``, too."""
    return _family(name) == _family(to) or (_family(to) == "src" and not _family(name))


def _family(name: str) -> str:
    first = name.split("_", maxsplit=1)[0]
    return first if first in _FAMILIES else ""


def _ids_between(tensor: torch.Tensor, without: set[int]) -> list[int]:
    """Return ids between the least and the largest of a tensor that it does not hold: some, if there are many."""
    least, largest = int(tensor.min()), int(tensor.max())
    drawn = torch.randint(least, largest + 1, (_DRAWN,), generator=torch.Generator().manual_seed(1))
    return sorted({*drawn.tolist()} - {*tensor.flatten().tolist()} - without)


_DRAWN = 256


def _special_ids(model: nn.Module) -> set[int]:
    """Return the ids that the configuration of a model, or of a part of it, names."""
    found: set[int] = set()
    for _, module in named_modules(model):
        values = getattr(vars(module).get("config"), "__dict__", {})
        found |= {one for name, one in values.items() if name.endswith(_OF_IDS) and isinstance(one, int)}
    return found


_OF_IDS = ("_token_id", "_token_index")


def _with_others(tensor: torch.Tensor, dim: int, start: int, length: int, seed: int) -> torch.Tensor:
    made = tensor.detach().clone()
    part = made.narrow(dim, start, length)
    if tensor.dtype is torch.bool:
        part.logical_not_()
    elif not is_whole(tensor):
        part.copy_(other_values(part, seed))
    else:
        part.copy_(_other_tokens(part, tensor, seed))
    return made


def _other_tokens(part: torch.Tensor, tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """Return another token of a sequence for each: a permutation would be none to a model that adds all up."""
    known: torch.Tensor = torch.unique(tensor)
    if len(known) == 1:
        raise NotApplicableError("all tokens of the sequence are the same, so none can be changed")
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randint(1, len(known), part.shape, generator=generator).to(part.device)
    return known[(torch.searchsorted(known, part.contiguous()) + steps) % len(known)]


@contextlib.contextmanager
def beside_others(sequence: Sequence) -> Iterator[None]:
    """Raise as not applicable what a model raises that has inputs beside the sequence, which cannot be cut alike."""
    try:
        yield
    except ModelRaisedError as error:
        if not sequence.others:
            raise
        raise NotApplicableError(f"with {', '.join(sequence.others)} beside {sequence.name!r}, {error}") from error


def by_name(subject: Subject) -> Subject:
    """Return the subject with its inputs as keyword arguments.

    Raises
    ------
    NotApplicableError
        If forward's arguments have no names.
    """
    if not subject.args:
        return subject
    named = subject.once(("by name",), lambda: subject.with_inputs((), arguments_by_name(subject)))
    named.deadline = subject.deadline
    return named


def find_sequence(subject: Subject, ids: str = "", dim: int = 1, *, decoder: bool = False) -> Sequence:
    """Return the sequence in the inputs of a subject: of one example, where the model takes one alone.

    Parameters
    ----------
    subject
        The subject.
    ids
        The argument that holds the sequence; empty to find it by its name, or as the only tensor.
    dim
        Its dimension of positions.
    decoder
        Whether it is the decoder's, of a model that has an encoder, too.

    Raises
    ------
    NotApplicableError
        If it is not known; the message says what to write.
    WrongOptionError
        If the inputs have no such tensor, or no such dimension.
    """
    named = by_name(subject)
    tensors = {name: value for name, value in named.kwargs.items() if isinstance(value, torch.Tensor)}
    name = ids or _name_of(tensors, decoder)
    if name not in tensors:
        hint = close(name, tensors)
        held = f"they hold {', '.join(tensors) or 'none'}{hint and f' ({hint})'}"
        raise WrongOptionError(f"ids: the inputs hold no tensor {name!r}; {held}")
    tensor = tensors[name]
    if not ids and tensor.dim() > _MOST_DIMS:
        raise NotApplicableError(
            f"{name!r} has {tensor.dim()} dimensions; 'ids' among its options says that it is a sequence"
        )
    if tensor.dim() <= dim or tensor.layout is not torch.strided or tensor.is_nested:
        wrong = WrongOptionError if dim != 1 else NotApplicableError
        raise wrong(f"{name!r} has no dimension {dim}; 'dim' among its options names another")
    if tensor.size(dim) < _SHORTEST:
        raise NotApplicableError(f"{name!r} has {tensor.size(dim)} positions, too few: {_SHORTEST} are needed")
    found = Sequence(named, name, dim).of_one_example()
    try:
        _ = found.subject.outputs
    except ModelRaisedError as error:
        raise NotApplicableError(f"with its inputs passed by name {error}") from error
    return found


_SHORTEST = 4
_MOST_DIMS = 3
"""Examples, positions and channels; with more it is likely an image."""


def _name_of(tensors: Mapping[str, torch.Tensor], decoder: bool) -> str:
    names = (DECODER_IDS, *_IDS) if decoder else _IDS
    found = [name for name in names if name in tensors]
    others = [name for name in tensors if "mask" not in name and "position" not in name]
    if not found and len(others) != 1:
        raise NotApplicableError(
            f"which input is the sequence is not known: 'ids' among its options names one of {', '.join(others)}"
        )
    return found[0] if found else others[0]


def says_causal(model: nn.Module) -> bool | None:
    """Return whether a model says that it is causal; None if nothing says so, or its parts disagree."""
    config = getattr(model, "config", None)
    if getattr(config, "is_decoder", None) is True or takes(model, DECODER_IDS):
        return True
    if type(model).__name__.endswith("ForCausalLM") and getattr(config, "is_decoder", None) is None:
        return True
    if config is None:  # a part of it may be causal, and the whole not
        return None
    flags = {module.is_causal for _, module in named_modules(model) if isinstance(vars(module).get("is_causal"), bool)}
    if len(flags) == 1:
        return bool(flags.pop())
    if getattr(config, "is_decoder", None) is False or flags:
        return None
    return _has_causal_head(model) or None


def _has_causal_head(model: nn.Module) -> bool:
    """Return whether transformers has a ``…ForCausalLM`` of a bare model."""
    if not type(model).__module__.startswith("transformers."):
        return False
    names = importlib.import_module("transformers.models.auto.modeling_auto").MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    kind = str(getattr(getattr(model, "config", None), "model_type", ""))
    return str(names.get(kind, "")).endswith("ForCausalLM")


def positions_of(model: nn.Module, name: str = "") -> str:
    """Return the argument that takes positions; empty if forward has none.

    Raises
    ------
    WrongOptionError
        If forward has no argument of the name that is given.
    """
    check_argument(model, "positions", name)
    return name or (POSITIONS if takes(model, POSITIONS) else "")


def with_positions(sequence: Sequence, name: str) -> Sequence:
    """Return a sequence with its positions among the arguments, if the model takes them so."""
    if not name or name in sequence.subject.kwargs:
        return sequence
    batch = sequence.tensor.size(0) if sequence.dim else 1
    counted = torch.arange(sequence.length, device=sequence.tensor.device).expand(batch, -1)
    placed = sequence.of(sequence.subject.kwargs | {name: counted.clone()})
    try:
        _ = placed.subject.outputs
    except ModelRaisedError:
        return sequence
    return placed
