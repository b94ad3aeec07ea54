"""Which operations are passes of one layer: the three rules of the paper.

1. Operations on the same parameters are passes of one layer.
2. Equal operations beside such passes join them, growing outward (`growth`).
3. A sequence without parameters that repeats back to back is a loop (`repeats`).

Two things make a loop whole: what some of its passes leave out does not cut it in two (`detours`), and what it asks in
every pass of the value that it carries is asked by one layer (`carried`).
"""

from __future__ import annotations

from collections import defaultdict

from pytest_torchlens.history.control_flow.loop_endings import CarriedValues
from pytest_torchlens.history.graph import Node
from pytest_torchlens.history.layers.detours import Detours
from pytest_torchlens.history.layers.growth import LayerGrowth
from pytest_torchlens.history.layers.growth import visits_by_site
from pytest_torchlens.history.layers.repeats import repeats_by_site
from pytest_torchlens.history.layers.repeats import repeats_written_out
from pytest_torchlens.history.layers.signatures import Groups
from pytest_torchlens.history.layers.signatures import Operations


def group_passes(nodes: list[Node]) -> list[list[Node]]:
    """Return the layers of several passes, each a list of nodes in execution order.

    Without parameters only operations whose values descend from an input count: a loop that fills a constant makes no
    model recurrent, but the first pass of a loop may work on a constant state.
    """
    ops = Operations(nodes)
    groups, detours = Groups(len(ops)), Detours(ops)
    growth = LayerGrowth(ops, groups, detours)
    growth.grow(_on_same_parameters(ops, groups))
    growth.grow(repeats_by_site(ops, groups, visits_by_site(ops, detours)), inside=True)
    growth.grow(repeats_written_out(ops, groups), inside=True)
    carried = CarriedValues(ops, groups, detours)
    while grown := carried.join():
        growth.grow(grown, inside=True)
    return [[ops.nodes[number] for number in layer] for layer in groups.layers()]


def _on_same_parameters(ops: Operations, groups: Groups) -> list[int]:
    users: dict[int, list[int]] = defaultdict(list)
    for number, weights in enumerate(ops.weights):
        if weights:
            users[ops.key[number]].append(number)
    layers = [numbers for numbers in users.values() if len(numbers) > 1]
    for numbers in layers:
        groups.join(numbers)
    return [groups.of(numbers[0]) for numbers in layers]
