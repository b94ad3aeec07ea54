"""For every edge of a call: other values in place of the parent must change what comes out."""

from __future__ import annotations

import dataclasses
from collections import Counter

import torch

from pytest_torchlens.capture import Recording
from pytest_torchlens.records import Failure
from pytest_torchlens.records import PartVerdict
from pytest_torchlens.records import Status
from pytest_torchlens.validate.noise import Noise
from pytest_torchlens.validate.noise import is_dense
from pytest_torchlens.validate.reasons import Probe
from pytest_torchlens.validate.reasons import reason
from pytest_torchlens.validate.score import Score
from pytest_torchlens.validate.score import Where
from pytest_torchlens.validate.trial import Trial
from pytest_torchlens.validate.trial import copied

# these do not check indices: values out of range would read foreign memory
_GENTLE = frozenset(["roi_align", "ps_roi_align", "roi_pool", "ps_roi_pool", "deform_conv2d", "nms"])


class Perturbation:
    """Perturbs call after call during a replay and keeps the score."""

    def __init__(self, recording: Recording, where: Where) -> None:
        self._noise = Noise()
        self._where = where
        self._parameters = {id(source.value) for source in recording.sources if source.kind == "parameter"}
        self._exempt: Counter[str] = Counter()
        self._score = Score("perturbation", "edges")

    def check(self, number: int, trial: Trial) -> None:
        """Perturb each parent of a call; its parameters go together, for one more run in all."""
        if trial.call.info.bookkeeping:
            return
        parameters = [place for place, (_, value) in enumerate(trial.edges) if id(value) in self._parameters]
        others = [[place] for place in range(len(trial.edges)) if place not in parameters]
        for places in others + ([parameters] if parameters else []):
            self._score.checked += len(places)
            if not self._reacts(trial, places):
                self._explain(number, trial, places)

    def _reacts(self, trial: Trial, places: list[int]) -> bool:
        gentle = trial.call.info.layer_type in _GENTLE
        tensors = {place: trial.argument(place).detach() for place in places}
        streams = {place: self._noise.variants(tensor, gentle) for place, tensor in tensors.items() if tensor.numel()}
        variants = zip(*streams.values(), strict=False)
        return any(trial.reacts(dict(zip(streams, noise, strict=True))) for noise in variants)

    def _explain(self, number: int, trial: Trial, places: list[int]) -> None:
        for place in places:
            tensor = trial.argument(place)
            others = {path: trial.argument(at) for at, (path, _) in enumerate(trial.edges) if at != place}
            argument = trial.edges[place][0]
            named = reason(Probe(trial.call, argument, tensor, others, trial.outputs))
            if named is None and not (is_dense(tensor) or next(self._noise.variants(tensor), None) is not None):
                named = "no noise for this kind of tensor"
            if named is None and self._hidden(trial, place):
                named = "hidden by the values of the other arguments"
            if named is not None:
                self._exempt[named] += 1
            else:
                self._score.fail(self._failure(number, trial, argument))

    def _hidden(self, trial: Trial, place: int) -> bool:
        """Return whether the call reacts once its other arguments have other values too."""
        gentle = trial.call.info.layer_type in _GENTLE
        noise = {at: self._noise.all_different(trial.argument(at).detach()) for at in range(len(trial.edges))}

        def outcome(changed: dict[int, torch.Tensor]) -> list[str] | None:
            others = {at: copied(tensor) for at, tensor in noise.items() if at != place and tensor is not None}
            return trial.outcome(others | changed)

        before = outcome({})
        variants = self._noise.variants(trial.argument(place).detach(), gentle)
        return before is not None and any(outcome({place: variant}) not in (before, None) for variant in variants)

    def _failure(self, number: int, trial: Trial, argument: str) -> Failure:
        return Failure(
            operation=self._where.label(number),
            message=f"other values for argument {argument} of {trial.call.info.name} leave its result unchanged",
            cause="the recorded parent is not what the operation read, or the operation ignores it",
            advice="compare the operation's parents with the source line; if they are right, report the model to us",
            source_line=self._where.source_line(number),
        )

    def verdict(self, complete: bool) -> PartVerdict:
        """Return the score; not run to the end if the replay was not `complete`."""
        verdict = self._score.verdict(exempt=dict(self._exempt.most_common()))
        if complete or not verdict.status.ok:
            return verdict
        return dataclasses.replace(verdict, status=Status.NOT_RUN, reason="the replay did not come to the end")
