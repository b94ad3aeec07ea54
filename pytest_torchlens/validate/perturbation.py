"""Checks every edge of the graph: other values for the parent must change the result of the call."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Hashable
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import torch

from pytest_torchlens.capture import Aliased
from pytest_torchlens.capture import Call
from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import Value
from pytest_torchlens.capture.calls import ValueEdges
from pytest_torchlens.capture.calls import values_read
from pytest_torchlens.capture.leaves import ATOMS
from pytest_torchlens.records import Failure
from pytest_torchlens.records import PartVerdict
from pytest_torchlens.records import Status
from pytest_torchlens.replay import Player
from pytest_torchlens.validate.crop import channels_apart
from pytest_torchlens.validate.crop import crop_of
from pytest_torchlens.validate.crop import differing
from pytest_torchlens.validate.crop import has_rule
from pytest_torchlens.validate.crop import replaced
from pytest_torchlens.validate.exemptions import Explainer
from pytest_torchlens.validate.exemptions import is_gentle
from pytest_torchlens.validate.exemptions import is_index
from pytest_torchlens.validate.exemptions import reads_only_shape
from pytest_torchlens.validate.noise import Noise
from pytest_torchlens.validate.score import Score
from pytest_torchlens.validate.score import Where
from pytest_torchlens.validate.trial import Trial
from pytest_torchlens.validate.trial import places_in_result
from pytest_torchlens.validate.trial import shows_in_result

_SMALL = 8192
"""Bytes of arguments up to which a whole call costs no more than a crop of it, with a run for its reference."""


class Perturbation:
    """Perturbs each call during a replay and counts failures.

    `before` a call runs, it perturbs a crop of its arguments if they are large.  `after` the call, it perturbs the
    whole arguments of edges without an effect so far.
    """

    def __init__(self, recording: Recording, where: Where) -> None:
        self._noise = Noise()
        self._where = where
        self._parameters = _values(recording, "parameter")
        self._parameters_and_buffers = _values(recording, "parameter", "buffer")
        self._exempt: Counter[str] = Counter()
        self._explainer = Explainer(self._noise)
        self._score = Score("perturbation", "edges")
        self._function: Hashable = None
        """The current call as a function of its only tensor, as `_function_of_one` gives it."""
        self._not_constant: set[Hashable] = set()
        """Such functions whose outcomes for two values differed: one of the two changes whatever a call gave."""
        self.open_edges: list[int] = []
        """Edges of the current call without an effect so far."""

    def before(self, player: Player, call: Call, crop: bool) -> None:
        """Start with a call that is about to run; with `crop`, perturb a crop of it."""
        edges = () if call.info.bookkeeping else values_read(call)
        self._score.checked += len(edges)
        self._function = _function_of_one(call, edges) if crop else None
        if self._function is not None and self._function in self._not_constant:
            self.open_edges = []
            return
        self.open_edges = list(range(len(edges)))
        if not crop or sum([value.nbytes for _, value in edges]) <= _SMALL or _returns_its_argument(call):
            return
        tensors = {path: player.at(value.slot) for path, value in edges}
        parts = crop_of(call, tensors) if len(tensors) == len(edges) else None
        if parts is not None:
            trial = Trial(player, call, [parts[path] for path, _ in edges])
            self.open_edges = self._unchanged_together(trial)
            self.open_edges = [place for place in self.open_edges if not self._reacts(trial, [place])]

    def after(self, number: int, trial: Trial) -> None:
        """Perturb each parent of an open edge; all parameters together, which costs only one more run.

        The buffers of opaque calls are perturbed together too: such a call may be a whole model.
        """
        if shows_in_result(trial):
            self.open_edges = []
            return
        by_shape = [place for place in self.open_edges if reads_only_shape(trial.call, trial.edges[place][0])]
        if by_shape:
            self._exempt["shape only"] += len(by_shape)
            self.open_edges = [place for place in self.open_edges if place not in by_shape]
        moved = places_in_result(trial, self.open_edges)
        together = self._parameters_and_buffers if trial.call.info.opaque else self._parameters
        parameters = [place for place in self.open_edges if id(trial.edges[place][1]) in together]
        others = [[place] for place in self.open_edges if place not in moved and place not in parameters]
        for places in others + ([parameters] if parameters else []):
            if not self._reacts(trial, places):
                self._explain(number, trial, places)

    def leave_out(self, reason: str) -> None:
        """Leave out the open edges of a call, for a reason."""
        if self.open_edges:
            self._exempt[reason] += len(self.open_edges)
        self.open_edges = []

    def _reacts(self, trial: Trial, places: list[int]) -> bool:
        places = [place for place in places if trial.tensors[place].numel()]
        streams = [self._variants(trial, place) for place in places]
        reacts = any(trial.reacts(dict(zip(places, noise, strict=True))) for noise in zip(*streams, strict=False))
        if reacts and not trial.tolerant:
            self._not_constant.add(self._function)
        return reacts

    def _unchanged_together(self, trial: Trial) -> list[int]:
        """Return the edges that show no effect in one run with all changed, each in channels of its own."""
        cropped = [(path, tensor) for (path, _), tensor in zip(trial.edges, trial.tensors, strict=True)]
        channels = channels_apart(trial.call, cropped)
        if channels is None or not trial.reference:
            return self.open_edges
        changed = {
            place: replaced(tensor, channels[place], other)
            for place, tensor in enumerate(trial.tensors)
            for other in itertools.islice(self._variants(trial, place), 1)
        }
        outcome = trial.outcome(changed)
        differ = differing(outcome[0], trial.reference[0]) if outcome else None
        if differ is None or len(differ) != channels.shape[1]:
            return self.open_edges
        have_effect = (channels & differ).any(1).tolist()
        return [place for place in self.open_edges if not have_effect[place]]

    def _variants(self, trial: Trial, place: int) -> Iterator[torch.Tensor]:
        tensor = trial.tensors[place]
        return self._noise.variants(tensor, is_gentle(trial.call) or is_index(trial.call, tensor))

    def _explain(self, number: int, trial: Trial, places: list[int]) -> None:
        for place in places:
            reason = self._explainer.reason(trial, place)
            if reason is not None:
                self._exempt[reason] += 1
            else:
                self._score.fail(self._failure(number, trial, trial.edges[place][0]))

    def _failure(self, number: int, trial: Trial, argument: str) -> Failure:
        return Failure(
            operation=self._where.label(number),
            message=f"other values for argument {argument} of {trial.call.info.name} leave its result unchanged",
            cause="the recorded parent is not what the operation read, or the operation ignores it",
            advice="compare the operation's parents with the source line; if they are right, report the model to us",
            source_place=self._where.source_place(number),
        )

    def verdict(self, complete: bool) -> PartVerdict:
        """Return the verdict; not run if the replay was not `complete`."""
        verdict = self._score.verdict(exempt=dict(self._exempt.most_common()))
        if complete or not verdict.status.ok:
            return verdict
        return dataclasses.replace(verdict, status=Status.NOT_RUN, reason="the replay did not come to the end")


def _returns_its_argument(call: Call) -> bool:
    """Return whether a call gave back its first argument itself, as dropout does in evaluation: `after` sees that."""
    slots = [value.slot for _, value in values_read(call)]
    return not call.writes and [value.slot for value in call.outputs] == slots


def _function_of_one(call: Call, edges: ValueEdges) -> Hashable:
    """Return what calls have in common that compute one function of one tensor of one kind; None for other calls."""
    if len(edges) != 1 or not has_rule(call) or not (value := edges[0][1]).contiguous:
        return None
    kind = value.dtype, value.shape, value.device, value.requires_grad
    return id(call.info), call.ambient, kind, _exact(call.args), tuple(call.kwargs), _exact(tuple(call.kwargs.values()))


def _exact(argument: Any) -> Hashable:
    """Return what equals that of another recorded argument only if a function cannot tell the two apart."""
    kind = type(argument)
    if kind is Value or kind is Aliased:
        return Value
    if kind is tuple or kind is list:
        return kind, tuple(map(_exact, argument))
    if kind in _TEXTED:
        return kind, repr(argument)  # the two zeros are equal, and their text is not
    return (kind, argument) if kind in _COMPARED else object()


_TEXTED = frozenset([float, complex])
_COMPARED = ATOMS - _TEXTED - {FunctionType, torch.Generator}


def _values(recording: Recording, *kinds: str) -> set[int]:
    return {id(source.value) for source in recording.sources if source.kind in kinds}
