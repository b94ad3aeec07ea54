"""Labels: ``conv2d_3_7`` is the third conv2d and the seventh layer; inputs and outputs count, buffers do not.

All passes of a layer have its label.
"""

from __future__ import annotations

from collections import Counter

from pytest_torchlens.history.graph import Node

_UNNUMBERED = ("buffer", "constant")


def assign_labels(nodes: list[Node], layers: list[list[Node]] | None = None) -> None:
    """Give each node its layer, pass, numbers and label; numbers follow execution order from 0.

    `layers` are those of several passes, each in execution order; every other node is a layer of its own.
    """
    for passes in layers or []:
        for pass_num, node in enumerate(passes, 1):
            node.passes, node.pass_num = passes, pass_num
    of_type: Counter[str] = Counter()
    total = operations = 0
    for node in nodes:
        numbered = node.kind not in _UNNUMBERED
        node.layer_type = type_of(node)
        if numbered:
            node.operation_num = operations
            operations += 1
        first = node.passes[0]
        if first is not node:
            node.layer_type_num, node.layer_total_num = first.layer_type_num, first.layer_total_num
        else:
            of_type[node.layer_type] += 1
            node.layer_type_num = of_type[node.layer_type]
            node.layer_total_num = total if numbered else -1
            total += numbered
        node.layer_label = label_of(node)


def type_of(node: Node) -> str:
    """Return the layer type: the function's name without underscores, or the kind of a source or output."""
    return node.call.info.layer_type.replace("_", "") if node.call is not None else node.kind


def label_of(node: Node) -> str:
    """Return the label that a node's numbers give."""
    label = f"{node.layer_type}_{node.layer_type_num}"
    return label if node.kind in _UNNUMBERED else f"{label}_{node.layer_total_num}"
