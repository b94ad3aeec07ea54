"""Replaces a few attributes of torch and `threading` while any thread records, and restores them afterwards."""

from __future__ import annotations

import _thread
import contextlib
import functools
import re
import sys
import threading
import types
import warnings
import weakref
from collections import Counter
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import torch
import torch._functorch.apis
import torch._functorch.eager_transforms
import torch.overrides

from pytest_torchlens.capture.backward import backward_arguments
from pytest_torchlens.capture.backward import has_results
from pytest_torchlens.capture.compiler import leave_our_code_alone
from pytest_torchlens.capture.dispatch_watch import dispatch_depth
from pytest_torchlens.capture.function_tracer import mode_disabled
from pytest_torchlens.capture.leaves import tensors
from pytest_torchlens.capture.opaque import Pullback
from pytest_torchlens.capture.opaque import is_control_flow
from pytest_torchlens.capture.threads import SharedTracer
from pytest_torchlens.capture.threads import tracer_for_thread
from pytest_torchlens.capture.tracer import STORAGE_WRITES
from pytest_torchlens.capture.tracer import Tracer
from pytest_torchlens.capture.warning_places import caller_past_us
from pytest_torchlens.capture.warning_places import is_ours
from pytest_torchlens.capture.warning_places import level_past_us

__tracebackhide__ = True  # pytest leaves our frames out of the traceback of what a model raises

COMPILES = "it runs compiled functions"
_lock = threading.Lock()
_active = threading.local()
_is_compiling = torch.compiler.is_compiling
_jit_traces = torch._C._get_tracing_state
_users: Counter[str] = Counter()
"""Number of users of each patch in this process."""
Patch = tuple[Any, str, Any]
"""Owner, attribute, replacement."""
Listener = Callable[[Callable[..., Any], torch.nn.Module, tuple[Any, ...], dict[str, Any]], Any]
"""Makes an outermost module call: receives ``nn.Module.__call__`` and its arguments, returns the result of the call."""


def tracer_here() -> Tracer | None:
    """Return the tracer of this thread; None if it does not record."""
    tracer: Tracer | None = getattr(_active, "tracer", None)
    return None if tracer is None or tracer.over else tracer


@contextlib.contextmanager
def tracing(tracer: Tracer) -> Iterator[None]:
    """Record this thread's module calls and torch functions with `tracer`."""
    leave_our_code_alone()
    with _patched(_patches()):
        _active.tracer = tracer
        try:
            with tracer:
                yield
        finally:
            _active.tracer = None


@contextlib.contextmanager
def module_calls_intercepted(forward: Any = None, original: Any = None) -> Iterator[Any]:
    """Replace ``nn.Module.__call__`` so that a `module_call_listener` can make the calls; costs a microsecond each.

    The patch stays longer than any one listener: other tools replace ``nn.Module.__call__`` too, and later restore what
    they found.  It may find `forward` in the place of `original`, or wrapped: yields what `forward` is to call then.
    """
    owner, name, replacement = _PATCHES[0]
    with _lock:
        is_new = forward is not None and not _users[_key(owner, name)]
        if is_new:
            present = vars(owner)[name]
            _replace(owner, name, original, replacement)
            setattr(owner, name, replacement if present is forward else present)
            _users[_key(owner, name)] += 1
    with _patched(_PATCHES[:1]):
        try:
            yield replacement if is_new else original
        finally:
            _users[_key(owner, name)] -= is_new


@contextlib.contextmanager
def module_call_listener(listener: Listener | None) -> Iterator[None]:
    """Let `listener` make this thread's outermost module calls; None removes it.

    It does not receive the module calls that it makes itself.
    """
    former = getattr(_active, "listener", None)
    _active.listener = listener
    try:
        yield
    finally:
        _active.listener = former


def _open_tracer() -> Tracer | None:
    """Return this thread's tracer; None while code is compiled or traced."""
    tracer = tracer_here()
    if tracer is None or _is_compiling() or _jit_traces() is not None:
        return None
    return None if dispatch_depth() > tracer.num_own_modes and tracer.is_trying_out else tracer


def _idle_tracer() -> Tracer | None:
    """Return this thread's tracer; None also while it is busy with a call."""
    tracer = _open_tracer()
    return None if tracer is None or tracer.busy else tracer


def _module_call(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    tracer, call = _open_tracer(), _originals["Module.__call__"]
    if tracer is None:
        listener = _open_listener()
        return (
            call(module, *args, **kwargs) if listener is None else _call_listener(listener, call, module, args, kwargs)
        )
    if tracer.busy and not tracer.transforming:
        return call(module, *args, **kwargs)
    return tracer.call_module(call, (module, *args), kwargs)


def _open_listener() -> Listener | None:
    """Return this thread's listener; None while code is compiled or traced by jit."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return None
    listener: Listener | None = getattr(_active, "listener", None)
    return listener


def _call_listener(
    listener: Listener, call: Any, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    with module_call_listener(None):
        return listener(call, module, args, kwargs)


def _apply(function: type[torch.autograd.Function], /, *args: Any, **kwargs: Any) -> Any:
    tracer = _idle_tracer()
    call = _originals["Function.apply"].__get__(None, function)
    return call(*args, **kwargs) if tracer is None else tracer.call_custom(call, args, kwargs, function.__name__)


def _script_call(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    tracer = _idle_tracer()
    call = _originals["ScriptFunction.__call__"].__get__(function, type(function))
    return call(*args, **kwargs) if tracer is None else tracer.call_opaque(call, args, kwargs, function.name)


def _thread_start(thread: threading.Thread) -> None:
    """Replace ``threading.Thread.start``: a thread that the model starts is recorded too."""
    start = _originals["Thread.start"]
    own = {"run": thread.run} if "run" in vars(thread) else {}
    body = _recorded_body(thread.run, thread.name)

    def restore_run() -> None:
        vars(thread).pop("run", None)
        vars(thread).update(own)

    def run() -> None:
        restore_run()
        body()

    if body == thread.run:
        start(thread)
        return
    thread.run = run  # type: ignore[method-assign]
    try:
        start(thread)
    except BaseException:
        restore_run()
        raise


def _start_new_thread(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> int:
    """Replace ``_thread.start_new_thread``, which some code calls directly."""
    ident: int = _originals["_thread.start_new_thread"](_recorded_body(function, "one without a name"), *args, **kwargs)
    return ident


def _recorded_body(body: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Wrap the body of a new thread to record it; return `body` if nothing records, or inside an operation."""
    tracer = _open_tracer()
    if tracer is None or tracer.busy:
        if tracer is not None:
            tracer.recording.unrecorded_threads.append(name)
        return body
    own_tracer = tracer_for_thread(tracer, name)

    def run(*args: Any, **kwargs: Any) -> None:
        _active.tracer = own_tracer
        try:
            with own_tracer.watch or contextlib.nullcontext(), own_tracer:
                body(*args, **kwargs)
        finally:
            own_tracer.watch = None  # breaks a cycle

    return run


def _has_torch_function(relevant: Any) -> bool:
    """Replace ``torch.overrides.has_torch_function``: our own mode must not disable a fast path."""
    tracer = tracer_here()
    if tracer is None or not torch._C._len_torch_function_stack():
        return bool(_originals["has_torch_function"](relevant))
    with mode_disabled(tracer):
        return bool(_originals["has_torch_function"](relevant))


def _vmap(func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return _call_transform("vmap_impl", func, args, kwargs)


def _grad(func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return _call_transform("grad_impl", func, args, kwargs)


def _grad_and_value(func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return _call_transform("grad_and_value_impl", func, args, kwargs)


def _jvp(func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return _call_transform("_jvp_with_argnums", func, args, kwargs)


def _vjp(func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Replace the implementation of `torch.func.vjp` and `jacrev`: the pullback that it returns is recorded too."""
    tracer, vjp = _outermost_tracer(), _originals["_vjp_with_argnums"]
    return vjp(func, *args, **kwargs) if tracer is None else tracer.call_vjp(vjp, (func, *args), kwargs, _pull_back)


def _pull_back(back: Pullback, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tracer = _outermost_tracer()
    return back.pull(*args, **kwargs) if tracer is None else tracer.call_pullback(back.pull, args, kwargs, back)


def _functionalize(key: str) -> Callable[..., Any]:
    """Return a replacement of `torch.func.functionalize`: calls of the function that it returns are recorded."""

    def replacement(func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        make = _originals[key]
        plain = make(func, *args, **kwargs)

        def functionalize(func: Callable[..., Any], /, *inputs: Any, **named: Any) -> Any:
            return make(func, *args, **kwargs)(*inputs, **named)

        @functools.wraps(plain)
        def functional(*inputs: Any, **named: Any) -> Any:
            tracer = _outermost_tracer()
            if tracer is None:
                return plain(*inputs, **named)
            return tracer.call_transform(functionalize, (func, *inputs), named)

        return functional

    return replacement


def _call_transform(name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Replace the implementation of `torch.vmap`, `torch.func.grad` and similar transforms."""
    tracer = _outermost_tracer()
    transform = _originals[name]
    args = (func, *args)
    return transform(*args, **kwargs) if tracer is None else tracer.call_transform(transform, args, kwargs)


def _outermost_tracer() -> Tracer | None:
    """Return this thread's tracer; None inside a transform: inner transforms are part of the outermost one."""
    return None if torch._C._functorch.peek_interpreter_stack() is not None else _idle_tracer()


def _nested_tensor(*args: Any, **kwargs: Any) -> Any:
    """Replace the builtin behind `torch.nested.nested_tensor`, which no mode sees."""
    tracer, call = _idle_tracer(), _originals["torch._C._nested.nested_tensor"]
    return call(*args, **kwargs) if tracer is None else tracer.call_unseen(call, args, kwargs)


def _range(*args: Any, **kwargs: Any) -> Any:
    """Replace `torch.range`, which no mode sees."""
    tracer, call = _idle_tracer(), _originals["range"]
    return call(*args, **kwargs) if tracer is None else tracer.call_unseen(call, args, kwargs)


def _operator_call(operator: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Replace the call of operators with functions inside: under autograd they trace these with fake tensors."""
    call = _originals["HigherOrderOperator.__call__"].__get__(operator)
    tracer = _idle_tracer() if torch.is_grad_enabled() and is_control_flow(operator) else None
    if tracer is None or not any(tensor.requires_grad for tensor in tensors((args, kwargs))):
        return call(*args, **kwargs)
    return tracer.call_operator(call, args, kwargs, operator.name())


def _backward(*args: Any, **kwargs: Any) -> None:
    """Replace ``torch.autograd.backward``, which no mode sees."""
    tracer, call = _idle_tracer(), _originals["torch.autograd.backward"]
    if tracer is None:
        call(*args, **kwargs)
        return
    arguments = backward_arguments(call, args, kwargs)
    if has_results(arguments):
        tracer.call_backward(call, (), arguments)
    else:
        call(**arguments)


@functools.cache
def _collective(name: str) -> Patch:
    """Return the patch of a collective: alone in its group, a process writes only what it has itself."""
    key = f"ProcessGroup.{name}"

    def finished(*args: Any, **kwargs: Any) -> Any:
        work = _originals[key](*args, **kwargs)
        work.wait()
        if all(tensor.is_cpu for tensor in tensors((args, kwargs))):  # elsewhere a wait is what orders a stream
            _finished.add(work)
        return work

    def replacement(group: Any, /, *args: Any, **kwargs: Any) -> Any:
        tracer = _idle_tracer() if group.size() == 1 else None
        if tracer is None:
            return _originals[key](group, *args, **kwargs)
        return tracer.call_opaque(finished, (group, *args), kwargs, name)

    return torch.distributed.ProcessGroup, name, replacement


def _broadcast_coalesced(group: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Replace the function by which `DistributedDataParallel` broadcasts buffers, which calls the group past Python."""
    tracer, call = _idle_tracer() if group.size() == 1 else None, _originals["_broadcast_coalesced"]
    args = (group, *args)
    return call(*args, **kwargs) if tracer is None else tracer.call_opaque(call, args, kwargs, "broadcast_coalesced")


_finished: weakref.WeakSet[Any] = weakref.WeakSet()
"""The work of recorded collectives on the CPU: to wait for it again may run operations again."""


def _wait(work: Any, *args: Any, **kwargs: Any) -> Any:
    """Replace the method that waits for a collective to end."""
    return True if work in _finished else _originals["Work.wait"](work, *args, **kwargs)


def _set(tensor: torch.Tensor, /, *args: Any, **kwargs: Any) -> Any:
    """Replace ``Tensor.set_``, which no mode sees: `torch.load` and `pickle` make tensors with it."""
    tracer, call = _idle_tracer(), _originals["Tensor.set_"]
    args = (tensor, *args)
    return call(*args, **kwargs) if tracer is None else tracer.call_set(call, args, kwargs)


def _reduce(tensor: torch.Tensor, proto: Any) -> Any:
    """Replace what takes a plain tensor apart for ``pickle`` and `torch.save`: its values leave the graph."""
    tracer, call = _idle_tracer(), _originals["Tensor._reduce_ex_internal"]
    return call(tensor, proto) if tracer is None else tracer.escape_by_pickle(call, (tensor, proto))


def _resize_storage(storage: torch.UntypedStorage, size: int) -> Any:
    """Replace ``UntypedStorage.resize_``: it gives memory to tensors, or frees it, as sharded weights do."""
    tracer, call = _idle_tracer(), _originals["UntypedStorage.resize_"]
    return call(storage, size) if tracer is None else tracer.call_resize(call, (storage, size), {})


def _storage_item(storage: torch.UntypedStorage, index: Any) -> Any:
    """Replace the method by which Python reads the bytes of a storage: values leave the graph."""
    tracer, call = _idle_tracer(), _originals["UntypedStorage.__getitem__"]
    return call(storage, index) if tracer is None else tracer.escape_from_storage(call, (storage, index))


def _storage_write(name: str) -> Patch:
    """Return the patch of a method of storages that writes to them, which no mode sees."""

    def replacement(storage: torch.UntypedStorage, /, *args: Any, **kwargs: Any) -> Any:
        tracer, call = _idle_tracer(), _originals[f"UntypedStorage.{name}"]
        args = (storage, *args)
        return call(*args, **kwargs) if tracer is None else tracer.call_storage_write(call, args, kwargs, name)

    return torch.UntypedStorage, name, replacement


def _swap_tensors(t1: torch.Tensor, t2: torch.Tensor) -> Any:
    """Replace ``torch.utils.swap_tensors``, which refuses tensors with weak references: ours are taken off first."""
    tracer, call = _idle_tracer(), _originals["torch.utils.swap_tensors"]
    if tracer is None:
        return call(t1, t2)

    def swap(t1: torch.Tensor, t2: torch.Tensor) -> Any:
        tracer.table.drop((t1, t2))  # also after an error of ours
        return call(t1, t2)

    return tracer.call_swap(swap, (t1, t2), {})


def _jit_tracing(key: str) -> Callable[..., Any]:
    """Return a replacement of a function behind `torch.jit.trace`: it runs as without a recording."""

    def replacement(*args: Any, **kwargs: Any) -> Any:
        tracer, call = _idle_tracer(), _originals[key]
        return call(*args, **kwargs) if tracer is None else tracer.call_jit_tracing(call, args, kwargs)

    return replacement


def _compile(*args: Any, **kwargs: Any) -> Any:
    """Replace ``torch.compile``: it may be the first to load the compiler."""
    _note_compiled()
    return _originals["compile"](*args, **kwargs)


def _callback_from_stance(callback: Any) -> Any:
    """Replace the function that the compiler calls before a compiled function; without a callback none will run."""
    if callback:
        _note_compiled()
    return _originals["_callback_from_stance"](callback)


def _note_compiled() -> None:
    """Note in this thread's recording that it runs compiled code; stop it inside a user's test."""
    stop_recording_in_test(COMPILES)
    if (tracer := tracer_here()) is not None and not _is_called_by_operator(sys._getframe(1)):
        tracer.recording.compiled = True


def _is_called_by_operator(frame: types.FrameType | None) -> bool:
    """Return whether an operator such as `torch.cond` compiles: it runs the same functions, in one operation."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if name not in ("torch", __name__) and not name.startswith("torch._dynamo."):
            return name.startswith("torch._higher_order_ops.")
        frame = frame.f_back
    return False


def stop_recording_in_test(reason: str) -> None:
    """Stop the recording of this thread inside a user's test, if there is one."""
    tracer = _idle_tracer()
    if isinstance(tracer, SharedTracer):
        tracer.stop_and_exit_modes(reason)
        if tracer.over and warnings.warn is _warn:
            warnings.warn = _originals["warn"]  # the compiler knows no other


def _warn(*args: Any, **kwargs: Any) -> Any:
    """Replace `warnings.warn`, so that ``stacklevel`` does not count our frames."""
    warn = _originals["warn"]
    if not isinstance(warn, types.BuiltinFunctionType):  # a user's own may look at its arguments
        return warn(*args, **kwargs)
    return _warn_past_us(warn, *args, **kwargs)


def _warn_past_us(
    warn: Callable[..., Any],
    /,
    message: Any,
    category: Any = None,
    stacklevel: int = 1,
    source: Any = None,
    *,
    skip_file_prefixes: tuple[str, ...] = (),
) -> None:
    warn(message, category, level_past_us(stacklevel, 2, tuple(skip_file_prefixes)), source)


def _show_warning(message: Any) -> None:
    """Replace what shows or stores a warning: those of C++ code that we call are about our caller."""
    frame = sys._getframe(1)
    if is_ours(frame) and message.filename == frame.f_code.co_filename and (caller := caller_past_us(frame)):
        message.filename, message.lineno = caller.f_code.co_filename, caller.f_lineno
    _originals["_showwarnmsg"](message)


_NESTED: Any = torch._C._nested  # type: ignore[attr-defined]
_PATCHES: list[Patch] = [
    (torch.nn.Module, "__call__", _module_call),
    (warnings, "warn", _warn),
    (warnings, "_showwarnmsg", _show_warning),
    (torch.autograd.Function, "apply", classmethod(_apply)),
    (torch.jit.ScriptFunction, "__call__", _script_call),
    (threading.Thread, "start", _thread_start),
    (_thread, "start_new_thread", _start_new_thread),
    (torch.overrides, "has_torch_function", _has_torch_function),
    (torch._functorch.apis, "vmap_impl", _vmap),
    (torch._functorch.eager_transforms, "grad_impl", _grad),
    (torch._functorch.eager_transforms, "grad_and_value_impl", _grad_and_value),
    (torch._functorch.eager_transforms, "_jvp_with_argnums", _jvp),
    (torch._functorch.eager_transforms, "_vjp_with_argnums", _vjp),
    (torch._functorch.eager_transforms, "functionalize", _functionalize("functionalize")),
    (torch.func, "functionalize", _functionalize("torch.func.functionalize")),
    (torch, "compile", _compile),
    (torch._ops.HigherOrderOperator, "__call__", _operator_call),
    (_NESTED, "nested_tensor", _nested_tensor),
    (torch, "range", _range),
    (torch.autograd, "backward", _backward),
    (torch.Tensor, "set_", _set),
    (torch.Tensor, "_reduce_ex_internal", _reduce),
    (torch.UntypedStorage, "resize_", _resize_storage),
    (torch.UntypedStorage, "__getitem__", _storage_item),
    *map(_storage_write, STORAGE_WRITES),
    (torch.utils, "swap_tensors", _swap_tensors),
    (torch.jit._trace, "_trace_impl", _jit_tracing("_trace_impl")),
    (torch.jit._trace, "trace_module", _jit_tracing("trace_module")),
    (torch.jit, "trace_module", _jit_tracing("torch.jit.trace_module")),
    (torch._C, "_create_graph_by_tracing", _jit_tracing("_create_graph_by_tracing")),
]


def _patches() -> list[Patch]:
    """Return all patches; that of the compiler only if it is loaded, because loading it takes seconds."""
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    if compiler is None or not hasattr(compiler, "_callback_from_stance"):
        return [*_PATCHES, *_collectives()]
    return [*_PATCHES, *_collectives(), (compiler, "_callback_from_stance", _callback_from_stance)]


def _collectives() -> list[Patch]:
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return []
    each = [_collective(name) for name in vars(torch.distributed.ProcessGroup) if _COLLECTIVES.match(name)]
    coalesced: Patch = (torch.distributed, "_broadcast_coalesced", _broadcast_coalesced)
    return [*each, coalesced, (torch.distributed.Work, "wait", _wait)]


_COLLECTIVES = re.compile("_?(all_?gather|all_?reduce|all_?to_?all|broadcast|gather|reduce|scatter)")


_NAMED_BY_MODULE = (_thread, _NESTED, torch.autograd, torch.func, torch.jit, torch.utils)
# the attributes as recording found them: PyTorch's own, or another tool's replacement
_originals: dict[str, Any] = {}
_inherited: set[str] = set()
"""Keys of those that their classes inherit: to undo the patch is to delete it."""


@contextlib.contextmanager
def _patched(patches: list[Patch]) -> Iterator[None]:
    _install(patches)
    try:
        yield
    finally:
        _remove(patches)


def _install(patches: list[Patch]) -> None:
    with _lock:
        for owner, name, replacement in patches:
            key = _key(owner, name)
            if not _users[key]:
                original = vars(owner)[name] if name in vars(owner) else getattr(owner, name)
                if not _leads_to(original, replacement):  # else another tool has restored or wrapped ours
                    _replace(owner, name, original, replacement)
            _users[key] += 1


def _replace(owner: Any, name: str, original: Any, replacement: Any) -> None:
    key = _key(owner, name)
    _originals[key] = original
    (_inherited.discard if name in vars(owner) else _inherited.add)(key)
    _copy_signature(replacement, original)
    setattr(owner, name, replacement)


def _leads_to(function: Any, replacement: Any) -> bool:
    """Return whether a function is our replacement, or wraps it: the compiler wraps functions when it is loaded."""
    while function is not None and function is not replacement:
        function = getattr(function, "__wrapped__", None)
    return function is not None


def _copy_signature(replacement: Any, original: Any) -> None:
    """Give a replacement the name, module, documentation and signature of the original, if it has those of another."""
    function, wrapped = (getattr(one, "__func__", one) for one in (replacement, original))
    if vars(function).get("__wrapped__") is not wrapped:
        vars(function).clear()
        functools.update_wrapper(function, wrapped)


def _remove(patches: list[Patch]) -> None:
    """Undo each patch when its last user has left, unless other code has replaced it in the meantime."""
    with _lock:
        for owner, name, replacement in patches:
            key = _key(owner, name)
            _users[key] -= 1
            if not _users[key] and vars(owner).get(name) is replacement:
                delattr(owner, name) if key in _inherited else setattr(owner, name, _originals[key])


def _key(owner: Any, name: str) -> str:
    return f"{owner.__name__}.{name}" if isinstance(owner, type) or owner in _NAMED_BY_MODULE else name
