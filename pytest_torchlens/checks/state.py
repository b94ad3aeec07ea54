"""The check ``state``: what saves, copies or sends a model carries all that its output depends on, bit for bit.

A fresh instance is changed before it is loaded, so that nothing agrees by chance.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from pytest_torchlens.capture.calls import values_read
from pytest_torchlens.capture.looks import is_a
from pytest_torchlens.capture.looks import named_buffers
from pytest_torchlens.capture.looks import named_modules
from pytest_torchlens.capture.looks import named_parameters
from pytest_torchlens.capture.storage import storage_key
from pytest_torchlens.checks import results
from pytest_torchlens.checks.carried import NotCarriedError
from pytest_torchlens.checks.carried import UnseenError
from pytest_torchlens.checks.carried import blank
from pytest_torchlens.checks.carried import changed
from pytest_torchlens.checks.carried import fresh_instance
from pytest_torchlens.checks.carried import load
from pytest_torchlens.checks.carried import load_from_meta
from pytest_torchlens.checks.carried import state_of
from pytest_torchlens.checks.carried import through_safetensors
from pytest_torchlens.checks.catalog import split_names
from pytest_torchlens.checks.compare import differing_outputs
from pytest_torchlens.checks.compare import values_at
from pytest_torchlens.checks.held import changed_values
from pytest_torchlens.checks.held import digest_of
from pytest_torchlens.checks.held import held_values
from pytest_torchlens.checks.held import listed
from pytest_torchlens.checks.held import memory_of
from pytest_torchlens.checks.held import memory_shared
from pytest_torchlens.checks.places import differing
from pytest_torchlens.checks.results import failure_at
from pytest_torchlens.checks.subject import ModelRaisedError
from pytest_torchlens.checks.subject import NotApplicableError
from pytest_torchlens.checks.subject import OutOfTimeError
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.unpickled import Answer
from pytest_torchlens.checks.unpickled import answer_of
from pytest_torchlens.checks.unpickled import pickled
from pytest_torchlens.checks.unpickled import steps_of
from pytest_torchlens.checks.unpickled import unpicklable
from pytest_torchlens.records import CheckResult
from pytest_torchlens.records import Failure
from pytest_torchlens.records import output_name

NAME = "state"
_SAVE = (
    "register what the output depends on as a parameter or a persistent buffer, or return it from get_extra_state; "
    "what __init__ computes must come out the same in each instance"
)
_COPY = "let the model keep what it computes with in its own attributes: no closures over self, no global tables"
_PICKLE = "keep lambdas, locks and open files out of the model, or leave them out in __getstate__"
_HOOKS = "let state_dict, its hooks and get_extra_state return all values, and raise nothing"
_RENEW = (
    "make what depends on weights anew in each call, or drop it in a load_state_dict post hook "
    "(register_load_state_dict_post_hook)"
)
_TIE = "tie them in __init__, or in a load_state_dict post hook"


@dataclass
class _Seen:
    """What the ways gave so far."""

    failures: list[tuple[str, Failure]] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    carried: list[str] = field(default_factory=list)
    """Ways that carried all."""


def run(subject: Subject, ways: str = "") -> CheckResult:
    """Carry the model in all ways, or those named, and compare the outputs bit for bit."""
    if not subject.outputs:
        raise NotApplicableError("its output holds no tensor to compare")
    if differing_outputs(subject.outputs, subject.call()):
        raise NotApplicableError("two plain calls differ already; the check 'repeat' says where")
    seen, wanted = _Seen(), split_names([ways]) or tuple(_WAYS)
    loads = [way for way in _LOADS if way in wanted]
    if loads:
        _into_fresh(subject, loads, seen)
    for way in wanted:
        if way not in loads:
            _tried(way, partial(_WAYS[way], subject, seen), seen)
    fields: dict[str, Any] = {
        "compared": len(subject.outputs) * len(seen.carried),
        "unseen": tuple(seen.unseen),
        "notes": (*seen.notes, *(f"{way}: {failure.message}" for way, failure in seen.failures[1:])),
    }
    if seen.failures:
        return results.failed(NAME, seen.failures[0][1], **fields)
    if not seen.carried:
        raise NotApplicableError("; ".join(seen.unseen))
    return results.passed(NAME, **fields)


def _tried(way: str, carry: Callable[[], Failure | None], seen: _Seen) -> None:
    """Carry the model one way, and note the result."""
    try:
        failure = carry()
    except UnseenError as reason:
        seen.unseen.append(f"{way}: {reason}")
    except OutOfTimeError:
        seen.unseen.append(f"{way}: no time was left")
    except NotCarriedError as error:
        seen.failures.append((way, results.failure_of_error(str(error), error.__cause__, _ADVICE[way])))
    else:
        if failure is None:
            seen.carried.append(way)
        else:
            seen.failures.append((way, failure))


# -- into a fresh instance -------------------------------------------------------------------------------------------


def _into_fresh(subject: Subject, ways: list[str], seen: _Seen) -> None:
    """Try all ways that load a fresh instance: each time it is changed first."""
    try:
        fresh = fresh_instance(subject)
        _check_blank(subject, fresh)
    except UnseenError as reason:
        seen.unseen.append(f"{', '.join(ways)}: {reason}")
        return
    except NotCarriedError as error:
        seen.failures.append((ways[0], results.failure_of_error(str(error), error.__cause__, _HOOKS)))
        return
    if subject.tools.build is None:
        seen.notes.append(
            "no factory is known ('build'), so that a changed copy stood for a fresh instance: attributes that are not "
            "in the state_dict were copied with it"
        )
    for way in ways:
        _tried(way, partial(_blanked, way, subject, fresh, seen), seen)


def _blanked(way: str, subject: Subject, fresh: nn.Module, seen: _Seen) -> Failure | None:
    blank(fresh)
    return _LOADS[way](subject, fresh, seen)


def _check_blank(subject: Subject, fresh: nn.Module) -> None:
    """Raise unless the output depends on what is loaded."""
    if not any(isinstance(value, torch.Tensor) for value in state_of(subject.model).values()):
        raise UnseenError("the state_dict holds no tensors")
    try:
        outputs = subject.of(fresh).call(way="with other weights")
    except ModelRaisedError:
        return
    if not differing_outputs(subject.outputs, outputs):
        raise UnseenError("the output does not depend on what the state_dict holds")


def _loaded(subject: Subject, fresh: nn.Module, seen: _Seen) -> Failure | None:
    load(subject.model, fresh)
    failure = _compared(subject, fresh, "after load_state_dict into a fresh instance", _SAVE)
    if failure is None and subject.tools.build is None:
        failure = _copied_weight(subject, fresh)
    return failure or _stale(subject, fresh)


def _copied_weight(subject: Subject, fresh: nn.Module) -> Failure | None:
    """Return that the output depends on an attribute which is a copy of a weight, and which no state_dict has.

    A copy of the model has it, too, so that loading one shows nothing.
    """
    modules = dict(named_modules(fresh))
    for address, name, weight in _copies_of_weights(subject.model):
        own = vars(modules[address])
        tensor, own[name] = own[name], changed(own[name])
        try:
            outputs = subject.of(fresh).call(way="with another value of an attribute")
            paths = differing_outputs(subject.outputs, outputs)
            number = _first_differing(subject, fresh) if paths else None
        except ModelRaisedError:
            continue
        finally:
            own[name] = tensor
        if paths:
            path = f"{address}.{name}" if address else name
            what = f"attribute {path!r} is a copy of {weight!r} that load_state_dict leaves as it is"
            values = values_at(paths[0], subject.outputs, outputs)
            return failure_at(subject.history, number, what, _SAVE, values=values)
    return None


def _copies_of_weights(model: nn.Module) -> Iterator[tuple[str, str, str]]:
    """Yield the address of a module, and the names of an attribute that is a parameter's copy, and of that."""
    weights = {digest_of(tensor): name for name, tensor in named_parameters(model)}
    memory = memory_of(model)
    for address, module in named_modules(model):
        for name, value in vars(module).items():
            is_copy = is_a(value, torch.Tensor) and digest_of(value) in weights and storage_key(value) not in memory
            if is_copy and bool((value != value.flatten()[0]).any()):  # else it may be equal by chance
                yield address, name, weights[digest_of(value)]


def _stale(subject: Subject, fresh: nn.Module) -> Failure | None:
    """Return that an instance keeps from a call what it made of weights that were loaded over since."""
    blank(fresh)
    other = subject.of(fresh)
    with other.runs(way="after a call with other weights and load_state_dict") as call:
        try:
            call()
        except ModelRaisedError:  # with changed weights
            return None
        load(subject.model, fresh)
        outputs, held = call(), held_values(fresh)
    paths = differing_outputs(subject.outputs, outputs)
    if not paths:
        return None
    stale = _made_in_calls(other, held)
    what = f"{output_name(paths[0])} is another one after load_state_dict into an instance that was called before"
    cause = f"made of the former weights: {listed(stale)}" if stale else ""
    values = values_at(paths[0], subject.outputs, outputs)
    return failure_at(subject.history, _first_stale(subject, other), what, _RENEW, values=values, cause=cause)


def _made_in_calls(other: Subject, held: dict[str, str]) -> list[str]:
    """Return the values in a loaded instance that a call with the loaded weights alone does not leave."""
    with other.runs() as call:
        call()
        own = held_values(other.model)
    return changed_values(own, held)


def _first_stale(subject: Subject, other: Subject) -> int | None:
    """Return the first operation that differs when an instance is loaded after a call."""
    blank(other.model)
    try:
        with other.recordings() as run:
            run()
            load(subject.model, other.model)
            pair = next(differing(subject.history, run()), None)
    except (OutOfTimeError, ModelRaisedError):
        return None
    return pair.one if pair else None


def _from_meta(subject: Subject, fresh: nn.Module, seen: _Seen) -> Failure | None:
    others = load_from_meta(subject.model, fresh)
    if others:
        seen.notes.append(
            f"not in the state_dict: {listed([*map(repr, others)])}; made on the meta device they stay there, "
            "and have to be computed anew"
        )
    return _compared(subject, fresh, "after loading an instance on the meta device with assign=True", _SAVE)


def _safely(subject: Subject, fresh: nn.Module, seen: _Seen) -> Failure | None:
    through_safetensors(subject.model, fresh)
    return _compared(subject, fresh, "after safetensors and load_state_dict into a fresh instance", _SAVE)


# -- copies and pickles ----------------------------------------------------------------------------------------------


def _deep_copied(subject: Subject, seen: _Seen) -> Failure | None:
    try:
        other = copy.deepcopy(subject.model)
    except Exception as error:
        raise NotCarriedError(f"copy.deepcopy raised {type(error).__name__}: {error}") from error
    return _compared(subject, other, "of a deepcopy", _COPY) or _computes_with_original(subject, other)


def _computes_with_original(subject: Subject, other: nn.Module) -> Failure | None:
    """Return that a copy reads parameters of the model that it was copied from."""
    model = subject.model
    own = {id(tensor) for _, tensor in named_buffers(other)}  # a table that nothing trains may be shared
    originals = {id(tensor): name for name, tensor in (*named_parameters(model), *named_buffers(model))}
    history = subject.of(other).record(way="as a deepcopy")
    for source in history.recording.sources:
        name = originals.get(id(source.live))
        if name is not None and id(source.live) not in own:
            readers = (
                number
                for number, call in enumerate(history.recording.calls)
                if any(value.slot == source.value.slot for _, value in values_read(call))
            )
            what = f"a deepcopy computes with {name!r} of the model that it was copied from, not with its own"
            return failure_at(history, next(readers, None), what, _COPY)
    return None


def _in_child(subject: Subject, seen: _Seen) -> Failure | None:
    if subject.tools.child is None:
        raise UnseenError("no process can be started here")
    model = subject.model
    if any(isinstance(module, torch.jit.ScriptModule) for _, module in named_modules(model)):
        raise UnseenError("a scripted module is saved by torch.jit.save, not pickled")
    if any(is_parametrized(module) for _, module in named_modules(model)):
        raise UnseenError("PyTorch pickles no module with parametrizations; their state_dict is what to save")
    if home := _not_importable(model):
        raise UnseenError(f"another process cannot import {home}")
    subject.check_time()
    try:
        job = pickled(model, subject.args, subject.kwargs, subject.seed)
    except Exception as error:
        name = unpicklable(model)
        raise NotCarriedError(f"pickling raised {type(error).__name__}: {error}{name and f' ({name})'}") from error
    try:
        found = answer_of(subject.tools.child(job, subject.deadline - time.monotonic()))
    except RuntimeError as error:
        raise UnseenError(str(error)) from error
    if found.error and not found.loaded and ("ModuleNotFound" in found.error or "Can't get attribute" in found.error):
        raise UnseenError(f"another process cannot load it: {found.error}")
    if found.error:
        does = "run" if found.loaded else "be loaded"
        raise NotCarriedError(f"the pickled model cannot {does} in another process: {found.error}")
    return _compared_with_child(subject, found)


def _not_importable(model: nn.Module) -> str:
    """Return the first class of a module that only this process has."""
    for _, module in named_modules(model):
        kind = type(module)
        if "<locals>" in kind.__qualname__ or kind.__module__ == "__main__":
            return f"{kind.__module__}.{kind.__qualname__}"
    return ""


def _compared_with_child(subject: Subject, found: Answer) -> Failure | None:
    way = "of the pickled model in another process"
    if broken := _broken(memory_shared(subject.model), found.shared):
        return Failure(message=f"{broken} {way}", advice=_PICKLE)
    paths = differing_outputs(subject.outputs, found.outputs)
    if not paths:
        return None
    history = subject.history
    own = steps_of(history.recording.calls)
    number = next((at for at, (one, two) in enumerate(zip(own, found.steps, strict=False)) if one != two), None)
    lost = changed_values(held_values(subject.model), found.held or {})
    cause = f"not carried: {listed(lost)}" if lost else "all values were carried: something outside the model differs"
    what = f"{output_name(paths[0])} {way} is another one"
    return failure_at(
        history, number, what, _PICKLE, values=values_at(paths[0], subject.outputs, found.outputs), cause=cause
    )


# -- comparison ------------------------------------------------------------------------------------------------------


def _compared(subject: Subject, other: nn.Module, way: str, advice: str) -> Failure | None:
    """Return how the output of another instance differs, and which value it lacks."""
    subject.check_time()
    try:
        outputs = subject.of(other).call(way=way)
    except ModelRaisedError as error:
        lost = _lost(subject, other)
        failure = results.failure_of_raise(None, error, advice)
        return replace(failure, cause=f"not carried: {listed(lost)}" if lost else "")
    paths = differing_outputs(subject.outputs, outputs)
    if not paths:
        broken = _broken(memory_shared(subject.model), memory_shared(other))
        return Failure(message=f"{broken} {way}", advice=_TIE) if broken else None
    lost = _proven(subject, other, _lost(subject, other))
    cause = f"not carried: {listed(lost)}" if lost else "no value that differs was found: it may be in a closure"
    what = f"{output_name(paths[0])} {way} is another one"
    number = _first_differing(subject, other)
    values = values_at(paths[0], subject.outputs, outputs)
    return failure_at(subject.history, number, what, advice, values=values, cause=cause)


def _lost(subject: Subject, other: nn.Module) -> list[str]:
    return changed_values(held_values(subject.model), held_values(other))


def _first_differing(subject: Subject, other: nn.Module) -> int | None:
    try:
        pair = next(differing(subject.history, subject.of(other).record()), None)
    except (OutOfTimeError, ModelRaisedError):
        return None
    return pair.one if pair else None


def _proven(subject: Subject, other: nn.Module, names: list[str]) -> list[str]:
    """Return the values that alone make the output that of the model, once the other instance has them; else all."""
    for name in names[:_MOST_TRIED]:
        with _transplanted(name, subject.model, other) as done:
            try:
                outputs = subject.of(other).call() if done else {}
            except (ModelRaisedError, OutOfTimeError):
                continue
            if outputs and not differing_outputs(subject.outputs, outputs):
                return [name]
    return names


_MOST_TRIED = 10


@contextlib.contextmanager
def _transplanted(label: str, model: nn.Module, other: nn.Module) -> Iterator[bool]:
    """Give an instance one value of the model, and its own one back at the end; yield whether it could."""
    address, _, name = label.split("'")[1].rpartition(".")
    source = _members(dict(named_modules(model)).get(address), name)
    target = _members(dict(named_modules(other)).get(address), name)
    if source is None or target is None:
        yield False
        return
    former, target[name] = target[name], source[name]
    try:
        yield True
    finally:
        target[name] = former


def _members(module: nn.Module | None, name: str) -> dict[str, Any] | None:
    """Return the dictionary of a module that has an attribute."""
    own = vars(module) if module is not None else {}
    return next((one for one in (own, own.get("_parameters"), own.get("_buffers")) if one and name in one), None)


def _broken(before: frozenset[frozenset[str]], after: frozenset[frozenset[str]]) -> str:
    """Return which parameters share memory in the model only."""
    for group in sorted(before, key=sorted):
        if not any(group <= other for other in after):
            one, two, *_ = sorted(group)
            return f"{one!r} and {two!r} are tied (they share memory), and no longer"
    return ""


_LOADS: dict[str, Callable[[Subject, nn.Module, _Seen], Failure | None]] = {
    "state_dict": _loaded,
    "safetensors": _safely,
    "meta": _from_meta,
}
_WAYS: dict[str, Callable[..., Failure | None]] = {**_LOADS, "deepcopy": _deep_copied, "pickle": _in_child}
_ADVICE = {**dict.fromkeys(_LOADS, _SAVE), "deepcopy": _COPY, "pickle": _PICKLE}
