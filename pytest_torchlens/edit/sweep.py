"""Makes many edits of one pass, one by one or several at once, and measures what the model returns under each."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from numbers import Number
from typing import Any

import torch

from pytest_torchlens.edit.activations import activations
from pytest_torchlens.edit.activations import key_of
from pytest_torchlens.edit.batched import Runner
from pytest_torchlens.edit.batched import SweepRun
from pytest_torchlens.edit.changes import cut
from pytest_torchlens.edit.edit import applied
from pytest_torchlens.edit.places import Place
from pytest_torchlens.edit.places import places_of
from pytest_torchlens.edit.recording import output_with
from pytest_torchlens.edit.request import Request
from pytest_torchlens.edit.sweep_result import Sweep
from pytest_torchlens.history import LookupKeyError
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import close
from pytest_torchlens.records.options import FLAG
from pytest_torchlens.records.options import optional
from pytest_torchlens.replay import DecisionChangedError
from pytest_torchlens.replay import NotReplayableError
from pytest_torchlens.replay import Subgraph
from pytest_torchlens.replay.swaps import noted

Metric = Callable[[Any], Any]
"""A function of what the model returns, which gives a number, or a tensor of one number for each example."""


@dataclasses.dataclass(frozen=True)
class SweepOptions:
    """How a sweep runs; `ModelHistory.sweep` has the meanings."""

    direction: str | None = None
    at: Any = None
    batch: int = 32
    memory: int = 2**30
    check_decisions: bool = True
    keep_graph: bool = False
    progress: bool | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        if self.direction not in (None, "denoising", "noising"):
            raise ValueError(f"sweep: direction: expected 'denoising' or 'noising', got {self.direction!r:.80}")
        for name in ("batch", "memory"):
            number = getattr(self, name)
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise ValueError(f"sweep: {name}: expected an integer of 1 or more, got {number!r:.80}")
        FLAG.check("sweep: check_decisions", self.check_decisions)
        FLAG.check("sweep: keep_graph", self.keep_graph)
        optional(FLAG).check("sweep: progress", self.progress)


_OF_EDIT = {
    "inputs": "an edit has the label of an input as a key, {'input_1': x}",
    "parameters": "an edit has the name of a parameter as a key, {'fc.weight': 0.0}",
    "gradients": "edit them one by one, with history.edit(gradients=...)",
    "expand": "sweep over the expanded pass, history.edit(expand={'sdpa'}).sweep(...)",
    "live": "a sweep replays the recorded operations; edit one by one, with history.edit(..., live=True)",
}
"""Options of `edit` alone, and what can be done in their place."""


def _options(given: Mapping[str, Any]) -> SweepOptions:
    """Return checked options; a name that does not exist raises."""
    names = [field.name for field in dataclasses.fields(SweepOptions)]
    for name in given:
        if name in _OF_EDIT:
            raise TypeError(f"sweep: {name}= is not an option of a sweep: {_OF_EDIT[name]}")
        if name not in names:
            raise TypeError(f"sweep: there is no option {name!r}; there are: {close(name, names) or ', '.join(names)}")
    return SweepOptions(**given)


def sweep(
    history: ModelHistory,
    edits: Mapping[Any, Any] | Iterable[Any],
    *,
    metric: Metric | Mapping[str, Metric],
    clean: ModelHistory | None = None,
    corrupted: ModelHistory | None = None,
    **given: Any,
) -> Sweep:
    """Return what each edit does; `ModelHistory.sweep` has the parameters."""
    options = _options(given)
    metrics = _metrics(metric)
    passes = _passes(history, clean, corrupted)
    base, source = _direction(passes, options.direction)
    named = _named(edits)
    whole = Subgraph(passes[base])
    other = passes.get(source)
    changes = {name: _changes(whole, edit, source, options.at, name) for name, edit in named.items()}
    places = [place for each in changes.values() if isinstance(each, list) for place in each]
    others = activations(other, places) if other is not None else {}
    requests = {name: _request(whole, each, others, options.at, name) for name, each in changes.items()}
    result = Sweep(
        names=list(named),
        edits=[", ".join(str(applied(*change)) for change in request.changes) for request in requests.values()],
        baselines={
            role: {name: examples_of(name, of, each.recording.output, False) for name, of in metrics.items()}
            for role, each in passes.items()
        },
        base=base,
    )
    running = _Running(passes[base], whole, requests, metrics, options)
    result.measured = running.measure()
    result.alone, result.refused = running.alone, running.refused
    return result


# -- what is asked for ---------------------------------------------------------------------------------------------


def _metrics(metric: Any) -> dict[str, Metric]:
    metrics = dict(metric) if isinstance(metric, Mapping) else {getattr(metric, "__name__", "metric"): metric}
    wrong = next((each for each in metrics.values() if not callable(each)), None)
    if wrong is not None or not metrics:
        raise TypeError(
            "sweep: metric: expected a function of the model's output, or a dict of such functions by name, "
            f"got {wrong!r:.80}"
        )
    if "<lambda>" in metrics:
        metrics["metric"] = metrics.pop("<lambda>")
    return {str(name): each for name, each in metrics.items()}


def _passes(history: ModelHistory, clean: Any, corrupted: Any) -> dict[str, ModelHistory]:
    """Return the passes by their roles; the history itself takes the role that no other has."""
    for name, other in (("clean", clean), ("corrupted", corrupted)):
        if not isinstance(other, ModelHistory | None):
            raise TypeError(f"sweep: {name}: expected a history, such as history.rerun(x), got {type(other).__name__}")
    if clean is not None and corrupted is not None and history is not clean and history is not corrupted:
        raise ValueError("sweep: clean= and corrupted= are both given, and the history is neither: give one of them")
    clean = history if clean is None else clean
    if corrupted is None:
        return {"clean": clean} if clean is history else {"clean": clean, "corrupted": history}
    return {"clean": clean, "corrupted": corrupted}


def _direction(passes: dict[str, ModelHistory], direction: str | None) -> tuple[str, str]:
    """Return the roles of the pass that is edited, and of the one that activations are taken from."""
    if len(passes) == 1:
        if direction is not None:
            raise ValueError(f"sweep: {direction} needs two passes: give the other one as clean= or corrupted=")
        return "clean", ""
    return ("clean", "corrupted") if direction == "noising" else ("corrupted", "clean")


def _named(edits: Any) -> dict[Any, Any]:
    """Return the edits by name: their own, or for an edit of a list its text."""
    if isinstance(edits, str) or not isinstance(edits, Iterable):
        raise TypeError(f"sweep: edits: expected a list of edits, or a mapping of edits by name, got {edits!r:.80}")
    if isinstance(edits, Mapping):
        named = dict(edits)
    else:
        listed = list(edits)
        names = [_name(edit, number) for number, edit in enumerate(listed)]
        named = {
            name if names.count(name) == 1 else f"{name} (edit {number})": edit
            for number, (name, edit) in enumerate(zip(names, listed, strict=True))
        }
    if not named:
        raise ValueError("sweep: edits: expected one edit or more, got none")
    return named


def _name(edit: Any, number: int) -> str:
    if isinstance(edit, Mapping):
        return ", ".join(map(_key_text, edit)) or f"edit {number}"
    return _key_text(edit)


def _key_text(key: Any) -> str:
    return key if isinstance(key, str) else repr(key)


def _changes(whole: Subgraph, edit: Any, source: str, at: Any, name: Any) -> dict[Any, Any] | list[Place]:
    """Return an edit's changes by key, or the places of a key alone, which get what they are in the other pass."""
    if isinstance(edit, Mapping):
        return dict(edit)
    if not source:
        raise TypeError(
            f"sweep: expected an edit such as {{{edit!r:.80}: 0.0}}, got its key alone: that takes the activation of "
            "another pass, which clean= or corrupted= gives"
        )
    with _naming(name):
        return places_of(whole, edit, at)


def _request(whole: Subgraph, changes: Any, others: dict[str, torch.Tensor], at: Any, name: Any) -> Request:
    if isinstance(changes, list):
        changes = {key_of(place): cut(place, others[place.label]) for place in changes}
        at = None
    with _naming(name):
        return Request(whole, changes, at, None, None)


@contextlib.contextmanager
def _naming(name: Any) -> Iterator[None]:
    """Let the message of an error name the edit."""
    try:
        yield
    except Exception as error:
        if type(error) not in (LookupKeyError, ValueError, TypeError, RuntimeError):  # others need other arguments
            with noted(f"sweep: edit {name!r:.80}"):
                raise
        named = type(error)(f"sweep: edit {name!r:.80}: {str(error).removeprefix('sweep: ')}")
        for note in getattr(error, "__notes__", ()):  # there are none before Python 3.11
            getattr(named, "add_note")(note)  # noqa: B009 - mypy knows 3.10 alone
        raise named from error


# -- the runs ------------------------------------------------------------------------------------------------------


class _Running:
    """Runs the edits of a sweep, those of one place together, and measures the outputs."""

    def __init__(
        self,
        history: ModelHistory,
        whole: Subgraph,
        requests: Mapping[Any, Request],
        metrics: Mapping[str, Metric],
        options: SweepOptions,
    ) -> None:
        self._recording = history.recording
        self._runner = Runner(whole, options.check_decisions, options.memory, options.keep_graph)
        self._names = list(requests)
        self._requests = list(requests.values())
        self._metrics = metrics
        self._options = options
        self._proven: set[int] = set()
        """Numbers of the calls that have run for several edits at once, and gave what each gives alone."""
        self._shows = sys.stderr.isatty() if options.progress is None else options.progress
        self.alone: dict[str, int] = {}
        """How many edits ran alone, by reason."""
        self.refused: dict[Any, str] = {}
        """Why edits could not be made, by name."""

    def measure(self) -> dict[str, torch.Tensor]:
        """Return what each metric gives: a row for each edit, a column for each example."""
        groups = self._groups()
        probes = [self._probe(numbers) for numbers in groups]
        with contextlib.suppress(NotReplayableError):  # then those edits that need it are refused, each by itself
            self._runner.prepare(probes)
        measured: list[dict[str, torch.Tensor]] = [{} for _ in self._requests]
        done = 0
        for numbers, probe in sorted(
            zip(groups, probes, strict=True), key=lambda pair: min(pair[1].numbers, default=0)
        ):
            for number, outputs in self._of_group(numbers, probe):
                with _naming(self._names[number]):
                    measured[number] = {} if outputs is None else self._measured(outputs)
                done += 1
                self._show(done)
        return {name: _rows(name, [each.get(name) for each in measured]) for name in self._metrics}

    def _groups(self) -> list[list[int]]:
        """Return the numbers of the edits, those that change the same values together."""
        groups: dict[Any, list[int]] = {}
        for number, request in enumerate(self._requests):
            edges = frozenset((consumer, key) for consumer, swaps in request.edges.items() for key in swaps)
            groups.setdefault((frozenset(request.swaps), edges), []).append(number)
        return list(groups.values())

    def _probe(self, numbers: list[int]) -> SweepRun:
        first = self._requests[numbers[0]]
        return self._runner.probe(first.swaps, first.edges)

    def _of_group(self, numbers: list[int], probe: SweepRun) -> Iterator[tuple[int, dict[str, torch.Tensor] | None]]:
        """Yield the outputs under each edit of a group; None for one that is refused."""
        size, reason = self._size(probe)
        while len(numbers) > 1 and size > 1 and not reason:
            chunk = numbers[:size]
            found, reason = self._at_once(chunk, probe)
            if found:
                yield from zip(chunk, found, strict=True)
                numbers = numbers[size:]
        for number in numbers:
            self.alone[reason or _SINGLE] = self.alone.get(reason or _SINGLE, 0) + 1
            yield number, self._alone(number)

    def _alone(self, number: int) -> dict[str, torch.Tensor] | None:
        """Return the outputs under one edit; None if it cannot be made."""
        name, request = self._names[number], self._requests[number]
        try:
            with _naming(name):
                return self._runner.alone(request.swaps, request.edges)
        except (DecisionChangedError, NotReplayableError) as error:
            self.refused[name] = str(error)
            return None

    def _size(self, probe: SweepRun) -> tuple[int, str]:
        """Return how many edits may run at once, and why none may."""
        if self._options.check_decisions and probe.decides:
            return 1, "Python read what the edit may change"
        fits = self._options.memory // max(probe.nbytes, 1)
        if fits < 2 and self._options.batch > 1:  # noqa: PLR2004 - two edits
            return 1, f"two edits take more than memory={self._options.memory:,} bytes"
        return min(self._options.batch, fits), ""

    def _at_once(self, numbers: list[int], probe: SweepRun) -> tuple[list[dict[str, torch.Tensor]], str]:
        """Return the outputs under several edits, or why they cannot run at once."""
        requests = [self._requests[number] for number in numbers]
        try:
            found = self._runner.at_once([each.swaps for each in requests], [each.edges for each in requests])
            is_proven = probe.numbers <= self._proven or self._is_right(requests[-1], found[-1])
        except (DecisionChangedError, NotReplayableError) as error:
            return [], f"they cannot run at once: {error}"
        if not is_proven:
            return [], "at once they give more than rounding apart"
        self._proven |= probe.numbers
        return found, ""

    def _is_right(self, request: Request, found: dict[str, torch.Tensor]) -> bool:
        """Return whether the outputs under an edit are what it gives alone."""
        alone = self._runner.alone(request.swaps, request.edges)
        return all(_is_rounding(found[label], alone[label]) for label in alone)

    def _measured(self, outputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        by_path = {path: outputs[label] for label, (path, _) in zip(outputs, self._recording.outputs, strict=True)}
        output = output_with(self._recording, by_path)
        keep = self._options.keep_graph
        return {name: examples_of(name, metric, output, keep) for name, metric in self._metrics.items()}

    def _show(self, done: int) -> None:
        if self._shows:
            end = "\n" if done == len(self._requests) else ""
            print(f"\rsweep: {done:,} of {len(self._requests):,} edits", end=end, file=sys.stderr, flush=True)  # noqa: T201


_SINGLE = "no other edit changes the same values, or batch=1"


def examples_of(name: str, metric: Metric, output: Any, keep_graph: bool) -> torch.Tensor:
    """Return what a metric gives: a number for each example, or one for all."""
    follow = torch.set_grad_enabled(keep_graph and torch.is_grad_enabled())
    with follow, noted(f"the metric {name!r:.80} of a sweep raised this"):
        value = metric(output)
    if isinstance(value, torch.Tensor) and value.dim() <= 1 and value.numel() and not value.is_complex():
        return (value if keep_graph else value.detach()).reshape(-1).double().cpu()
    if isinstance(value, Number) and not isinstance(value, complex):
        return torch.tensor([float(value)], dtype=torch.float64)  # type: ignore[arg-type]
    got = f"a tensor of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
    raise TypeError(f"sweep: metric {name!r}: expected a number, or a tensor of one number for each example, got {got}")


def _rows(name: str, rows: list[torch.Tensor | None]) -> torch.Tensor:
    """Return the rows of all edits; those of refused ones are NaN."""
    sizes = {len(row) for row in rows if row is not None} or {1}
    if len(sizes) > 1:
        raise ValueError(f"sweep: metric {name!r} gave {min(sizes)} numbers for one edit, and {max(sizes)} for another")
    nothing = torch.full((max(sizes),), torch.nan, dtype=torch.float64)
    return torch.stack([nothing if row is None else row for row in rows])


def _is_rounding(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two results are as near as the order of sums lets expect."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not other.is_floating_point():
        return torch.equal(one, other)
    largest = float(other.detach().nan_to_num(0, 0, 0).abs().amax()) if other.numel() else 0.0
    tolerance = torch.finfo(other.dtype).eps ** 0.75 * largest
    return torch.allclose(one, other, rtol=0.0, atol=tolerance, equal_nan=True)
