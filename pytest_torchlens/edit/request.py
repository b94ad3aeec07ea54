"""What is to be edited: the places and what is put there, checked before anything runs."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from pytest_torchlens.capture import Source
from pytest_torchlens.edit.changes import for_each_pass
from pytest_torchlens.edit.changes import replacement
from pytest_torchlens.edit.function import CallEdits
from pytest_torchlens.edit.function import Changes
from pytest_torchlens.edit.gradients import GradientChange
from pytest_torchlens.edit.places import Place
from pytest_torchlens.edit.places import places_of
from pytest_torchlens.edit.places import without_index
from pytest_torchlens.history.lookup import LookupKeyError
from pytest_torchlens.records import close
from pytest_torchlens.replay import Subgraph
from pytest_torchlens.replay.swaps import EdgeSwaps
from pytest_torchlens.replay.swaps import Swaps


class Request:
    """All edits of one pass.

    Parameters
    ----------
    whole
        The whole graph.
    edits
        Changes by key.
    at
        Index inside the tensors of keys that have none.
    inputs, parameters
        Changes by the name of an input or parameter.
    gradients
        Changes of gradients by key.

    Raises
    ------
    LookupKeyError, ValueError, TypeError
        If one does not fit.
    """

    def __init__(
        self,
        whole: Subgraph,
        edits: Mapping[Any, Any] | None,
        at: Any,
        inputs: Mapping[str, Any] | None,
        parameters: Mapping[str, Any] | None,
        gradients: Mapping[Any, Any] | None = None,
    ) -> None:
        self.whole = whole
        self.changes: Changes = []
        self.places_by_key: dict[Any, list[Place]] = {}
        """What each key of the edits names."""
        for key, change in _mapping("edits", edits).items():
            places = self.places_by_key[key] = places_of(whole, key, at)
            self.changes += zip(places, for_each_pass(places, change), strict=True)
        for name, change in _mapping("inputs", inputs).items():
            value = self._input(name).value
            self.changes.append((Place(whole.label_of(value), value), change))
        for name, change in _mapping("parameters", parameters).items():
            source = self._parameter(name)
            label = source.name if source.kind == "parameter" else whole.label_of(source.value)
            self.changes.append((Place(label, source.value), change))
        self.of_gradients = bool(gradients)
        """Whether gradients are edited, for which autograd must follow the pass from its beginning."""
        for key, change in _mapping("gradients", gradients).items():
            places = places_of(whole, key, at)
            self.changes += [(without_index(place), GradientChange(whole.recording, place, change)) for place in places]
        if not self.changes:
            raise ValueError("edit: expected one edit or more, such as history.edit({'relu_1': 0.0}), got none")
        self.swaps: Swaps = {key: replacement(changes) for key, changes in self._of_values().items()}
        self.edges: EdgeSwaps = {
            number: {key: replacement(changes) for key, changes in by_value.items()}
            for number, by_value in self._of_edges().items()
        }

    def _of_values(self) -> dict[int, Changes]:
        """Return what changes for all, by the id of the value."""
        found: dict[int, Changes] = {}
        for place, change in self.changes:
            if place.consumer is None:
                found.setdefault(id(place.value), []).append((place, change))
        return found

    def _of_edges(self) -> dict[int, dict[int, Changes]]:
        """Return what changes for a single call, by its number and the id of the value."""
        found: dict[int, dict[int, Changes]] = {}
        for place, change in self.changes:
            if place.consumer is not None:
                found.setdefault(place.consumer, {}).setdefault(id(place.value), []).append((place, change))
        return found

    def of_calls(self) -> dict[int, CallEdits]:
        """Return the edits of calls by number."""
        found: dict[int, CallEdits] = {}
        for place, change in self.changes:
            number = place.value.call if place.consumer is None else place.consumer
            if number >= 0:
                found.setdefault(number, CallEdits(self.whole.recording.calls[number])).add(place, change)
        return found

    def of_sources(self) -> dict[int, Source]:
        """Return the edited inputs, parameters, buffers and constants by the id of their value."""
        sources = {id(source.value): source for source in self.whole.recording.sources}
        return {key: sources[key] for key in self.swaps if key in sources}

    def _parameter(self, name: str) -> Source:
        """Return the parameter or buffer of a name, which may be any name of a tied one."""
        read = self.whole.sources_of_model()
        if name not in read:
            model = self.whole.recording.model()
            is_there = model is not None and name in dict([*model.named_parameters(), *model.named_buffers()])
            what = f"the pass did not read {name!r}" if is_there else f"no parameter or buffer {name!r}"
            raise LookupKeyError(f"edit: parameters: {what}; {_nearest(name, read)}")
        return read[name]

    def _input(self, name: str) -> Source:
        """Return the input of a name: its path in the arguments, or its name in forward and the path inside it."""
        read = {source.name: source for source in self.whole.recording.sources if source.kind == "input"}
        model = self.whole.recording.model()
        names = [] if model is None else list(_names_in_forward(model))
        by_name = {_in_forward(path, names): source for path, source in read.items()}
        if name not in read and name not in by_name:
            inside = [each for each in by_name if each.startswith(f"{name}.")]
            hint = f"name a tensor in it: {', '.join(inside):.200}" if inside else _nearest(name, by_name)
            raise LookupKeyError(f"edit: inputs: the pass read no tensor {name!r}; {hint}")
        return read[name] if name in read else by_name[name]


def _nearest(name: str, known: Iterable[str]) -> str:
    return close(name, known) or f"there are: {', '.join(known):.200}"


def _in_forward(path: str, names: list[str]) -> str:
    """Return the path of an input with the name of forward's parameter in place of its number."""
    first, dot, rest = path.partition(".")
    is_number = first.isdecimal() and int(first) < len(names)
    return f"{names[int(first)]}{dot}{rest}" if is_number else path


def _names_in_forward(model: Any) -> Iterator[str]:
    try:
        yield from inspect.signature(model.forward).parameters
    except (TypeError, ValueError):
        return


def _mapping(name: str, given: Any) -> Mapping[Any, Any]:
    if not isinstance(given, Mapping | None):
        raise TypeError(f"edit: {name}: expected a mapping from keys to changes, got {type(given).__name__}")
    return given or {}
