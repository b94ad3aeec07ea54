"""The check ``attention``: all implementations of attention that the model and the device have give the same.

These are the kernels of `scaled_dot_product_attention`, the fast path of torch's transformer layers, and what
``set_attn_implementation`` of a transformers model sets, on a copy.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib.util
import sys
import types
import warnings
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.attention import SDPBackend
from torch.nn.attention import sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from pytest_torchlens.capture.looks import named_modules
from pytest_torchlens.checks.compare import compare
from pytest_torchlens.checks.compare import summed_up
from pytest_torchlens.checks.subject import ModelRaisedError
from pytest_torchlens.checks.subject import NotApplicableError
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.vacuity import dependent
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import CheckResult
from pytest_torchlens.records import CheckStatus

NAME = "attention"
_SDPA = "scaled_dot_product_attention"
_WORDS = ("attention", "attn", "transformer")
_KERNELS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
_ABSENT = ("No viable backend", "No available kernel", "execution plan")
"""What torch says where the device, or the arguments, have no such kernel."""
_FUSED = {"_transformer_encoder_layer_fwd", "_native_multi_head_attention"}
"""The fast path of torch's layers."""
_ADVICE = (
    "give each implementation the same mask, scale, dropout and order of dimensions; a row whose positions are all "
    "masked gives NaN in one kernel and zeros in another"
)
_NONE = (
    "the model seems to have no attention: no class is named after it, and neither a source file of its classes, nor "
    f"one of the functions that they import, calls {_SDPA}; no pass was run to see"
)


class _Way(NamedTuple):
    """One implementation."""

    name: str
    runner: Subject
    context: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext


def run(subject: Subject) -> CheckResult:
    """Compare each implementation with the plain run."""
    if not _may_attend(subject.model):
        raise NotApplicableError(_NONE)
    if subject.draws:
        raise NotApplicableError(f"the model draws random numbers ({subject.draws}), and each kernel others")
    unseen: list[str] = []
    found: dict[str, CheckResult] = {}
    absent: list[str] = []
    given = dependent(subject)
    used = _kernels_of(given)
    for way in _ways(given, unseen, used):
        result = _compared(given, way)
        if result is None:
            absent.append(way.name)
        elif result.status is CheckStatus.FAILED:
            return result
        else:
            found[way.name] = result
    if used:
        unseen.append(f"the plain run takes the {' and the '.join(used)} kernel")
    if absent:
        unseen.append(f"the device has no kernel for these inputs: {', '.join(absent)}")
    if not found:
        raise NotApplicableError("; ".join(unseen) or f"no operation is {_SDPA}, and no implementation can be set")
    result = summed_up(NAME, [*found.values()], [", ".join(found)])
    return replace(result, unseen=(*result.unseen, *unseen))


def _may_attend(model: nn.Module) -> bool:
    """Return whether a model may have attention, without a pass."""
    kinds = {type(module) for _, module in named_modules(model)}
    return any(word in kind.__name__.lower() for kind in kinds for word in _WORDS) or any(map(_calls_sdpa, kinds))


def _calls_sdpa(kind: type) -> bool:
    """Return whether the file of a class, or one of a function or module that it imports, calls the function."""
    names = {kind.__module__}
    for value in list(vars(sys.modules.get(kind.__module__, object)).values()):
        if isinstance(value, types.FunctionType):
            names.add(value.__module__ or "")
        elif isinstance(value, types.ModuleType):
            names.add(value.__name__)
    files = [getattr(sys.modules.get(name), "__file__", None) for name in names if name.split(".")[0] != "torch"]
    return any(_has_sdpa(file) for file in files if file and file.endswith(".py"))


@functools.cache
def _has_sdpa(file: str) -> bool:
    try:
        return _SDPA in Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False


class _Chosen(TorchFunctionMode):
    """Notes which kernel torch chooses for each call."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: set[int] = set()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is scaled_dot_product_attention:
            self.kernels.add(torch._fused_sdp_choice(*args, **kwargs or {}))
        return func(*args, **kwargs or {})


def _kernels_of(subject: Subject) -> list[str]:
    """Return the names of the kernels that the plain run takes; none if it calls none, or torch does not say."""
    if _SDPA not in _functions(subject):
        return []
    try:
        with warnings.catch_warnings(), _Chosen() as chosen:
            warnings.simplefilter("ignore")
            subject.call()
    except ModelRaisedError:  # the choice is not known of every device and argument
        return []
    return [name for name, kernel in _KERNELS.items() if kernel.value in chosen.kernels]


def _functions(subject: Subject) -> set[str]:
    return {call.info.name for call in subject.history.recording.calls}


def _ways(subject: Subject, unseen: list[str], used: list[str]) -> Iterator[_Way]:
    called = _functions(subject)
    if _SDPA in called:
        for name, kernel in _KERNELS.items():
            if used == [name]:  # it would be compared with itself
                continue
            yield _Way(f"with the {name} kernel", subject, functools.partial(sdpa_kernel, [kernel]))
    if called & _FUSED:
        yield _Way("without the fast path of torch's layers", subject, _no_fast_path)
    if hasattr(subject.model, "set_attn_implementation"):
        yield from _implementations(subject, unseen)


@contextlib.contextmanager
def _no_fast_path() -> Iterator[None]:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _implementations(subject: Subject, unseen: list[str]) -> Iterator[_Way]:
    """Yield the implementations that the model does not have set, each on a copy."""
    flash = importlib.util.find_spec("flash_attn") and any(out.is_cuda for out in subject.outputs.values())
    for name in ("eager", "sdpa", *(["flash_attention_2"] if flash else [])):
        if name == _implementation(subject.model):
            continue
        try:
            model = copy.deepcopy(subject.model)
            model.set_attn_implementation(name)  # type: ignore[operator]
        except Exception as error:  # noqa: BLE001 - what a model's class does not support, it says in its own way
            unseen.append(f"attn_implementation {name!r}: {' '.join(str(error).split())[:_LONG]}")
            continue
        if _implementation(model) != name:
            unseen.append(f"attn_implementation {name!r}: the model's class does not take it")
            continue
        other = subject.of(model)
        yield _Way(f"with attn_implementation {name!r}", other)


_LONG = 120


def _implementation(model: nn.Module) -> object:
    return getattr(getattr(model, "config", None), "_attn_implementation", None)


def _compared(given: Subject, way: _Way) -> CheckResult | None:
    """Return the result of one implementation; None if there is no such kernel."""

    def record() -> ModelHistory:
        with way.context():
            return way.runner.record(way=way.name)

    try:
        with way.context(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of each kernel that it does not take
            outputs = way.runner.call(way=way.name)
    except ModelRaisedError as error:
        if not any(text in str(error.error) for text in _ABSENT):
            raise
        return None
    return compare(NAME, given, outputs, record, way.name, _ADVICE)
