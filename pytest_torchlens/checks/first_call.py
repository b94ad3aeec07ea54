"""Finds what a model keeps from its first call: other values give something else after it than as a first call."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import NamedTuple

import torch

from pytest_torchlens.capture.leaves import ATOMS
from pytest_torchlens.capture.leaves import walk
from pytest_torchlens.capture.looks import instance_dict
from pytest_torchlens.capture.looks import named_modules
from pytest_torchlens.checks import results
from pytest_torchlens.checks.carried import UnseenError
from pytest_torchlens.checks.carried import built_instance
from pytest_torchlens.checks.compare import differing_outputs
from pytest_torchlens.checks.compare import values_at
from pytest_torchlens.checks.held import changed_values
from pytest_torchlens.checks.held import held_values
from pytest_torchlens.checks.held import listed
from pytest_torchlens.checks.inputs import Arguments
from pytest_torchlens.checks.places import differing
from pytest_torchlens.checks.subject import ModelRaisedError
from pytest_torchlens.checks.subject import OutOfTimeError
from pytest_torchlens.checks.subject import Outputs
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.uncalled import Uncalled
from pytest_torchlens.checks.uncalled import digests_of
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import Failure
from pytest_torchlens.records import output_name

_AFTER = "on other values, after a first call"
_ADVICE = (
    "keep nothing of a call's values in the model: compute it anew in each call, or keep it by all that it depends on"
)


class FirstCallResult(NamedTuple):
    """What a comparison with a first call shows: a failure, or what could not be looked at."""

    failure: Failure | None = None
    unseen: tuple[str, ...] = ()


class _Pair(NamedTuple):
    """A model to call twice, and one like it that nobody has called."""

    used: Subject
    new: Subject
    unseen: tuple[str, ...] = ()


def look_at_first_call(subject: Subject, others: Arguments, after: Outputs | None) -> FirstCallResult:
    """Compare the outputs on other values after a first call with those of a model that nobody has called.

    Parameters
    ----------
    subject
        The model.
    others
        The other values.
    after
        The outputs on them of the model after a call; None if it raised.
    """
    try:
        pair = _pair(subject)
    except UnseenError as error:
        return FirstCallResult(unseen=(f"what it keeps from its first call: {error}",))
    try:
        with _surroundings(subject):
            first = pair.new.call(*others, way="on other values")
    except ModelRaisedError as error:
        what = "what it keeps from its first call"
        return FirstCallResult(unseen=(f"{what}: {error}" if after is None else f"{what}: of a copy {error}",))
    try:
        later = after if pair.used is subject else _after_call(pair.used, others)
    except ModelRaisedError as error:
        return FirstCallResult(results.failure_of_raise(None, error, _ADVICE))
    if later is None:
        return FirstCallResult(_raised(subject, others))
    differ = differing_outputs(first, later)
    return FirstCallResult(_failure(pair, others, differ[0], first, later) if differ else None, pair.unseen)


def _pair(subject: Subject) -> _Pair:
    """Return the model and its copy from before its first call, else a fresh instance and a copy of that.

    A model that others may have called is copied as it is, if nobody knows how to make a fresh one.
    """
    uncalled, is_of_users = _copy_of(subject), subject.tools.build is None
    if uncalled is not None and (uncalled.is_new or is_of_users):
        return _Pair(subject, subject.around(uncalled.model), () if uncalled.is_new else _maybe_kept(subject))
    if is_of_users:
        raise UnseenError("the model cannot be copied, and no factory is known ('build')")
    made = built_instance(subject)
    return _Pair(subject.of(made), subject.of(_another(subject, made)), _maybe_around(subject))


def _another(subject: Subject, made: torch.nn.Module) -> torch.nn.Module:
    """Return a second instance with the same weights: a copy, or else what the factory makes with the same seed."""
    try:
        return copy.deepcopy(made)
    except Exception as error:
        other = built_instance(subject)
        if digests_of(other) == digests_of(made):
            return other
        raise UnseenError("the model cannot be copied, and two instances of the factory have other weights") from error


def as_before_calls(subject: Subject) -> Subject:
    """Return a subject of the model as it was before its first call; as it is, if that is not known."""
    uncalled = _copy_of(subject)
    return subject if uncalled is None else subject.around(uncalled.model)


def maybe_kept(subject: Subject) -> tuple[str, ...]:
    """Return what the model of `as_before_calls` may have kept from an earlier call; nothing if it had none."""
    uncalled = _copy_of(subject)
    if uncalled is not None and uncalled.is_new:
        return ()
    return _maybe_kept(subject, "look at the model before its first call")


def _copy_of(subject: Subject) -> Uncalled | None:
    """Return the copy that has the present weights of the model."""
    uncalled = subject.tools.uncalled
    return uncalled if uncalled is not None and uncalled.has_weights_of(subject.model) else None


def _surroundings(subject: Subject) -> contextlib.AbstractContextManager[Callable[[], list[str]]]:
    """Return a block in which what is around the model is as it was before its first call.

    It gives a function that returns the names of what the block changed.
    """
    uncalled = subject.tools.uncalled
    return uncalled.surroundings.restored() if uncalled is not None else contextlib.nullcontext(list)


def _maybe_kept(subject: Subject, advice: str = "'build' makes an instance without one") -> tuple[str, ...]:
    """Return what an earlier call may have left in the model, that no call here changes: tensors by their names."""
    names = [name for address, module in named_modules(subject.model) for name in _tensors_in(address, module)]
    what = f"{listed(names, 2)} or another value" if names else "a value"
    return (f"whether {what} is kept from a call before this check: {advice}",)


def _maybe_around(subject: Subject) -> tuple[str, ...]:
    """Return what an earlier call may have left around the model, which a fresh instance has, too."""
    uncalled = subject.tools.uncalled
    if uncalled is None or uncalled.is_new or not uncalled.surroundings.hold_tensors():
        return ()
    return (
        "whether tensors in containers of its classes, functions or modules are kept from a call before this check",
    )


def _tensors_in(address: str, module: torch.nn.Module) -> list[str]:
    """Return the names of the tensors that a module holds beside parameters, buffers and modules."""
    own = {
        name: value
        for name, value in (instance_dict(module) or {}).items()
        if name not in _OF_MODULES and type(value) not in ATOMS and not isinstance(value, torch.nn.Module)
    }
    paths = (path for path, tensor in walk(own) if not isinstance(tensor, torch.nn.Parameter))
    return [repr(f"{address}.{path}" if address else path) for path in paths]


_OF_MODULES = frozenset(vars(torch.nn.Module()))


def _after_call(used: Subject, others: Arguments) -> Outputs:
    with used.runs(way=_AFTER) as call:
        call()
        return call(*others)


def _raised(subject: Subject, others: Arguments) -> Failure | None:
    """Return how a model raises on other values that it takes as its first ones; None if it does not, after all."""
    try:
        _after_call(subject, others)
    except ModelRaisedError as error:
        return results.failure_of_raise(None, error, _ADVICE)
    return None


def _failure(pair: _Pair, others: Arguments, path: str, first: Outputs, later: Outputs) -> Failure:
    what = f"{output_name(path)} on other values is another one after a first call"
    cause = "the first call leaves in the model what a later one reads"
    values = values_at(path, first, later)
    try:
        kept = _kept(pair.new)
        history, number = _place(pair, others)
    except (ModelRaisedError, OutOfTimeError):
        return Failure(message=what, advice=_ADVICE, cause=cause, values=values)
    return results.failure_at(
        history, number, what, _ADVICE, values=values, cause=cause + (f": {listed(kept)}" if kept else "")
    )


def _kept(new: Subject) -> list[str]:
    """Return the values that a first call changes in a model."""
    with _surroundings(new) as changed_around, new.runs() as call:
        before = held_values(new.model)
        call()
        return changed_values(before, held_values(new.model)) + changed_around()


def _place(pair: _Pair, others: Arguments) -> tuple[ModelHistory, int | None]:
    """Return a recorded pass after a first call, and the first operation of it that gives something else then."""
    with _surroundings(pair.new):
        first = pair.new.record(*others)
    with pair.used.recordings() as run:
        run()
        later = run(*others)
    pairs = [(one, other) for one, other in differing(first, later) if other is not None]
    both = (other for one, other in pairs if one is not None)
    return later, next(both, pairs[0][1] if pairs else None)
