"""Asserts that an edit changes what the model returns, or that it does not."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pytest_torchlens.capture.leaves import walk
from pytest_torchlens.edit.differences import relative_change
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.history.layers_and_operations import LoggedOperation
from pytest_torchlens.records import EditsByOperation
from pytest_torchlens.records import address_of
from pytest_torchlens.records import changed_text
from pytest_torchlens.records import percent

__tracebackhide__ = True

Metric = Callable[[Any], Any]


def assert_effect(
    history: ModelHistory,
    edits: Mapping[Any, Any] | ModelHistory | None = None,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    metric: Metric | None = None,
    **options: Any,
) -> ModelHistory:
    """Assert how much an edit changes what the model returns, and return the history of the edited pass.

    Parameters
    ----------
    history
        The pass; or, without `edits`, one that `ModelHistory.edit` or the fixture ``lens_edit`` returned.
    edits
        As in `ModelHistory.edit`; or the edited pass.
    at_least, at_most
        Limits of the effect, of which one is needed; ``at_least=0.01`` means one percent.
    metric
        A function of what the model returns, which gives a number; the effect is the difference that the edit makes to
        it, whatever its sign.  By default the effect is the largest relative change over the outputs: the norm of an
        output's difference, relative to its norm.
    **options
        Those of `ModelHistory.edit`: ``at``, ``inputs``, ``parameters``, ``expand``, ``live``, ``check_decisions``.
        ``gradients`` changes no output.

    Raises
    ------
    AssertionError
        If the effect is beyond a limit.  The message says what was edited where, how much each output changed, and,
        if nothing changed, why.
    TypeError, ValueError
        If an argument does not fit, and all that `ModelHistory.edit` raises.

    Examples
    --------
    >>> assert_effect(history, {"blocks.4.attn": 0.0}, at_least=0.01)  # doctest: +SKIP
    >>> assert_effect(history, {"relu_3": 0.0}, at_most=1e-6, metric=lambda y: y.argmax())  # doctest: +SKIP
    """
    _check_limits(at_least, at_most)
    edited = _edited(history, edits, options)
    effect = _effect(edited, metric)
    if at_least is not None and not effect.size >= at_least:
        raise AssertionError(_too_small(edited, effect, at_least))
    if at_most is not None and not effect.size <= at_most:
        raise AssertionError(_too_large(edited, effect, at_most))
    return edited


def _check_limits(at_least: float | None, at_most: float | None) -> None:
    if at_least is None and at_most is None:
        raise ValueError("assert_effect: expected a limit, such as at_least=0.01 or at_most=1e-6, got none")
    _check_limit("at_least", at_least)
    _check_limit("at_most", at_most)
    if at_least is not None and at_most is not None and at_least > at_most:
        raise ValueError(f"assert_effect: at_least ({at_least}) is above at_most ({at_most})")


def _check_limit(name: str, limit: Any) -> None:
    if limit is None:
        return
    if isinstance(limit, bool) or not isinstance(limit, int | float):
        raise TypeError(f"assert_effect: {name}: expected a number, got {type(limit).__name__}")
    if not limit >= 0 or (name == "at_least" and limit == 0):
        wanted = "above 0, as nothing is below" if name == "at_least" else "of 0 or more"
        raise ValueError(f"assert_effect: {name}: expected a number {wanted}, got {limit!r}")


def _edited(history: Any, edits: Any, options: dict[str, Any]) -> ModelHistory:
    """Return the edited pass."""
    if not isinstance(history, ModelHistory):
        hint = "; edit a loaded one first: assert_effect(loaded.edit(edits, model=model, input_args=x), at_least=0.01)"
        raise TypeError(
            f"assert_effect: expected the history of a pass, as log_forward_pass(model, x) returns, "
            f"got {type(history).__name__}{hint if type(history).__name__ == 'LoadedHistory' else ''}"
        )
    if edits is not None and not isinstance(edits, ModelHistory):
        return history.edit(edits, **options)
    if edits is None and (options.keys() & {"inputs", "parameters"}):
        return history.edit(**options)
    if edits is None and "gradients" in options:
        raise ValueError("assert_effect: edits of gradients alone change no output: edit them, and compare gradients")
    given = history if edits is None else edits
    if given.original is None:
        raise ValueError("assert_effect: expected edits, such as {'relu_1': 0.0}, or an edited history, got neither")
    if options:
        raise TypeError(f"assert_effect: {next(iter(options))}: the history is edited already: give it to edit()")
    return given


# -- how large it is -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Effect:
    size: float
    metric: str
    """What a metric was before and after; ``""`` without one."""
    outputs: tuple[tuple[str, float], ...]
    """How much each output changed, by label."""

    def text(self, size: float) -> str:
        """Return a size with its unit."""
        if self.metric:
            return f"{size:.4g}"
        return percent(size) if math.isfinite(size) else "from 0, or from nothing: no percentage can tell it"


def _effect(edited: ModelHistory, metric: Metric | None) -> _Effect:
    original = edited.original
    assert original is not None  # noqa: S101 - for the type checker
    outputs = tuple(_changes_of_outputs(original, edited))
    if metric is None:
        return _Effect(max((change for _, change in outputs), default=0.0), "", outputs)
    before, after = _number(metric, original), _number(metric, edited)
    if not math.isfinite(before):
        raise ValueError(f"assert_effect: metric: it is {before} without an edit: no change of it can be told")
    name = getattr(metric, "__name__", "").strip("<>").replace("lambda", "") or "the metric"
    same = before == after or (math.isnan(before) and math.isnan(after))
    return _Effect(0.0 if same else abs(after - before), f"{name}: {before:.6g} before, {after:.6g} after", outputs)


def _changes_of_outputs(original: ModelHistory, edited: ModelHistory) -> Iterator[tuple[str, float]]:
    """Yield label and change of each output; one that only one pass has has changed beyond measure."""
    before, after = dict(walk(original.recording.output)), dict(walk(edited.recording.output))
    labels = (node.label for node in edited.nodes if node.kind == "output")
    for label, (path, _) in zip(labels, edited.recording.outputs, strict=True):
        yield label, relative_change(before.pop(path), after[path]) if path in before else float("inf")
    yield from ((f"output at {path!r}", float("inf")) for path in before)


def _number(metric: Metric, history: ModelHistory) -> float:
    try:
        with torch.no_grad():
            value = metric(history.recording.output)
        return float(value.detach() if isinstance(value, torch.Tensor) else value)
    except Exception as error:
        raise TypeError(
            f"assert_effect: metric: expected a function of what {history.model_name} returns that gives a number; "
            f"{type(error).__name__}: {error}"
        ) from error


# -- the message ---------------------------------------------------------------------------------------------------


def _too_small(edited: ModelHistory, effect: _Effect, wanted: float) -> str:
    return "\n".join([*_head(edited, effect, f"at least {effect.text(wanted)}"), *_reasons(edited), *_fix(effect)])


def _fix(effect: _Effect) -> Iterator[str]:
    """Yield how to ask for an effect that is there but small beside the outputs."""
    if effect.size and not effect.metric:
        yield (
            f"fix: at_least is relative to the norm of a whole output: at_least={effect.size:.3g} would pass. For a "
            "part of it, metric=lambda output: ... returns a number, and at_least is its absolute difference"
        )


def _too_large(edited: ModelHistory, effect: _Effect, wanted: float) -> str:
    return "\n".join(_head(edited, effect, f"at most {effect.text(wanted)}"))


def _head(edited: ModelHistory, effect: _Effect, wanted: str) -> Iterator[str]:
    """Yield what was wanted, what was edited where, and how much each output changed."""
    places = ", ".join(dict.fromkeys(edit.place for edit in edited.edits))
    what = f"{effect.metric.partition(':')[0]} by" if effect.metric else "the outputs by up to"
    yield f"edit of {places:.200} in {edited.model_name}: changed {what} {effect.text(effect.size)}, wanted {wanted}"
    yield "edited:"
    for edit in edited.edits:
        yield f"  {edit}"
        yield from _where_lines(edited, _edited_operations(edited, edit.label), "    ")
    yield "outputs:"
    shown = sorted(effect.outputs, key=lambda output: -output[1])[:_MOST_OUTPUTS]
    yield from (f"  {label}: {changed_text(change)}" for label, change in shown)
    if len(effect.outputs) > len(shown):
        yield f"  and {len(effect.outputs) - len(shown)} more, which changed no more"
    if effect.metric:
        yield f"  {effect.metric}"


_MOST_OUTPUTS = 10


def _edited_operations(edited: ModelHistory, label: str) -> list[LoggedOperation]:
    return [op for op in edited.operations if label == op.label or label in op.parent_param_addresses]


def _where(edited: ModelHistory, op: LoggedOperation) -> str:
    """Return module, its class and line of an operation: ``"in layer1.0.relu (ReLU), resnet.py:94, in forward"``."""
    call = op.containing_module_origin or ""
    kind = edited.module_types.get(address_of(call, edited.module_types), "")
    return ", ".join(filter(None, [f"in {call} ({kind})" if call else "", op.source_line]))


def _where_lines(edited: ModelHistory, operations: list[LoggedOperation], indent: str = "  ") -> Iterator[str]:
    """Yield where operations are, a line each, as far as that is known."""
    yield from (f"{indent}{place}" for op in operations if (place := _where(edited, op)))


def _reasons(edited: ModelHistory) -> Iterator[str]:
    """Yield why the outputs changed little or not at all."""
    edits = EditsByOperation(edited.record_without_operations())
    starts = [op for op in edited.operations if edits.of(op) or edits.of_reads(op)]
    if not any(edited.changed_by.get(op.label, math.inf) for op in starts):
        yield f"why: the values of {_labels(starts)} are the same as without the edit"
    elif not any(op.output_descendants or op.is_output_layer for op in starts):
        yield f"why: no output depends on {_labels(starts)}"
        yield from _end_of(edited, starts)
    else:
        yield from _of_last_change(edited)


def _labels(operations: list[LoggedOperation]) -> str:
    return f"{', '.join(op.label for op in operations):.200}"


def _end_of(edited: ModelHistory, starts: list[LoggedOperation]) -> Iterator[str]:
    """Yield where data from some operations end."""
    behind = edited.walks.descendants(tuple(op.label for op in starts))
    ends = [op for op in edited.operations if op.label in behind and op.terminated_inside_model]
    yield f"  the data end in {_labels(ends)}" if ends else "  nothing reads it"
    yield from _where_lines(edited, ends[:1])


def _of_last_change(edited: ModelHistory) -> Iterator[str]:
    """Yield where the change shrinks most, or the last value that changed and what swallowed the change."""
    changed = [op for op in edited.operations if edited.changed_by.get(op.label)]
    if not changed:
        yield "why: not known, as the values behind the edit were not saved: record the pass with layers_to_save='all'"
        return
    if any(op.is_output_layer for op in changed):
        yield from _of_shrinking(edited, changed)
        return
    last = changed[-1]
    readers = [op for op in edited.operations if op.label in last.child_layers]
    yield f"why: the last value behind the edit that changed is {last.label} ({_size(edited, last)})"
    yield from _where_lines(edited, [last])
    yield f"  {_labels(readers) or 'nothing'}, which reads it, gave the values that it gave without the edit"
    yield from _where_lines(edited, readers[:1])


def _of_shrinking(edited: ModelHistory, changed: list[LoggedOperation]) -> Iterator[str]:
    """Yield the operation behind which least of a change is left."""
    shrinks = [(edited.changed_by[op.label] / _before(edited, op), op) for op in changed if _before(edited, op)]
    share, op = min(shrinks, key=lambda shrink: shrink[0], default=(1.0, None))
    if op is not None and share < _NOTABLE:
        before = percent(_before(edited, op))
        yield f"the change shrinks most at {op.label}: {_size(edited, op)}, what it reads by {before}"
        yield from _where_lines(edited, [op])


_NOTABLE = 0.5
"""Share of a change that is left, below which an operation is named."""


def _before(edited: ModelHistory, op: LoggedOperation) -> float:
    """Return the largest change among what an operation reads, if all is known and finite; else 0."""
    largest = max((edited.changed_by.get(parent, 0.0) for parent in op.parent_layers), default=0.0)
    return largest if math.isfinite(largest) and math.isfinite(edited.changed_by[op.label]) else 0.0


def _size(edited: ModelHistory, op: LoggedOperation) -> str:
    return changed_text(edited.changed_by[op.label])
