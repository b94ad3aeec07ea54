"""Twelve models of different kinds: their histories hold together, and survive the way through the disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import pytest_torchlens as tl
from pytest_torchlens.zoo import load_zoo
from pytest_torchlens.zoo.catalog import shipped_folder

MODELS = """torchvision:alexnet torchvision:resnet18 torchvision:densenet121 torchvision:googlenet
torchvision:mobilenet_v3_small torchvision:swin_v2_t torchvision:vit_b_16 torchvision:raft_small
torchvision:fasterrcnn_mobilenet_v3_large_320_fpn timm:test_convnext timm:test_vit timm:test_efficientnet""".split()


@pytest.mark.zoo
@pytest.mark.parametrize("text", MODELS)
def test_round_trip(text: str, tmp_path: Path):
    zoo, _, name = text.partition(":")
    pytest.importorskip(zoo)
    case = load_zoo(Path(shipped_folder(), f"{zoo}.yaml")).case(name)
    model = case.build()
    inputs = case.make_inputs(model)
    with torch.no_grad():
        history = tl.log_forward_pass(model, list(inputs.args), inputs.kwargs)
    history.save(tmp_path / "history")
    loaded = tl.load(tmp_path / "history")
    assert loaded.record() == history.record()
    assert str(loaded) == str(history)
    for op, same in zip(loaded.operations, history.operations, strict=True):
        assert op.func_call_stack == same.func_call_stack
        assert op.has_saved_activations == (same.tensor_contents is not None)
        if op.label not in loaded.left_out:
            assert torch.equal(op.tensor_contents, same.tensor_contents)
    check_graph(history)


def check_graph(history: tl.ModelHistory) -> None:
    """Distances, ancestors and relatives agree with the edges."""
    by_label = {op.label: op for op in history.operations}
    for op in by_label.values():
        near = [by_label[parent].min_distance_from_input for parent in op.parent_layers]
        known = [distance for distance in near if distance is not None]
        if not op.is_input_layer:
            assert op.min_distance_from_input == (min(known) + 1 if known else None)
        assert (op.min_distance_from_input is not None) >= op.has_input_ancestor
        assert (op.min_distance_from_output is not None) == op.is_output_ancestor
        assert all(op.label in by_label[other].sibling_layers for other in op.sibling_layers)
        assert all(not by_label[origin].parent_layers for origin in op.orig_ancestors)
    whole = history.to_networkx()
    middle = history.operations[len(by_label) // 2].label
    networkx = pytest.importorskip("networkx")
    assert set(history.ancestors(middle)) == networkx.ancestors(whole, middle)
    assert set(history.descendants(middle)) == networkx.descendants(whole, middle)
