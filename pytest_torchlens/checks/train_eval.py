"""The check ``train-eval``: train mode and back leaves nothing but running statistics, and eval mode is not random."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field
from typing import Any

import torch
from torch import nn

from pytest_torchlens.capture.looks import named_buffers
from pytest_torchlens.capture.looks import named_modules
from pytest_torchlens.checks.compare import differing_outputs
from pytest_torchlens.checks.compare import values_at
from pytest_torchlens.checks.evidence import Unsteady
from pytest_torchlens.checks.held import changed_values
from pytest_torchlens.checks.held import digest_of
from pytest_torchlens.checks.held import held_values
from pytest_torchlens.checks.held import hidden_modules
from pytest_torchlens.checks.held import listed
from pytest_torchlens.checks.modes import in_train_mode
from pytest_torchlens.checks.places import differing
from pytest_torchlens.checks.results import failed
from pytest_torchlens.checks.results import failure_at
from pytest_torchlens.checks.results import passed
from pytest_torchlens.checks.subject import ModelRaisedError
from pytest_torchlens.checks.subject import NotApplicableError
from pytest_torchlens.checks.subject import OutOfTimeError
from pytest_torchlens.checks.subject import Outputs
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import CheckResult
from pytest_torchlens.records import Failure
from pytest_torchlens.records import output_name

NAME = "train-eval"
_STATISTICS = re.compile(r"running_\w+|num_batches_tracked|\w*_[uv]|(min|max)_val")
"""Names of the buffers that a pass in train mode may move: those of norms, of spectral norm, of observers."""
_RANDOM = "let it draw only in train mode: F.dropout(x, p, training=self.training), or the module nn.Dropout"
_UNREGISTERED = "register it, as by nn.ModuleList in place of a list: eval(), to() and state_dict() reach nothing else"
_MODE = "a module that overrides train() must set the mode of all its parts, and return itself: super().train(mode)"
_LEFT = "keep what training counts out of what eval mode reads; register running statistics as buffers running_*"


@dataclass
class _Look:
    """What was seen of a model on its way from eval mode to train mode and back."""

    first: Outputs = field(default_factory=dict)
    again: Outputs = field(default_factory=dict)
    reseeded: Outputs = field(default_factory=dict)
    back: Outputs = field(default_factory=dict)
    wrong_modes: list[str] = field(default_factory=list)
    frozen: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    """Values that the pass in train mode changed, and calls in eval mode do not."""
    moved: int = 0
    """Number of running statistics that it changed."""
    held: int = 0
    untrained: str = ""
    """Why no pass ran in train mode."""


def run(subject: Subject) -> CheckResult:
    """Call the model in eval mode, in train mode, and in eval mode again."""
    with subject.runs() as call:
        look = _look(subject, call)
    if not look.first:
        raise NotApplicableError("its output holds no tensor to compare")
    numbers: dict[str, Any] = {
        "compared": len(look.first) + look.held,
        "unit": "outputs and values",
        "unseen": (look.untrained,) if look.untrained else (),
    }
    failure = _wrong_mode(look) or _random(subject, look) or _left(look) or _other_output(subject, look)
    if failure is not None:
        return failed(NAME, failure, **numbers)
    return passed(NAME, notes=tuple(_notes(subject.model, look)), **numbers)


def _look(subject: Subject, call: Callable[..., Outputs]) -> _Look:
    look, model = _Look(), subject.model
    look.wrong_modes += _switch(model, training=False)
    look.first = call()
    before = held_values(model)
    with _other_seed(subject):
        look.reseeded = call()
    look.again = call()
    repeated = held_values(model)
    statistics = _statistics(model)
    look.frozen = _switch(model, training=True)
    _, look.untrained = in_train_mode(subject, call)
    look.wrong_modes += _switch(model, training=False)
    look.moved = _put_back(model, statistics)
    look.back = call()
    after = held_values(model)
    look.left = _changed_by_training(model, before, repeated, after)
    look.held = len(after)
    return look


def _changed_by_training(
    model: nn.Module, before: dict[str, str], repeated: dict[str, str], after: dict[str, str]
) -> list[str]:
    """Return the names of the values that changed, without those that calls in eval mode change, too.

    Where these calls add to what an attribute holds, or take from it, what came or went in it is none of training's.
    """
    modules = {address for address, _ in named_modules(model)}
    changes_always = set(changed_values(before, repeated))
    growing = {_attribute(name, modules) for name in before.keys() ^ repeated.keys()}

    def is_always(name: str) -> bool:
        return name in changes_always or (
            name in repeated.keys() ^ after.keys() and _attribute(name, modules) in growing
        )

    return [name for name in changed_values(repeated, after) if not is_always(name)]


def _attribute(name: str, modules: set[str]) -> str:
    """Return the path of the module's attribute that a value is in, or is: ``"block.history"``."""
    parts = name.partition("'")[2].removesuffix("'").split(".")
    depth = max((at for at in range(len(parts)) if ".".join(parts[:at]) in modules), default=0)
    return ".".join(parts[: depth + 1])


def _buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the buffers of a model, and of the modules that it holds unregistered, by name."""
    found = dict(named_buffers(model))
    for path, module in hidden_modules(model).items():
        found |= {f"{path}.{name}": tensor for name, tensor in module.named_buffers(recurse=False)}
    return found


def _statistics(model: nn.Module) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """Return the running statistics of a model: name, tensor and present value."""
    return [(name, tensor, tensor.detach().clone()) for name, tensor in _buffers(model).items() if _moves(name)]


def _moves(name: str) -> bool:
    return _STATISTICS.fullmatch(name.rpartition(".")[2]) is not None


def _put_back(model: nn.Module, statistics: list[tuple[str, torch.Tensor, torch.Tensor]]) -> int:
    """Put running statistics back; return how many had changed."""
    live, moved = _buffers(model), 0
    with torch._C.DisableTorchFunction(), torch.no_grad():
        for name, _, former in statistics:
            tensor = live.get(name)
            if tensor is not None and tensor.shape == former.shape and digest_of(tensor) != digest_of(former):
                tensor.copy_(former)
                moved += 1
    return moved


def _switch(model: nn.Module, *, training: bool) -> list[str]:
    """Switch the mode; return what is in the other one afterwards."""
    word = "train" if training else "eval"
    try:
        returned = model.train() if training else model.eval()
    except Exception as error:
        raise ModelRaisedError(f"in {word}()", error) from error
    wrong = [
        f"{f'module {address!r}' if address else 'the model'} ({type(module).__name__}) after {word}()"
        for address, module in named_modules(model)
        if bool(module.training) is not training and not isinstance(module, torch.jit.ScriptModule)
    ]
    if not training:
        wrong += [
            f"module {path!r} ({type(module).__name__}), which no module has registered, after {word}()"
            for path, module in hidden_modules(model).items()
            if module.training and isinstance(module, nn.modules.batchnorm._NormBase)
        ]
    if returned is not model and not training:
        wrong.append(f"{type(model).__name__}.{word}() returns {type(returned).__name__}, not the model")
    return wrong


@contextlib.contextmanager
def _other_seed(subject: Subject) -> Iterator[None]:
    seed = subject.seed
    subject.seed = (seed or 0) + 1
    try:
        yield
    finally:
        subject.seed = seed


# -- what may be wrong, the most telling first -----------------------------------------------------------------------


def _wrong_mode(look: _Look) -> Failure | None:
    if not look.wrong_modes:
        return None
    first = look.wrong_modes[0]
    is_mode = first.endswith("()")
    advice = _UNREGISTERED if "which no module has registered" in first else _MODE
    return Failure(message=f"{first} is in train mode still" if is_mode else first, advice=advice)


def _random(subject: Subject, look: _Look) -> Failure | None:
    """Return that two calls in eval mode differ, with the operation that makes the difference."""
    paths = differing_outputs(look.first, look.reseeded) or differing_outputs(look.first, look.again)
    if not paths:
        return None
    what = f"{output_name(paths[0])} differs in two calls in eval mode"
    return _place(subject, what, values_at(paths[0], look.first, look.reseeded))


def _place(subject: Subject, what: str, values: str) -> Failure:
    try:
        histories = _recorded(subject)
        pair = next(differing(*histories), None)
    except OutOfTimeError:
        pair = None
    if pair is None:
        return Failure(message=what, advice=_RANDOM, values=values)
    if pair.one is not None and pair.other is not None:
        one, other = histories
        unsteady = Unsteady(history=one, number=pair.one, other=other, other_number=pair.other, reseeded=True)
        subject.tools.witness(unsteady)
    history, number = (histories[0], pair.one) if pair.one is not None else (histories[1], pair.other)
    return failure_at(history, number, what, _RANDOM, values=values, cause=_cause(history, number))


def _recorded(subject: Subject) -> tuple[ModelHistory, ModelHistory]:
    with subject.recordings(way="in eval mode", save=True) as run_recorded:
        subject.model.eval()
        one = run_recorded()
        with _other_seed(subject):
            return one, run_recorded()


def _cause(history: ModelHistory, number: int | None) -> str:
    call = history.recording.calls[number or 0]
    does = "draws random numbers" if call.random else "is the first operation that differs"
    where = f" of module {call.module.address!r} ({call.module.module_type})" if call.module else ""
    return f"{call.info.layer_type}{where} {does} in eval mode"


def _left(look: _Look) -> Failure | None:
    if not look.left:
        return None
    what = f"a pass in train mode leaves other values: {listed(look.left)}"
    cause = "they are not running statistics, and calls in eval mode keep them"
    return Failure(message=what, advice=_LEFT, cause=cause)


def _other_output(subject: Subject, look: _Look) -> Failure | None:
    paths = differing_outputs(look.first, look.back)
    if not paths:
        return None
    what = f"{output_name(paths[0])} in eval mode is another one after a pass in train mode, with the former statistics"
    values = values_at(paths[0], look.first, look.back)
    try:
        number, history = _first_after_training(subject)
    except OutOfTimeError:
        number, history = None, None
    return failure_at(history, number, what, _LEFT, values=values)


def _first_after_training(subject: Subject) -> tuple[int | None, ModelHistory | None]:
    """Return the first operation that differs in eval mode before and after a pass in train mode."""
    model = subject.model
    with subject.recordings(way="in eval mode") as run_recorded:
        model.eval()
        one = run_recorded()
        statistics = _statistics(model)
        model.train()
        in_train_mode(subject, run_recorded)
        model.eval()
        _put_back(model, statistics)
        pair = next(differing(one, run_recorded()), None)
    return (pair.one, one) if pair is not None else (None, None)


def _notes(model: nn.Module, look: _Look) -> Iterator[str]:
    if look.moved:
        yield f"the pass in train mode moved {look.moved} running statistics"
    if look.frozen:
        yield f"in eval mode still after train(): {listed(look.frozen)}"
    averaging = [
        repr(address)
        for address, module in named_modules(model)
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.momentum is None
    ]
    if averaging:
        yield f"momentum None: {listed(averaging)} averages over all batches since the start, so that each pass counts"
