"""Twelve models of different kinds: their histories are consistent, and the same after saving and loading."""

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
    check_table(history, model)


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
    starts, ends = set(history.input_layers), set(history.output_layers)
    for op in list(by_label.values())[:: max(1, len(by_label) // 40)]:
        before, after = networkx.ancestors(whole, op.label), networkx.descendants(whole, op.label)
        assert set(op.orig_ancestors) == {label for label in before if not by_label[label].parent_layers}
        assert set(op.output_descendants) == after & ends
        assert op.has_input_ancestor <= bool((before | {op.label}) & starts)
        assert set(op.internally_initialized_ancestors) == before & set(history.internally_initialized_layers)


def check_table(history: tl.ModelHistory, model: torch.nn.Module) -> None:
    """Fields of the table agree with the model and the saved tensors."""
    for op in history.operations:
        tensor = op.tensor_contents
        if tensor is not None and tensor.layout is torch.strided and not tensor.is_nested:
            assert (op.tensor_shape, op.tensor_dtype) == (tuple(tensor.shape), str(tensor.dtype))
            assert op.tensor_fsize == tensor.nbytes
        shapes = [tuple(model.get_parameter(address).shape) for address in op.parent_param_addresses]
        assert list(op.parent_param_shapes) == shapes
        assert op.num_params_total == sum(torch.Size(shape).numel() for shape in shapes)
        assert all(history[key].label == op.label for key in op.lookup_keys)
        assert all(op.label in history[child].parent_layers for child in op.child_layers)
        if op.is_buffer_layer:
            assert torch.equal(op.tensor_contents, dict(model.named_buffers())[op.buffer_address])
    parameters = list(model.parameters())
    assert history.total_params == sum(parameter.numel() for parameter in parameters)
    assert history.total_params_fsize == sum(parameter.nbytes for parameter in parameters)
    assert history.total_param_tensors == len(parameters)
    assert history.module_types == {
        address: type(model.get_submodule(address)).__name__ for address in history.module_addresses
    }
    assert {*history.module_addresses} == {address for address, _ in model.named_modules() if address}
    assert history.tensor_fsize_total == sum(op.tensor_fsize for op in history.operations)
    assert history.layer_list == [op.label for op in history]
