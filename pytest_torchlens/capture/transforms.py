"""Function transforms (vmap, grad, vjp, jvp): one operation, with what the function reached from outside."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.overrides import TorchFunctionMode

from pytest_torchlens.capture.functions import Function
from pytest_torchlens.capture.functions import FunctionInfo
from pytest_torchlens.capture.functions import Kind
from pytest_torchlens.capture.functions import info_of
from pytest_torchlens.capture.leaves import substitute
from pytest_torchlens.capture.leaves import tensors
from pytest_torchlens.capture.opaque import Overwritten
from pytest_torchlens.capture.opaque import Tensors
from pytest_torchlens.capture.opaque import custom_info

__tracebackhide__ = True  # pytest leaves our frames out of the traceback of what a model raises


class Transform:
    """A transform of `func`: run once as the model ran it, later with other tensors for those that `func` reached.

    Attributes
    ----------
    reached
        Tensors that `func` read without being given them: by closure, as attributes, as parameters of a module.
    steps
        Layer types of the functions that ran inside it.
    """

    def __init__(self, transform: Callable[..., Any], func: Callable[..., Any]) -> None:
        self._transform = transform
        self._func = func
        self.reached: Tensors = ()
        self.steps: tuple[str, ...] = ()

    def info(self) -> FunctionInfo:
        """Return the facts about the call that the model makes; see `again` for those that follow."""
        name = self._transform.__name__.removesuffix("_impl").removesuffix("_with_argnums").lstrip("_")
        return custom_info(self._first, name, Overwritten())

    def _first(self, *args: Any, **kwargs: Any) -> Any:
        inside = _Inside((args, kwargs))
        result = self._transform(_under(inside, self._func), *args, **kwargs)
        self.reached = tuple(inside.reached.values())
        self.steps = tuple(inside.steps)
        return result

    def again(self, reached: Tensors, *args: Any, **kwargs: Any) -> Any:
        """Call it with these tensors in place of `reached`, in the same order."""
        others = {id(own): other for own, other in zip(self.reached, reached, strict=True) if own is not other}
        return self._transform(_under(_Instead(others), self._func), *args, **kwargs)


class Pullback:
    """The function of cotangents that `torch.func.vjp` returns.

    Parameters
    ----------
    vjp
        The transform that made it, run.
    given
        The arguments of that run, positional and by keyword.
    pull
        The function itself.
    record
        Called with this object and the arguments of a call in the model's own code.

    Attributes
    ----------
    sources
        What a replay makes it from: the tensors that the differentiated function reached, and its arguments.
    """

    def __init__(
        self, vjp: Transform, given: tuple[Any, ...], pull: Callable[..., Any], record: Callable[..., Any]
    ) -> None:
        self._vjp = vjp
        self._record = record
        self.pull = pull
        self.sources = (vjp.reached, *given)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Pull cotangents back: as an operation, or as a step of the transform around it."""
        modes = reversed(torch.overrides._get_current_function_mode_stack())  # type: ignore[no-untyped-call]
        around = next((mode for mode in modes if isinstance(mode, _Inside | _Instead)), None)
        pull = self._record if around is None else around.pull
        return pull(self, args, kwargs)

    def first(self, sources: Any, *args: Any, **kwargs: Any) -> Any:
        """Call it as the model did."""
        return self.pull(*args, **kwargs)

    def again(self, sources: Any, *args: Any, **kwargs: Any) -> Any:
        """Call it as made from other sources, which no transform wraps."""
        reached, given, by_name = sources
        with temporarily_clear_interpreter_stack():
            pull = self._vjp.again(reached, *given, **by_name)[1]
        return pull(*args, **kwargs)


def _under(mode: TorchFunctionMode, func: Callable[..., Any]) -> Callable[..., Any]:
    """Return `func` with a mode on while it runs, and not while the transform does its own work."""

    @functools.wraps(func)
    def called(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return func(*args, **kwargs)

    return called


class _Inside(TorchFunctionMode):
    """Notes the functions that run inside a transform, and the tensors from outside that they read."""

    def __init__(self, given: Any) -> None:
        self.steps: list[str] = []
        self.reached: dict[int, torch.Tensor] = {}
        self._known = {id(tensor): weakref.ref(tensor) for tensor in tensors(given)}

    def __torch_function__(
        self, func: Function, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        info = info_of(func)
        if info.kind is Kind.PLAIN:
            return func(*args, **kwargs)
        for tensor in tensors((args, kwargs)):
            if not is_functorch_wrapped_tensor(tensor) and not self._made(tensor):
                self.reached[id(tensor)] = tensor
        result = func(*args, **kwargs)
        self.steps.append(info.layer_type)
        self._known.update((id(tensor), weakref.ref(tensor)) for tensor in tensors(result))
        return result

    def pull(self, back: Pullback, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Pull cotangents back, and note what that reads without being given it."""
        self.reached.update((id(tensor), tensor) for tensor in tensors(back.sources))
        return back.pull(*args, **kwargs)

    def _made(self, tensor: torch.Tensor) -> bool:
        known = self._known.get(id(tensor))
        return known is not None and known() is tensor


class _Instead(TorchFunctionMode):
    """Puts other tensors in place of some, wherever they are read."""

    def __init__(self, others: dict[int, torch.Tensor]) -> None:
        self._others = others

    def __torch_function__(
        self, func: Function, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if info_of(func).kind is not Kind.PLAIN:
            args, kwargs = substitute(args, self._other), substitute(kwargs, self._other)
        return func(*args, **kwargs)

    def pull(self, back: Pullback, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Pull cotangents back, as made from the other tensors."""
        return back.again(substitute(back.sources, self._other), *args, **kwargs)

    def _other(self, leaf: Any) -> Any:
        return self._others.get(id(leaf), leaf)
