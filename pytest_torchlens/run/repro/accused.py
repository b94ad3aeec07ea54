"""Finds the operation to reproduce: the one that a comparison, a verdict or the user accuses."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from pytest_torchlens.baseline.judge import UNSTABLE
from pytest_torchlens.baseline.old_names import renamed_weights
from pytest_torchlens.baseline.policy import Policy
from pytest_torchlens.baseline.saved_activations import SavedActivations
from pytest_torchlens.baseline.saved_activations import SavedActivationsError
from pytest_torchlens.baseline.saved_activations import argument_name
from pytest_torchlens.baseline.saved_activations import folder_name
from pytest_torchlens.baseline.saved_activations import names_of
from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.baseline.snapshot_file import BaselineError
from pytest_torchlens.baseline.store import Store
from pytest_torchlens.baseline.store import key_of
from pytest_torchlens.capture import Call
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.history import LookupKeyError
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import Change
from pytest_torchlens.records import Comparison
from pytest_torchlens.records import Verdict
from pytest_torchlens.records import nearest
from pytest_torchlens.run.environment import find_environment
from pytest_torchlens.run.job import snapshot_of
from pytest_torchlens.run.other_python import Against
from pytest_torchlens.run.other_python import OtherPython
from pytest_torchlens.run.preserved_state import preserved_global_state
from pytest_torchlens.run.repro.program import Read
from pytest_torchlens.run.run_options import RunOptions
from pytest_torchlens.run.worker import JobLimits
from pytest_torchlens.run.worker import memory_share
from pytest_torchlens.validate import Validation
from pytest_torchlens.validate import tolerance
from pytest_torchlens.validate import validate
from pytest_torchlens.zoo import ModelCase

_SECONDS = 3600.0
_OWN = {Change.REGRESSION, Change.LOCAL_CHANGE, Change.NAN_CHANGE, Change.META_CHANGE, Change.DECISION_FLIP}
_OWN |= {Change.DRIFT, *UNSTABLE}
"""Changes that one operation, or a run of them, may show alone."""


class ReproError(ValueError):
    """The command cannot be carried out; the message says why, and what to do."""


class NothingToReproduceError(ReproError):
    """There is no file to write: nothing differs, or torch alone does not show it."""


@dataclass(frozen=True)
class Accused:
    """An operation that computes other values than it should.

    Attributes
    ----------
    model
        The model's name: ``"torchvision:resnet18"``.
    history
        The model's pass in this process; the model holds the values that it had before.
    number
        The number of its call.
    operation
        Its id in the comparison, or its label.
    why
        The message of the comparison or verdict that accuses it.
    source_line
        The line of the model.
    repeats
        Whether it is accused of other values each time.
    """

    model: str
    history: ModelHistory
    number: int
    operation: str
    why: str = ""
    source_line: str = ""
    repeats: bool = False

    @property
    def call(self) -> Call:
        """Its call."""
        return self.history.recording.calls[self.number]


class Pass:
    """A model's pass in this process, compared with a trusted one.

    Parameters
    ----------
    name
        The model's name: ``"torchvision:resnet18"``.
    history, snapshot
        The pass; the model must be alive and hold the values that it had before.
    comparison
        The pass against the trusted one; None if there is none.
    saved
        The activations of the trusted pass; None if they are not saved.
    verdict
        Whether the record of the pass is proved; None if it was not checked.
    """

    def __init__(
        self,
        name: str,
        history: ModelHistory,
        snapshot: Snapshot,
        comparison: Comparison | None,
        saved: SavedActivations | None = None,
        verdict: Verdict | None = None,
    ) -> None:
        self.name = name
        self.history = history
        self._snapshot = snapshot
        self.comparison = comparison
        self.saved = saved
        self._verdict = verdict
        self._names = names_of(history, snapshot)

    def stored(self, call: Call, path: str, read: Read) -> torch.Tensor | None:
        """Return what the trusted pass had as an argument; None if it is not known."""
        first = next((name for output in call.outputs if (name := self._names.get(id(output)))), "")
        names = (argument_name(first, path), self._names.get(id(value_of(read)), ""))
        return next(
            (self._tensor(name, value_of(read).device) for name in names if self.saved and name in self.saved), None
        )

    def expected(self, call: Call) -> Sequence[torch.Tensor] | None:
        """Return what the trusted pass had as the results of a call; None if they are not all known."""
        tensors = [self._tensor(self._names.get(id(value), ""), value.device) for value in call.outputs]
        known = [tensor for tensor in tensors if tensor is not None]
        return known if len(known) == len(tensors) else None

    def _tensor(self, name: str, device: torch.device) -> torch.Tensor | None:
        if self.saved is None or name not in self.saved:
            return None
        return self.saved.tensor(name, device)

    # -- who is accused ----------------------------------------------------------------------------------------------

    def accused(self, operation: str = "") -> Accused:
        """Return the operation of that name, or the first that the comparison or the verdict accuses.

        Raises
        ------
        ReproError
            If there is none.
        """
        if operation:
            return self._named(operation)
        for found in (self._by_comparison(), self._by_verdict(), self._by_outputs()):
            if found is not None:
                return found
        raise self._why_nothing()

    def _named(self, operation: str) -> Accused:
        if operation in self._numbers():
            findings = self.comparison.findings if self.comparison else ()
            finding = next((one for one in findings if one.operation == operation), None)
            failed = self._by_verdict()
            if finding is None and failed is not None and failed.operation == operation:
                return failed
            repeats = finding is not None and finding.change in UNSTABLE
            return self._accused(operation, finding.message if finding else "", repeats=repeats)
        try:
            found = self.history[operation]
        except LookupKeyError as error:
            hint = nearest(operation, self._numbers())
            raise ReproError(f"{self.name} has no operation {operation!r}: {hint}; {error}") from None
        number = next((node.number for node in self.history.nodes if node.label == getattr(found, "label", "")), -1)
        if number < 0:
            raise ReproError(f"{self.name}: {operation!r} is not one operation: {nearest(operation, self._numbers())}")
        name = next(name for name, one in self._numbers().items() if one == number)
        return self._accused(name)

    def _numbers(self) -> dict[str, int]:
        """Return the call of each step that one made, by the step's id."""
        nodes = [node for node in self.history.nodes if node.kind != "buffer"]
        pairs = zip(nodes, self._snapshot.steps, strict=True)
        return {step.id: node.value.call for node, step in pairs if node.value.call >= 0}

    def _accused(self, operation: str, why: str = "", *, repeats: bool = False) -> Accused:
        number = self._numbers()[operation]
        records = {node.number: node.label for node in self.history.nodes}
        record = self.history[records[number]] if number in records else None
        return Accused(
            model=self.name,
            history=self.history,
            number=number,
            operation=operation,
            why=why,
            source_line=str(getattr(record, "source_line", "") or ""),
            repeats=repeats,
        )

    def _by_comparison(self) -> Accused | None:
        numbers = self._numbers()
        for finding in self.comparison.findings if self.comparison else ():
            if finding.change in _OWN and finding.operation in numbers:
                why = f"{finding.change.value}: {finding.message}"
                return self._accused(finding.operation, why, repeats=finding.change in UNSTABLE)
        return None

    def _by_verdict(self) -> Accused | None:
        failure = self._verdict.first_failure if self._verdict is not None else None
        numbers = {node.label: node.number for node in self.history.nodes if node.call is not None}
        if failure is None or failure.operation not in numbers:
            return None
        name = next((one for one, number in self._numbers().items() if number == numbers[failure.operation]), "")
        return self._accused(name, f"failed: {failure.message}", repeats=True) if name else None

    def _by_outputs(self) -> Accused | None:
        outputs = self.comparison.outputs if self.comparison else None
        if outputs is None or outputs.same or outputs.operation not in self._numbers():
            return None
        return self._accused(outputs.operation, f"the output differs: {outputs.words}")

    def _why_nothing(self) -> ReproError:
        found: Comparison | None = self.comparison
        if found is not None and found.findings and found.verdict is not Change.IDENTICAL:
            first = found.findings[0]
            where = f" at {first.operation}" if first.operation else ""
            return NothingToReproduceError(
                f"{self.name}: {first.change.value}{where}: {first.message}: no operation computes other values "
                f"from equal inputs; name one to compare it all the same: pytest-lens repro {self.name} OPERATION"
            )
        if found is None:
            return ReproError(
                f"{self.name} has nothing to be compared with: no baseline is stored, and its replay gives what was "
                "recorded; name the interpreter that computes it rightly (--against=../old/bin/python)"
            )
        return NothingToReproduceError(f"{self.name} computes what {found.baseline} has: nothing to reproduce")


def saved_activations(store: Store, key: str) -> SavedActivations | None:
    """Return the activations of a stored baseline; None if they are not saved.

    Raises
    ------
    SavedActivationsError, BaselineError
        If they, or the baseline, cannot be read.
    """
    folder, trusted = store.activations_of(key), store.load(key)
    if folder is None or trusted is None:
        return None
    folders = [folder / folder_name(block.numbers) for block in trusted.measured.values()]
    return next((SavedActivations(one) for one in folders if one.is_dir()), None)


@contextmanager
def compared_pass(case: ModelCase, other: OtherPython | None, store: Store) -> Iterator[Pass]:
    """Run a model here and compare it with what another interpreter computes, or with its stored baseline.

    Raises
    ------
    ReproError
        If one of both is impossible.
    """
    against = Against(other, RunOptions(), JobLimits(_SECONDS, memory_share())) if other else None
    try:
        with preserved_global_state(), torch.set_grad_enabled(case.settings.mode == "train"):
            policy = _policy(case, against, store)
            model, validation = _validated(case)
            if names := _renamed(case, validation, policy):  # it has random values of other names than the trusted one
                model, validation = _validated(case, names)
            yield _compared(case, validation, policy)
            del model  # which the pass needs alive
    except (BaselineError, SavedActivationsError) as error:
        raise ReproError(str(error)) from None
    finally:
        if against is not None:
            against.close()


def _renamed(case: ModelCase, validation: Validation, policy: Policy | None) -> dict[str, str]:
    """Return the old names of renamed weights, by the new ones, if their values follow their names."""
    trusted = policy.store.load(key_of(case.zoo, case.name)) if policy else None
    if trusted is None or case.settings.weights != "random":
        return {}
    return renamed_weights(trusted, snapshot_of(validation.history, find_environment()))


def _validated(case: ModelCase, names: Mapping[str, str] | None = None) -> tuple[nn.Module, Validation]:
    settings = case.settings
    try:
        model = case.build(names)
        inputs = case.make_inputs(model)
        with tolerance(settings.tolerance):
            return model, validate(model, inputs.args, inputs.kwargs, parts=("replay",), seed=settings.seed)
    except Exception as error:  # a model may raise anything
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise ReproError(f"{case.zoo}:{case.name} does not run in this environment: {reason}") from error


def _compared(case: ModelCase, validation: Validation, policy: Policy | None) -> Pass:
    key, history = key_of(case.zoo, case.name), validation.history
    environment = replace(find_environment(), device=torch.device(case.settings.device).type)
    snapshot = snapshot_of(history, environment, validation.verdict)
    comparison = policy.check(key, snapshot, history=history) if policy else None
    saved = saved_activations(policy.store, key) if policy else None
    return Pass(f"{case.zoo}:{case.name}", history, snapshot, comparison, saved, validation.verdict)


def _policy(case: ModelCase, against: Against | None, store: Store) -> Policy | None:
    if against is not None:
        if error := against.run(case, lambda stage: None):
            raise ReproError(f"{case.zoo}:{case.name} was {error.message}")
        return against.policy
    if store.load(key_of(case.zoo, case.name)) is None:
        return None
    path = store.path(key_of(case.zoo, case.name))
    folders = [str(folder) for folder in (store.folder, store.pending, store.activations or Path())]
    # A policy that is `against` something neither stores nor leaves anything to be accepted.
    return Policy(folder=folders[0], pending=folders[1], activations=folders[2], against=str(path))
