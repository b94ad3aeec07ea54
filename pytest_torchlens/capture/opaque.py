"""Records opaque code, which no mode can see into, as one operation.

Opaque are scripted and compiled modules and functions, custom autograd functions, and function transforms (vmap, grad,
vjp, jvp).  A transform also reads the outer tensors that its function uses.
"""

from __future__ import annotations

import functools
import operator
import re
import sys
import weakref
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from pytest_torchlens.capture.fingerprint import fingerprint
from pytest_torchlens.capture.functions import Function
from pytest_torchlens.capture.functions import FunctionInfo
from pytest_torchlens.capture.functions import Kind
from pytest_torchlens.capture.functions import function_name
from pytest_torchlens.capture.functions import info_of
from pytest_torchlens.capture.functions import layer_type
from pytest_torchlens.capture.functions import leaf_of
from pytest_torchlens.capture.leaves import is_lazy
from pytest_torchlens.capture.leaves import substitute
from pytest_torchlens.capture.leaves import tensors
from pytest_torchlens.capture.looks import is_a
from pytest_torchlens.capture.looks import named_modules
from pytest_torchlens.capture.memory import duplicate
from pytest_torchlens.capture.memory import overwrite
from pytest_torchlens.capture.origins import tensors_used

__tracebackhide__ = True  # pytest leaves our frames out of the traceback of what a model raises

Tensors = tuple[torch.Tensor, ...]


def is_opaque(module: torch.nn.Module) -> bool:
    """Return whether a module's forward is opaque: scripted or compiled."""
    if is_a(module, torch.jit.ScriptModule):
        return True
    compiled = sys.modules.get("torch._dynamo.eval_frame")  # we do not import it: that is slow
    return compiled is not None and is_a(module, compiled.OptimizedModule)


def custom_info(func: Callable[..., Any], name: str, writer: WriteDetector | None = None) -> FunctionInfo:
    """Return the facts about an opaque function; it may draw random numbers."""
    info = leaf_of(func)
    info.name = name
    info.layer_type = name.lower()
    info.writer = writer
    info.draws = True
    info.opaque = True
    info.depends_on_settings = True
    return info


class WriteDetector:
    """Finds the arguments that opaque code overwrites, by comparing fingerprints from before and after the call."""

    def __init__(self) -> None:
        self._before: list[tuple[torch.Tensor, str]] = []

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensors:
        """Return all tensors among the arguments, and note their fingerprints."""
        by_id = {id(tensor): tensor for tensor in tensors((args, kwargs)) if not is_lazy(tensor)}
        self._before = [(tensor, fingerprint(tensor)) for tensor in by_id.values()]
        return tuple(by_id.values())

    def changed_tensors(self) -> Tensors:
        """Return the tensors whose contents have changed, and drop the fingerprints."""
        before, self._before = self._before, []
        return tuple([tensor for tensor, former in before if fingerprint(tensor) != former])


def may_write(code: Any, training: bool) -> bool:
    """Return whether code may write to its tensors: scripted code if it has such a step, other code always."""
    try:
        graph = str(code.inlined_graph)
    except (AttributeError, RuntimeError):
        return True
    return _WRITES.search(graph) is not None or (training and _WRITES_IN_TRAINING.search(graph) is not None)


_WRITES = re.compile(r"[a-z0-9]_\(|::SetAttr|::data\(|::fork|::CallFunction|::CallMethod|\bout=")
_WRITES_IN_TRAINING = re.compile(r"::\w*(batch|instance)_norm")


def constants_in(code: Any) -> Tensors:
    """Return the tensors that scripted code holds as constants; none for other code."""
    graph = getattr(code, "inlined_graph", None)
    nodes = () if graph is None else graph.findAllNodes("prim::Constant", recurse=True)
    return tuple(node.t("value") for node in nodes if node.hasAttribute("value") and node.kindOf("value") == "t")


class OpaqueModule:
    """A module as a function of its own tensors (`own_tensors`) and its inputs.

    Parameters
    ----------
    call
        ``nn.Module.__call__``, or its replacement by another tool.
    module
        The module.
    registered
        Whether it belongs to the recorded model; a recording must not keep the model alive.
    """

    def __init__(self, call: Callable[..., Any], module: torch.nn.Module, registered: bool) -> None:
        self._call = call
        self.module: Callable[[], torch.nn.Module | None] = weakref.ref(module) if registered else lambda: module
        self.own_tensors: Tensors = tuple(tensor for tensor in tensors_used(module) if not is_lazy(tensor))

    def info(self) -> FunctionInfo:
        """Return the facts about a call of the module."""
        module: Any = self.module()
        inner = getattr(module, "_orig_mod", module)
        training = any(getattr(part, "training", False) for _, part in named_modules(inner))
        writer = WriteDetector() if may_write(module, training) else None
        return custom_info(self, getattr(inner, "original_name", type(inner).__name__), writer)

    def __call__(self, held: Tensors, /, *args: Any, **kwargs: Any) -> Any:
        """Call the module with the contents of `held` in its own tensors; what it writes to them ends up in `held`."""
        others = [(own, other) for own, other in zip(self.own_tensors, held, strict=True) if own is not other]
        former = [duplicate(own) for own, _ in others]
        for own, other in others:
            overwrite(own, other)
        try:
            return self._call(self.module(), *args, **kwargs)
        finally:
            for (own, other), contents in zip(others, former, strict=True):
                overwrite(other, own)
                overwrite(own, contents)


class Transform:
    """A transform of `func`: the model calls it once, replays call it with other tensors in place of `outer_tensors`.

    Parameters
    ----------
    transform
        A function such as `torch.vmap`, which takes `func` first.
    func
        The function that it transforms.

    Attributes
    ----------
    outer_tensors
        Tensors that `func` reads besides its arguments: from its closure, attributes, parameters of modules.
    steps
        Layer types of the functions that ran inside it.
    """

    def __init__(self, transform: Callable[..., Any], func: Callable[..., Any]) -> None:
        self._transform = transform
        self._func = func
        self.outer_tensors: Tensors = ()
        self.steps: tuple[str, ...] = ()

    def info(self, on_fault: Callable[[Exception], None]) -> FunctionInfo:
        """Return the facts about the call that the model makes; see `replay` for later calls.

        `on_fault` is called with each error in our own code in that call.  The transform does not keep it: it belongs
        to the tracer, which must be freed with the recording.
        """
        name = self._transform.__name__.removesuffix("_impl").removesuffix("_with_argnums").lstrip("_")
        return custom_info(functools.partial(self._first_run, on_fault), name, WriteDetector())

    def _first_run(self, on_fault: Callable[[Exception], None], /, *args: Any, **kwargs: Any) -> Any:
        inside = _InsideTransform((args, kwargs), on_fault)
        result = self._transform(_under(inside, self._func), *args, **kwargs)
        self.outer_tensors = tuple(inside.outer_tensors.values())
        self.steps = tuple(inside.steps)
        return result

    def replay(self, outer_tensors: Tensors, /, *args: Any, **kwargs: Any) -> Any:
        """Call it with these tensors in place of `outer_tensors`, in the same order."""
        others = {
            id(own): other for own, other in zip(self.outer_tensors, outer_tensors, strict=True) if own is not other
        }
        return self._transform(_under(_Substitution(others), self._func), *args, **kwargs)


_CONTROL_FLOW = frozenset(["cond", "while_loop", "scan", "map_impl", "associative_scan"])


def is_control_flow(called: Any) -> bool:
    """Return whether an operator is one of control flow: it takes functions that the compiler has made graphs of."""
    return called.name() in _CONTROL_FLOW


def steps_of_operator(name: str, args: tuple[Any, ...]) -> tuple[str, ...]:
    """Return the layer types of the functions in the graphs among an operator's arguments; of `cond`, in its branch."""
    graphs = [arg for arg in args if is_a(arg, torch.fx.GraphModule)]
    if name == "cond" and len(graphs) == len(("true", "false")):
        graphs = graphs[:1] if args[0] else graphs[1:]
    return tuple(step for graph in graphs for step in _steps_of_graph(graph))


def _steps_of_graph(graph: Any) -> Iterator[str]:
    """Yield the layer types of a graph's functions; which branch of an inner `cond` runs is not known here."""
    nodes = [node for node in graph.graph.nodes if node.op in ("call_function", "call_method")]
    has_values = any("example_value" in node.meta for node in nodes)
    for node in (node for node in nodes if _makes_tensors(node) or not has_values):
        name = node.target if node.op == "call_method" else function_name(node.target)
        yield layer_type(name.removesuffix("_impl"))
        if is_a(node.target, torch._ops.HigherOrderOperator) and name != "cond":
            inner = (getattr(graph, str(arg.target), None) for arg in node.all_input_nodes if arg.op == "get_attr")
            yield from (step for part in inner if is_a(part, torch.fx.GraphModule) for step in _steps_of_graph(part))


def _makes_tensors(node: torch.fx.Node) -> bool:
    """Return whether a node's function makes tensors, and does not pick one of several results."""
    picks = node.target is operator.getitem and _has_several_results(node.args[0])
    made = pytree.tree_leaves(node.meta.get("example_value"))  # a symbolic size is a leaf, though it holds a tensor
    return any(is_a(leaf, torch.Tensor) for leaf in made) and not picks


def _has_several_results(node: Any) -> bool:
    return isinstance(node, torch.fx.Node) and isinstance(node.meta.get("example_value"), tuple | list)


class Pullback:
    """The function of cotangents that `torch.func.vjp` returns.

    Parameters
    ----------
    vjp
        The transform that returned it.
    arguments
        The arguments of that transform, positional and by keyword.
    pull
        The function itself.
    record
        Called with this object and its arguments, when the model's own code calls it.

    Attributes
    ----------
    sources
        What a replay makes it from: the outer tensors of the differentiated function, and its arguments.
    """

    def __init__(
        self, vjp: Transform, arguments: tuple[Any, ...], pull: Callable[..., Any], record: Callable[..., Any]
    ) -> None:
        self._vjp = vjp
        self._record = record
        self.pull = pull
        self.sources = (vjp.outer_tensors, *arguments)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Pull cotangents back: as an operation, or as a step of an enclosing transform."""
        modes = reversed(torch.overrides._get_current_function_mode_stack())  # type: ignore[no-untyped-call]
        around = next((mode for mode in modes if isinstance(mode, _InsideTransform | _Substitution)), None)
        pull = self._record if around is None else around.pull
        return pull(self, args, kwargs)

    def replay(self, sources: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call the pullback made from other sources, which no transform wraps."""
        outer_tensors, args_of_vjp, kwargs_of_vjp = sources
        with temporarily_clear_interpreter_stack():
            pull = self._vjp.replay(outer_tensors, *args_of_vjp, **kwargs_of_vjp)[1]
        return pull(*args, **kwargs)


def _under(mode: TorchFunctionMode, func: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `func` so that a mode is on while it runs, but not while the transform does its own work."""

    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return func(*args, **kwargs)

    return wrapped


class _InsideTransform(TorchFunctionMode):
    """Notes the functions that run inside a transform, and the outer tensors that they read."""

    def __init__(self, arguments: Any, on_fault: Callable[[Exception], None]) -> None:
        self._on_fault = on_fault
        self.steps: list[str] = []
        self.outer_tensors: dict[int, torch.Tensor] = {}
        self._inner_tensors = {id(tensor): weakref.ref(tensor) for tensor in tensors(arguments)}

    def __torch_function__(
        self, func: Function, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        try:
            info = info_of(func)
            plain = info.kind is Kind.PLAIN
            if not plain:
                self._note_reads(tensors((args, kwargs)))
        except Exception as error:  # noqa: BLE001 - the model's call is still to be made
            self._on_fault(error)
            plain = True
        result = func(*args, **kwargs)
        if not plain:
            try:
                self._note_step(info, tensors(result))
            except Exception as error:  # noqa: BLE001 - the model's call has been made
                self._on_fault(error)
        return result

    def _note_reads(self, read: Tensors) -> None:
        for tensor in read:
            if not is_functorch_wrapped_tensor(tensor) and not self._is_from_inside(tensor):
                self.outer_tensors[id(tensor)] = tensor

    def _note_step(self, info: FunctionInfo, results: Tensors) -> None:
        if (results or info.writer is not None) and not info.bookkeeping:
            self.steps.append(info.layer_type)
        self._inner_tensors.update((id(tensor), weakref.ref(tensor)) for tensor in results)

    def pull(self, back: Pullback, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Pull cotangents back, and note the sources of the pullback as outer tensors."""
        try:
            self.outer_tensors.update((id(tensor), tensor) for tensor in tensors(back.sources))
        except Exception as error:  # noqa: BLE001 - the model's call is still to be made
            self._on_fault(error)
        return back.pull(*args, **kwargs)

    def _is_from_inside(self, tensor: torch.Tensor) -> bool:
        known = self._inner_tensors.get(id(tensor))
        return known is not None and known() is tensor


class _Substitution(TorchFunctionMode):
    """Replaces some tensors by others wherever functions read them."""

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
        """Pull cotangents back, with the other tensors as sources."""
        return back.replay(substitute(back.sources, self._other), *args, **kwargs)

    def _other(self, leaf: Any) -> Any:
        return self._others.get(id(leaf), leaf)
