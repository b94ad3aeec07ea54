"""Compiles functions with `torch.compile`, counts graph breaks and recompilations, and puts the compiler back."""

from __future__ import annotations

import contextlib
import re
import sys
import types
import warnings
from collections import Counter
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import torch
import torch._dynamo
from torch._C._dynamo.eval_frame import reset_code
from torch._dynamo import convert_frame
from torch._dynamo import eval_frame
from torch._dynamo import pgo
from torch._dynamo import utils
from torch._dynamo.backends.registry import lookup_backend
from torch._guards import CompileContext
from torch.compiler import set_stance

from pytest_torchlens.capture.looks import named_buffers
from pytest_torchlens.capture.looks import named_parameters
from pytest_torchlens.checks.subject import WrongOptionError
from pytest_torchlens.history.source import is_model_file
from pytest_torchlens.records import SourcePlace
from pytest_torchlens.records import close


class Compiler:
    """Compiles functions with one backend.

    Parameters
    ----------
    backend
        Name of a registered backend: ``"aot_eager"``, ``"inductor"``.
    mode
        A mode of the backend; empty for its default.
    dynamic, fullgraph
        As in `torch.compile`.
    check_time
        Called before each graph is compiled; what it raises ends the compilation.

    Attributes
    ----------
    graphs
        Number of graphs that were compiled.
    breaks
        Where graphs break and why; a line counts once, though it breaks each frame that calls it.
    recompilations
        Number of graphs that were compiled anew, by the frame's number.

    Raises
    ------
    WrongOptionError
        If there is no such backend or mode.
    """

    def __init__(
        self, backend: str, mode: str, dynamic: bool | None, fullgraph: bool, check_time: Callable[[], None]
    ) -> None:
        self.backend = backend
        self._options = _options(backend, mode, dynamic)
        given = {"mode": mode or None, "dynamic": dynamic, "fullgraph": fullgraph or None}
        self.arguments = {"backend": backend, **{name: one for name, one in given.items() if one is not None}}
        """The arguments of `torch.compile` that are not its defaults."""
        self._dynamic = dynamic
        self._fullgraph = fullgraph
        self._check_time = check_time
        self._compile = _backend(backend)
        self.graphs = 0
        self.breaks: dict[str, None] = {}
        self.recompilations: Counter[int] = Counter()
        self._failures: list[tuple[types.CodeType, str]] = []
        self._frames: set[tuple[int, bool]] = set()
        """Frames that were compiled, each with the gradient mode: the check itself runs the model in both."""

    def compiled(
        self, function: Callable[..., Any], backend: Callable[..., Callable[..., Any]] | None = None
    ) -> Callable[..., Any]:
        """Return the compiled function, by another backend if one is given; it compiles when it is called first."""
        made: Callable[..., Any] = torch.compile(
            _with_own_code(function),
            backend=backend or self._compile_graph,
            dynamic=self._dynamic,
            fullgraph=self._fullgraph,
        )
        return made

    def _compile_graph(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self._check_time()
        self.graphs += 1
        number = CompileContext.current_compile_id()
        if number is not None and number.frame_id is not None:
            compiled_before = (number.frame_compile_id or 0) > 0
            if compiled_before and (number.frame_id, torch.is_grad_enabled()) in self._frames:
                self.recompilations[number.frame_id] += 1
            self._frames.add((number.frame_id, torch.is_grad_enabled()))
        made: Callable[..., Any] = self._compile(graph, inputs, **self._options)
        return made

    def note_reasons(self) -> None:
        """Take the compiler's reasons for breaks and recompilations; call it before its state is put back."""
        self.breaks.update(dict.fromkeys(map(_break_text, utils.graph_break_reasons)))
        self._failures = [(code, text) for code, texts in utils.guard_failures.items() for text in texts]

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about graphs, graph breaks and recompilations, with their lines."""
        breaks = [f"graph break at {what}" for what in self.breaks]
        again_total = self.recompilations.total()
        again = [f"{self._frame(frame)}{_times(count)}" for frame, count in self.recompilations.items()]
        totals = {"graph": self.graphs, "graph break": len(self.breaks), "recompilation": again_total}
        return (", ".join(f"{total} {noun}{'s' * (total != 1)}" for noun, total in totals.items()), *breaks, *again)

    def _frame(self, frame: int) -> str:
        """Return which function was compiled again, and why."""
        for code, text in self._failures:
            number, _, reason = text.partition(": ")
            if number.startswith(f"{frame}/") and "grad_mode" not in reason:
                name = code.co_name.removeprefix("torch_dynamo_resume_in_").partition("_at_")[0]
                place = SourcePlace(code.co_filename, code.co_firstlineno, name)
                return f"recompiled {place}: {first_sentence(' '.join(reason.partition('#')[0].split()))}"
        return "recompiled"


def _times(count: int) -> str:
    return f" ({count} times)" if count > 1 else ""


_STAGES = ("eager", "aot_eager")
"""PyTorch's backends that end after a stage of the compiler; its own list leaves them out."""


def _backend(name: str) -> Callable[..., Any]:
    known = torch._dynamo.list_backends(None)
    if name not in known:
        usual = ", ".join(dict.fromkeys([*_STAGES, *torch._dynamo.list_backends()]))
        raise WrongOptionError(f"backend: expected a registered one ({usual}), got {_quoted(name, known)}")
    return lookup_backend(name)


def _quoted(name: str, known: Iterable[str]) -> str:
    """Return a name in quotes, with the nearest known one."""
    hint = close(name, known)
    return f"{name!r}{hint and f' ({hint})'}"


def _options(backend: str, mode: str, dynamic: bool | None) -> dict[str, Any]:
    """Return the backend's arguments for a mode, as `torch.compile` would give them."""
    if not mode or mode == "default":
        return {}
    modes = torch._inductor.list_mode_options()
    if mode not in modes and backend in ("inductor", *_STAGES):
        raise WrongOptionError(f"mode: expected one of {', '.join(modes)}, got {_quoted(mode, modes)}")
    if backend != "inductor":
        return {"mode": mode}
    return {"config_patches": torch._inductor.list_mode_options(mode, dynamic)}


def _with_own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls another; its code is new, so that the compiler's cache of it is ours alone."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    call.__code__ = call.__code__.replace()
    return call


def _break_text(reason: Any) -> str:
    """Return the innermost line of the model where a graph breaks, and why."""
    own = [frame for frame in reason.user_stack if is_model_file(frame.filename)] or reason.user_stack
    place = f"{own[-1].filename}:{own[-1].lineno}" if own else "an unknown line"
    return f"{place}: {first_sentence(reason.reason)}"


def first_sentence(text: str) -> str:
    """Return the first line of a message, with the line that explains it."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    explained = [mark.sub("", line) for line in lines[1:] if (mark := _EXPLAINS).match(line)]
    return ": ".join([_MORE.split(line)[0].rstrip(".!: ") for line in [*lines[:1], *explained[:1]]])


_EXPLAINS = re.compile(r"Explanation: |- ")
_MORE = re.compile(r"[.!]\s+(?=[A-Z])")
"""Where one sentence ends, and another begins."""


# -- the compiler's state ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def compiler_as_it_was(model: torch.nn.Module, compiler: Compiler | None = None) -> Iterator[None]:
    """Compile in the block as in a new process; then put back caches, counters, profiles, config and stance.

    What was compiled before stays compiled.  Code that the compiler had not seen before loses the cache entries that
    the block made.  Code that was compiled before keeps them: they belong to another backend, so nobody finds them.
    """
    counters = {key: Counter(counts) for key, counts in utils.counters.items()}
    failures = {code: [*texts] for code, texts in utils.guard_failures.items()}
    breaks = [*utils.graph_break_reasons]
    backends = {*eval_frame.cached_backends}
    profiles = pgo._CODE_STATE, pgo._INIT_CODE_STATE
    seen = [len(tracker.seen) for tracker in _trackers()]
    attributes = [(tensor, {*vars(tensor)}) for tensor in _tensors(model)]
    utils.guard_failures.clear()
    utils.graph_break_reasons.clear()
    pgo.reset_code_state()
    try:
        with warnings.catch_warnings(), set_stance("default"), torch._dynamo.config.patch(suppress_errors=False):
            warnings.simplefilter("ignore")
            yield
    finally:
        if compiler is not None:
            compiler.note_reasons()
        _forget_codes(seen)
        _put(utils.counters, counters)
        _put(utils.guard_failures, failures)
        utils.graph_break_reasons[:] = breaks
        for key in {*eval_frame.cached_backends} - backends:
            del eval_frame.cached_backends[key]
        pgo._CODE_STATE, pgo._INIT_CODE_STATE = profiles
        for tensor, names in attributes:
            for name in {*vars(tensor)} - names:
                delattr(tensor, name)


def _trackers() -> tuple[Any, Any]:
    return convert_frame.input_codes, convert_frame.output_codes


def _tensors(model: torch.nn.Module) -> list[torch.Tensor]:
    return [tensor for _, tensor in [*named_parameters(model), *named_buffers(model)]]


def _put(target: Any, former: Mapping[Any, Any]) -> None:
    target.clear()
    target.update(former)


def _forget_codes(seen: list[int]) -> None:
    """Drop all that was compiled of code objects beyond those that were seen before."""
    for tracker, count in zip(_trackers(), seen, strict=True):
        codes = [code for reference in tracker.seen[count:] if (code := reference()) is not None]
        del tracker.seen[count:]  # the references go first, as their callbacks want the ids
        for code in codes:
            tracker.seen_ids.discard(id(code))
            reset_code(code)


def chain_of(error: BaseException) -> list[BaseException]:
    """Return an error and those that led to it, the first cause last."""
    found: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in found:
        found.append(link)
        link = getattr(link, "inner_exception", None) or link.__cause__ or link.__context__
    return found


def lacks_cxx_compiler(error: BaseException) -> bool:
    """Return whether an error comes of a machine without a C++ compiler."""
    lacks = getattr(sys.modules.get("torch._inductor.exc"), "InvalidCxxCompiler", ())
    return any(isinstance(link, lacks) for link in chain_of(error))


def place_of_error(error: BaseException) -> SourcePlace | None:
    """Return the line of the model that the compiler was at when it raised; None if it does not say."""
    for link in chain_of(error):
        for frame in reversed(getattr(link, "real_stack", None) or ()):
            if is_model_file(frame.filename):
                return SourcePlace(frame.filename, frame.lineno or 0, frame.name)
    return None
