"""The metadata must agree with each other and with the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Iterator

from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture.values import shape_of
from pytest_torchlens.history import LoggedOperation
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.history.graph import Node
from pytest_torchlens.history.labels import label_of
from pytest_torchlens.history.labels import type_of
from pytest_torchlens.records import Failure
from pytest_torchlens.records import PartVerdict
from pytest_torchlens.validate.score import Score

Finding = tuple[Node, str]


def check_invariants(history: ModelHistory) -> PartVerdict:
    """Return the verdict on labels, numbers, edges, shapes and modules of a history."""
    score = Score("invariants", "facts")
    for check in _CHECKS:
        score.checked += len(history.nodes)
        for node, message in check(history):
            score.fail(
                Failure(
                    operation=node.label,
                    message=message,
                    cause="the history was changed after it was made, or this is a fault of pytest-torchlens",
                    advice="make the history again; if it stays, please report the model",
                    source_line=history.source_line(node.number) if node.number >= 0 else "",
                )
            )
    return score.verdict()


def _labels(history: ModelHistory) -> Iterator[Finding]:
    """Labels say type and numbers, which count up by layer in execution order."""
    of_type: Counter[str] = Counter()
    total = 0
    for node in history.nodes:
        first = node.passes[0]
        if first is not node:
            expected = (type_of(first), first.layer_type_num, first.layer_total_num)
        else:
            of_type[type_of(node)] += 1
            numbered = node.kind not in ("buffer", "constant")
            expected = (type_of(node), of_type[type_of(node)], total if numbered else -1)
            total += numbered
        if (node.layer_type, node.layer_type_num, node.layer_total_num) != expected:
            yield node, f"its type and numbers should be {expected}"
        elif node.layer_label != label_of(node):
            yield node, f"its label should be {label_of(node)!r}"


def _passes(history: ModelHistory) -> Iterator[Finding]:
    """The passes of a layer run the same function, are counted from 1, and all know each other."""
    place = {id(node): index for index, node in enumerate(history.nodes)}
    for node in history.nodes:
        places = [place.get(id(other), -1) for other in node.passes] if node.pass_num == 1 else []
        if places != sorted(set(places)) or -1 in places:
            yield node, "the passes of its layer are not in execution order, or no operations of the history"
        elif not 0 < node.pass_num <= len(node.passes) or node.passes[node.pass_num - 1] is not node:
            yield node, f"it is not pass {node.pass_num} of its layer"
        elif type_of(node) != type_of(node.passes[0]) or node.passes is not node.passes[0].passes:
            yield node, f"it is no pass of the layer {node.passes[0].layer_label}"


def _edges(history: ModelHistory) -> Iterator[Finding]:
    """Each parent lists the child, each child the parent, and parents come first."""
    place = {id(node): index for index, node in enumerate(history.nodes)}
    for node in history.nodes:
        for parent, argument, _ in node.parents:
            if id(parent) not in place:
                yield node, f"its parent by argument {argument} is no layer of the history"
            elif place[id(parent)] >= place[id(node)]:
                yield node, f"its parent {parent.label} comes after it"
            elif not any(child is node for child in parent.children):
                yield node, f"its parent {parent.label} does not list it as a child"
        for child in node.children:
            if not any(parent is node for parent, _, _ in child.parents):
                yield node, f"its child {child.label} does not list it as a parent"


def _arguments(history: ModelHistory) -> Iterator[Finding]:
    """The parents of an operation are what its call was given."""
    for node in history.nodes:
        if node.call is None:
            continue
        given = list(edges_in(node.call))
        known = sum(1 for _, _, write in node.parents if not write) + len(node.parameters)
        if known != len(given):
            yield node, f"its call was given {len(given)} tensors, but {known} parents and parameters are listed"


def _tensors(history: ModelHistory) -> Iterator[Finding]:
    """A saved activation has the recorded shape and dtype."""
    for node in history.nodes:
        saved = node.value.tensor
        if saved is not None and (shape_of(saved) != node.value.shape or saved.dtype != node.value.dtype):
            yield node, f"its saved activation is {saved.dtype} {list(shape_of(saved))}, the record says otherwise"


def _modules(history: ModelHistory) -> Iterator[Finding]:
    """Module calls around an operation are registered, and ran while it did."""
    for node in history.nodes:
        if node.call is None or node.call.module is None:
            continue
        for call in node.call.module.stack():
            if not call.first <= node.number < max(call.last, call.first + 1):
                yield node, f"it is said to run in module {call.label!r}, which had ended or not begun"


def _lookups(history: ModelHistory) -> Iterator[Finding]:
    """Every label finds its own operation."""
    for node in history.nodes:
        if node.label in history:
            found = history[node.label]
            right = isinstance(found, LoggedOperation) and found.call_id == node.number
        else:
            right = False
        if not right:
            yield node, "its label finds another layer, or none"


_CHECKS: tuple[Callable[[ModelHistory], Iterator[Finding]], ...] = (
    _labels,
    _passes,
    _edges,
    _arguments,
    _tensors,
    _modules,
    _lookups,
)
