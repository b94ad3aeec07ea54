"""The graphs that a page folds and unfolds."""

from __future__ import annotations

import pytest

from pytest_torchlens.draw import DrawOptions
from pytest_torchlens.draw import folds
from pytest_torchlens.draw.folds import MOST_NODES
from pytest_torchlens.draw.text import node_id
from pytest_torchlens.report.fold_shapes import fold_shapes
from tests.draw.samples import Sketch
from tests.draw.samples import alexnet
from tests.draw.samples import transformer
from tests.draw.test_rolled import cell


def chain(length):
    net = Sketch("Chain")
    x = net.op("input")
    for _ in range(length):
        x = net.op("sin", x)
    net.op("output", x)
    return net.record()


def nodes_of(shapes):
    """Return the ids of a fold's nodes, without those at its border."""
    return [id_ for id_, classes, *_ in shapes["nodes"] if not classes.startswith("port")]


@pytest.mark.parametrize("history", [alexnet(), transformer(12), chain(3000), cell()], ids=lambda one: one.model_name)
def test_every_operation_is_a_node_of_exactly_one_fold_and_no_fold_is_large(history):
    found = fold_shapes(history)
    nodes = [id_ for fold in found for id_ in nodes_of(fold)]
    assert sorted(id_ for id_ in nodes if id_.startswith("op-")) == sorted(map(node_id, history.operations))
    assert sorted(id_ for id_ in nodes if not id_.startswith("op-")) == sorted(fold["id"] for fold in found[1:])
    assert max(len(nodes_of(fold)) for fold in found) <= MOST_NODES


def test_an_arrow_across_the_border_of_a_module_is_continued_inside():
    outer, features, classifier = fold_shapes(alexnet())
    carried = {(tail, head): list(tensors) for tail, head, *_, tensors, _ in outer["edges"]}
    assert carried["op-input_1_0", "module-features"] == ["op-input_1_0"]
    assert ("in-op-input_1_0", "op-conv2d_1_1") in {(edge[0], edge[1]) for edge in features["edges"]}
    (given,) = [edge for edge in classifier["edges"] if edge[1].startswith("out-")]
    assert given[:2] == ["op-linear_3_22", "out-op-linear_3_22"]


def test_a_rolled_fold_holds_all_passes_of_its_module():
    outer, inner = folds(cell(), DrawOptions(vis_opt="rolled"))
    assert inner.id == "module-cell"
    assert inner.title == ("@cell", "Cell (x3)")
    assert ("module-cell", "module-cell") in outer.carried


def test_places_are_inside_the_fold():
    for fold in fold_shapes(transformer(2)):
        width, height = fold["size"]
        for _, classes, (x, y, wide, high), *_ in fold["nodes"]:
            if not classes.startswith("port"):
                assert 0 <= x - wide / 2 <= x + wide / 2 <= width
                assert 0 <= y - high / 2 <= y + high / 2 <= height
