"""Every field of the paper's Supplementary Table 1 against values worked out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import pytest_torchlens as tl

MODEL_SIDE = """model_name random_seed_used model_is_recurrent model_max_recurrent_loops model_is_branching
model_has_conditional_branching layer_list input_layers output_layers buffer_layers internally_initialized_layers
internally_terminated_bool_layers layers_computed_with_params num_tensors_total tensor_fsize_total tensor_fsize_saved
num_tensors_saved total_param_tensors total_param_layers total_params total_params_fsize module_addresses module_types
module_num_passes module_pass_children top_level_module_passes pass_start_time pass_end_time elapsed_time_total
elapsed_time_function_calls elapsed_time_torchlens_logging""".split()
OPERATION_SIDE = """layer_label layer_label_w_pass operation_num layer_type layer_type_num layer_total_num pass_num
layer_passes_total lookup_keys tensor_contents tensor_shape tensor_dtype tensor_fsize creation_args creation_kwargs
func_applied func_applied_name func_time_elapsed func_rng_states func_position_args_non_tensor
func_keyword_args_non_tensor function_is_inplace gradfunc_name is_part_of_iterable_output iterable_output_index
computed_with_params num_param_tensors parent_param_shapes num_params_total parent_params_fsize same_layer_operations
parent_layers orig_ancestors child_layers sibling_layers spouse_layers is_input_layer has_input_ancestor
min_distance_from_input max_distance_from_input is_output_layer is_output_ancestor output_descendants
min_distance_from_output max_distance_from_output is_buffer_layer buffer_address initialized_inside_model
internally_initialized_parents internally_initialilized_ancestors terminated_inside_model is_terminal_bool_layer
in_cond_branch is_computed_inside_submodule containing_module_origin containing_module_origin_nested modules_entered
is_submodule_output modules_exited is_bottom_level_submodule_output""".split()


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x):
        return self.fc(x)


class TableModel(nn.Module):
    """Nested modules, parameters, two outputs of one call, a random tensor, a buffer, a write in place, a branch."""

    def __init__(self):
        super().__init__()
        self.inner = Inner()
        self.register_buffer("scale", torch.tensor([2.0, 2.0]))

    def forward(self, x):
        a, b = torch.unbind(self.inner(x), dim=0)
        noise = torch.rand(2)
        c = a + noise
        c.mul_(self.scale)
        if b.sum() > -1e9:
            c = torch.sub(c, b, alpha=2)
        return c


@pytest.fixture(scope="module")
def model():
    return TableModel()


@pytest.fixture(scope="module")
def history(model):
    return tl.log_forward_pass(model, torch.ones(2, 2), random_seed=3)


# Fields that are equal for most operations of the model; each operation below lists the others.
COMMON = {
    "layer_type_num": 1, "pass_num": 1, "layer_passes_total": 1, "same_layer_operations": (),
    "tensor_shape": (2,), "tensor_dtype": "torch.float32", "tensor_fsize": 8,
    "creation_args": (), "creation_kwargs": {}, "func_applied_name": "",
    "func_position_args_non_tensor": (), "func_keyword_args_non_tensor": (),
    "function_is_inplace": False, "gradfunc_name": "", "is_part_of_iterable_output": False,
    "iterable_output_index": None, "computed_with_params": False, "num_param_tensors": 0,
    "parent_param_shapes": (), "num_params_total": 0, "parent_params_fsize": 0,
    "parent_layers": (), "orig_ancestors": (), "child_layers": (), "sibling_layers": (), "spouse_layers": (),
    "is_input_layer": False, "has_input_ancestor": True, "min_distance_from_input": None,
    "max_distance_from_input": None, "is_output_layer": False, "is_output_ancestor": True,
    "output_descendants": ("output_1_10",), "min_distance_from_output": None, "max_distance_from_output": None,
    "is_buffer_layer": False, "buffer_address": None, "initialized_inside_model": False,
    "internally_initialized_parents": (), "internally_initialilized_ancestors": (),
    "terminated_inside_model": False, "is_terminal_bool_layer": False, "is_computed_inside_submodule": False,
    "in_cond_branch": False, "containing_module_origin": None, "containing_module_origin_nested": (),
    "modules_entered": (), "is_submodule_output": False, "modules_exited": (),
    "is_bottom_level_submodule_output": False,
}  # fmt: skip


def far(from_input, to_output):
    """Distances, the fewest and the most steps."""
    names = ("min_distance_from_input", "max_distance_from_input")
    ends = ("min_distance_from_output", "max_distance_from_output")
    return dict(zip(names, from_input or (None, None), strict=True)) | dict(
        zip(ends, to_output or (None, None), strict=True)
    )


UNBIND = {
    "layer_type": "unbind", "creation_args": ("linear_1_1",), "creation_kwargs": {"dim": 0},
    "func_applied_name": "unbind", "func_keyword_args_non_tensor": ("dim=0",), "gradfunc_name": "UnbindBackward0",
    "is_part_of_iterable_output": True, "parent_layers": ("linear_1_1",), "orig_ancestors": ("input_1_0",),
}  # fmt: skip
LATE = {"orig_ancestors": ("input_1_0", "rand_1_4", "buffer_1"), "internally_initialilized_ancestors": ("rand_1_4",)}
TRUTH = {
    "in_cond_branch": True,
    "is_output_ancestor": False,
    "output_descendants": (),
    "orig_ancestors": ("input_1_0",),
}

EXPECTED = {
    "input_1_0": {
        "operation_num": 0, "layer_type": "input", "lookup_keys": (-11, 0, "input_1_0", "input_1_0:1"),
        "tensor_shape": (2, 2), "tensor_fsize": 16, "child_layers": ("linear_1_1",), "is_input_layer": True,
        **far((0, 0), (4, 6)), "modules_entered": ("inner", "inner.fc"),
    },
    "linear_1_1": {
        "operation_num": 1, "layer_type": "linear", "tensor_shape": (2, 2), "tensor_fsize": 16,
        "lookup_keys": (-10, 1, "inner", "inner.fc", "inner.fc:1", "inner:1", "linear_1_1", "linear_1_1:1"),
        "creation_args": ("input_1_0", "inner.fc.weight", "inner.fc.bias"), "func_applied_name": "linear",
        "gradfunc_name": "AddmmBackward0", "computed_with_params": True, "num_param_tensors": 2,
        "parent_param_shapes": ((2, 2), (2,)), "num_params_total": 6, "parent_params_fsize": 24,
        "parent_layers": ("input_1_0",), "orig_ancestors": ("input_1_0",),
        "child_layers": ("unbind_1_2", "unbind_2_3"), **far((1, 1), (3, 5)), "is_computed_inside_submodule": True,
        "containing_module_origin": "inner.fc", "containing_module_origin_nested": ("inner", "inner.fc"),
        "is_submodule_output": True, "modules_exited": ("inner.fc", "inner"),
        "is_bottom_level_submodule_output": True,
    },
    "unbind_1_2": {
        **UNBIND, "operation_num": 2, "lookup_keys": (-9, 2, "unbind_1_2", "unbind_1_2:1"),
        "iterable_output_index": 0, "child_layers": ("add_1_5",), "sibling_layers": ("unbind_2_3",),
        "spouse_layers": ("rand_1_4",), **far((2, 2), (4, 4)),
    },
    "unbind_2_3": {
        **UNBIND, "operation_num": 3, "layer_type_num": 2, "lookup_keys": (-8, 3, "unbind_2_3", "unbind_2_3:1"),
        "iterable_output_index": 1, "child_layers": ("sum_1_7", "sub_1_9"), "sibling_layers": ("unbind_1_2",),
        "spouse_layers": ("mul_1_6",), **far((2, 2), (2, 2)),
    },
    "rand_1_4": {
        "operation_num": 4, "layer_type": "rand", "lookup_keys": (-7, 4, "rand_1_4", "rand_1_4:1"),
        "creation_args": (2,), "func_applied_name": "rand", "func_position_args_non_tensor": ("0=2",),
        "child_layers": ("add_1_5",), "spouse_layers": ("unbind_1_2",), "has_input_ancestor": False,
        **far(None, (4, 4)), "initialized_inside_model": True,
    },
    "add_1_5": {
        "operation_num": 5, "layer_type": "add", "lookup_keys": (-6, 5, "add_1_5", "add_1_5:1"),
        "creation_args": ("unbind_1_2", "rand_1_4"), "func_applied_name": "add", "gradfunc_name": "AddBackward0",
        "parent_layers": ("unbind_1_2", "rand_1_4"), "orig_ancestors": ("input_1_0", "rand_1_4"),
        "child_layers": ("mul_1_6",), "spouse_layers": ("buffer_1",), **far((3, 3), (3, 3)),
        "internally_initialized_parents": ("rand_1_4",), "internally_initialilized_ancestors": ("rand_1_4",),
    },
    "buffer_1": {
        "operation_num": -1, "layer_type": "buffer", "lookup_keys": ("buffer_1", "buffer_1:1", "scale"),
        "child_layers": ("mul_1_6",), "spouse_layers": ("add_1_5",), "has_input_ancestor": False,
        **far(None, (3, 3)), "is_buffer_layer": True, "buffer_address": "scale",
    },
    "mul_1_6": {
        **LATE, "operation_num": 6, "layer_type": "mul", "lookup_keys": (-5, 6, "mul_1_6", "mul_1_6:1"),
        "creation_args": ("add_1_5", "buffer_1"), "func_applied_name": "mul_", "function_is_inplace": True,
        "gradfunc_name": "MulBackward0", "parent_layers": ("add_1_5", "buffer_1"), "child_layers": ("sub_1_9",),
        "spouse_layers": ("unbind_2_3",), **far((4, 4), (2, 2)),
    },
    "sum_1_7": {
        **TRUTH, "operation_num": 7, "layer_type": "sum", "lookup_keys": (-4, 7, "sum_1_7", "sum_1_7:1"),
        "tensor_shape": (), "tensor_fsize": 4, "creation_args": ("unbind_2_3",), "func_applied_name": "sum",
        "gradfunc_name": "SumBackward0", "parent_layers": ("unbind_2_3",), "child_layers": ("gt_1_8",),
        "sibling_layers": ("sub_1_9",), **far((3, 3), None),
    },
    "gt_1_8": {
        **TRUTH, "operation_num": 8, "layer_type": "gt", "lookup_keys": (-3, 8, "gt_1_8", "gt_1_8:1"),
        "tensor_shape": (), "tensor_fsize": 1, "tensor_dtype": "torch.bool", "creation_args": ("sum_1_7", -1e9),
        "func_applied_name": "gt", "func_position_args_non_tensor": ("1=-1000000000.0",),
        "parent_layers": ("sum_1_7",), **far((4, 4), None), "terminated_inside_model": True,
        "is_terminal_bool_layer": True,
    },
    "sub_1_9": {
        **LATE, "operation_num": 9, "layer_type": "sub", "lookup_keys": (-2, 9, "sub_1_9", "sub_1_9:1"),
        "creation_args": ("mul_1_6", "unbind_2_3"), "creation_kwargs": {"alpha": 2}, "func_applied_name": "sub",
        "func_keyword_args_non_tensor": ("alpha=2",), "gradfunc_name": "SubBackward0",
        "parent_layers": ("mul_1_6", "unbind_2_3"), "child_layers": ("output_1_10",),
        "sibling_layers": ("sum_1_7",), **far((3, 5), (1, 1)),
    },
    "output_1_10": {
        **LATE, "operation_num": 10, "layer_type": "output", "lookup_keys": (-1, 10, "output_1_10", "output_1_10:1"),
        "parent_layers": ("sub_1_9",), "is_output_layer": True, "output_descendants": (), **far((4, 6), (0, 0)),
    },
}  # fmt: skip
BY_LABEL = ("layer_label", "layer_label_w_pass", "layer_total_num")
LIVE = ("tensor_contents", "func_applied", "func_time_elapsed", "func_rng_states")


def test_no_field_of_the_operation_side_goes_unchecked():
    checked = {*COMMON, *BY_LABEL, *LIVE, "operation_num", "layer_type", "lookup_keys"}
    assert checked == {*OPERATION_SIDE}


@pytest.mark.parametrize("label", list(EXPECTED))
def test_operation_fields(history, label):
    op = history[label]
    number = EXPECTED[label]["operation_num"]
    by_label = {"layer_label": label, "layer_label_w_pass": f"{label}:1", "layer_total_num": number}
    expected = COMMON | by_label | EXPECTED[label]
    assert {name: getattr(op, name) for name in expected} == expected


def test_all_operations_are_expected(history):
    assert [op.label for op in history.operations] == list(EXPECTED)


def test_live_fields_of_operations(model, history):
    torch.manual_seed(3)
    state = torch.get_rng_state()
    noise = torch.rand(2)
    assert torch.equal(history["rand_1"].func_rng_states, state)
    assert history["linear_1"].func_rng_states is None
    assert history["linear_1"].func_applied is nn.functional.linear
    assert history["input_1"].func_applied is None
    assert all(0 < op.func_time_elapsed < 10 for op in history if op.func_applied)
    rows = model.inner(torch.ones(2, 2))
    expected = {
        "linear_1": rows, "unbind_1": rows[0], "unbind_2": rows[1], "rand_1": noise, "add_1": rows[0] + noise,
        "mul_1": (rows[0] + noise) * 2, "scale": torch.tensor([2.0, 2.0]), "gt_1": torch.tensor(True),
        "output_1": torch.sub((rows[0] + noise) * 2, rows[1], alpha=2), "input_1": torch.ones(2, 2),
    }  # fmt: skip
    for key, tensor in expected.items():
        assert torch.equal(history[key].tensor_contents, tensor), key


EXPECTED_OF_MODEL = {
    "model_name": "TableModel", "random_seed_used": 3, "model_is_recurrent": False, "model_max_recurrent_loops": 1,
    "model_is_branching": True, "model_has_conditional_branching": True,
    "layer_list": [label for label in EXPECTED if label != "buffer_1"],
    "input_layers": ["input_1_0"], "output_layers": ["output_1_10"], "buffer_layers": ["buffer_1"],
    "internally_initialized_layers": ["rand_1_4"], "internally_terminated_bool_layers": ["gt_1_8"],
    "layers_computed_with_params": ["linear_1_1"], "num_tensors_total": 12, "tensor_fsize_total": 101,
    "num_tensors_saved": 12, "tensor_fsize_saved": 101, "total_param_tensors": 2, "total_param_layers": 1,
    "total_params": 6, "total_params_fsize": 24, "module_addresses": ["inner", "inner.fc"],
    "module_types": {"inner": "Inner", "inner.fc": "Linear"}, "module_num_passes": {"inner": 1, "inner.fc": 1},
    "module_pass_children": {"inner:1": ["inner.fc:1"], "inner.fc:1": []}, "top_level_module_passes": ("inner:1",),
}  # fmt: skip
OF_TIME = """pass_start_time pass_end_time elapsed_time_total elapsed_time_function_calls
elapsed_time_torchlens_logging""".split()


def test_no_field_of_the_model_side_goes_unchecked():
    assert {*EXPECTED_OF_MODEL, *OF_TIME} == {*MODEL_SIDE}


@pytest.mark.parametrize("name", list(EXPECTED_OF_MODEL))
def test_model_field(history, name):
    assert getattr(history, name) == EXPECTED_OF_MODEL[name]


def test_times_add_up(history):
    assert history.pass_end_time == pytest.approx(history.pass_start_time + history.elapsed_time_total)
    assert history.pass_start_time > 1e9
    spent = history.elapsed_time_function_calls + history.elapsed_time_torchlens_logging
    assert spent == pytest.approx(history.elapsed_time_total)
    assert history.elapsed_time_function_calls == pytest.approx(
        sum({op.call_id: op.func_time_elapsed for op in history}.values())
    )


def test_nothing_saved_counts_nothing():
    history = tl.get_model_metadata(TableModel(), torch.ones(2, 2))
    assert (history.num_tensors_saved, history.tensor_fsize_saved) == (0, 0)
    assert all(op.tensor_contents is None and not op.has_saved_activations for op in history.operations)


def test_a_name_that_is_no_text_of_unicode_is_escaped():
    model = nn.Sequential()
    model.add_module("\udc80", nn.ReLU())
    frame = tl.log_forward_pass(model, torch.ones(1)).to_pandas()
    assert r"\udc80" in str(frame.loc["relu_1_1", "containing_module_origin"])
