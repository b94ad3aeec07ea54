"""Labels: ``conv2d_3_7`` is the third conv2d and the seventh layer; inputs and outputs count, buffers do not."""

from __future__ import annotations

from collections import Counter

from pytest_torchlens.history.graph import Node

_UNNUMBERED = ("buffer", "constant")


def assign_labels(nodes: list[Node]) -> None:
    """Give each node its layer type, numbers and label; numbers follow execution order from 0."""
    of_type: Counter[str] = Counter()
    total = 0
    for node in nodes:
        node.layer_type = type_of(node)
        of_type[node.layer_type] += 1
        node.layer_type_num = of_type[node.layer_type]
        if node.kind not in _UNNUMBERED:
            node.layer_total_num = node.operation_num = total
            total += 1
        node.layer_label = label_of(node)


def type_of(node: Node) -> str:
    """Return the layer type: the function's name without underscores, or the kind of a source or output."""
    return node.call.info.layer_type.replace("_", "") if node.call is not None else node.kind


def label_of(node: Node) -> str:
    """Return the label that a node's numbers give."""
    label = f"{node.layer_type}_{node.layer_type_num}"
    return label if node.kind in _UNNUMBERED else f"{label}_{node.layer_total_num}"
