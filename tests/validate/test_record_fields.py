"""Every public field of a record has a second witness, or stands in a table with the test that holds it."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from pytest_torchlens.capture import record
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.history import graph
from pytest_torchlens.history import model_history
from pytest_torchlens.history import operation_records
from pytest_torchlens.history.layers_and_operations import Layer
from pytest_torchlens.history.lookup import Lookup
from pytest_torchlens.history.modules import Modules
from pytest_torchlens.records import Edge
from pytest_torchlens.records import EscapeRecord
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import LoopRecord
from pytest_torchlens.records import ModuleRecord
from pytest_torchlens.records import Operation
from pytest_torchlens.records import Status
from pytest_torchlens.records.operation import SourcePlace
from pytest_torchlens.validate import validate
from pytest_torchlens.validate.expected_totals import model_faults
from pytest_torchlens.validate.invariants import check_invariants
from tests.models import Function
from tests.models import failures
from tests.validate.damage_to_recording import KINDS
from tests.validate.damage_to_records import fields_of
from tests.validate.test_sabotage_catalogue import Decisions

CLASSES = (Operation, HistoryRecord, Layer, ModuleRecord, Edge, EscapeRecord, LoopRecord)
TESTS = Path(__file__).parents[1]

# A lie in the record of these is found, but what was recorded has no second witness, or one for some cases only.
WITHOUT_A_FULL_WITNESS = {
    # measured: the record is compared with the measurement, which nothing measures again
    "Operation: func_time_elapsed": "history/test_table.py::test_live_fields_of_operations",
    "HistoryRecord: pass_start_time": "history/test_table.py::test_times_add_up",
    "HistoryRecord: pass_end_time": "history/test_table.py::test_times_add_up",
    "HistoryRecord: elapsed_time_total": "history/test_table.py::test_times_add_up",
    "HistoryRecord: elapsed_time_function_calls": "history/test_table.py::test_times_add_up",
    "HistoryRecord: elapsed_time_torchlens_logging": "history/test_table.py::test_times_add_up",
    # read off the frames, which the recorder alone has seen
    "Operation: source_line": "history/test_table.py::test_operation_fields",
    "Operation: composite": "history/test_table.py::test_operation_fields",
    "Operation: steps": "history/test_steps.py::test_a_transform_lists_its_steps",
    # read off the tensor when it was made: a replay compares shape, dtype, device, values; not these
    "Operation: tensor_stride": "history/test_table.py::test_operation_fields",
    "Operation: gradfunc_name": "history/test_table.py::test_operation_fields",
    # which operations are passes of one layer: counted, and compared where they work on the same parameters
    "Operation: pass_num": "history/test_rules.py::test_layers",
    "Operation: layer_passes_total": "history/test_rules.py::test_layers",
    "Layer: passes": "history/test_rules.py::test_layers",
    # read off the source: compared with its text and, of plain questions, with the answer that Python got
    "EscapeRecord: statement": "history/test_control.py::test_statement_value_and_branch",
    "EscapeRecord: condition": "history/test_control.py::test_the_line_and_the_operation_that_was_asked",
    "EscapeRecord: branch": "history/test_control.py::test_statement_value_and_branch",
    "EscapeRecord: lines_taken": "history/test_branch_lines.py::test_the_innermost_branch_decides_a_line",
    "EscapeRecord: lines_not_taken": "history/test_branch_lines.py::test_the_innermost_branch_decides_a_line",
    "LoopRecord: source_line": "history/test_source_loops.py::test_two_loops_that_share_layers",
    "LoopRecord: layers": "history/test_source_loops.py::test_two_loops_that_share_layers",
    "LoopRecord: num_passes": "history/test_source_loops.py::test_an_inner_loop_counts_the_passes_of_all_its_runs",
    "LoopRecord: decided_by": "history/test_loop_endings.py::test_what_decides_the_passes",
}
"""Field, and the test that holds it."""


def all_fields():
    return [f"{kind.__name__}: {name}" for kind in CLASSES for name in fields_of(kind)]


def test_every_public_field_is_falsified_in_the_catalogue():
    assert [field for field in all_fields() if field not in KINDS] == []


def test_the_fields_of_the_table_exist():
    assert [field for field in WITHOUT_A_FULL_WITNESS if field not in all_fields()] == []


@pytest.mark.parametrize("test", sorted(set(WITHOUT_A_FULL_WITNESS.values())))
def test_the_tests_of_the_table_exist(test):
    file, _, name = test.partition("::")
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_a_lie_in_every_operation_is_found_and_names_operation_and_field(monkeypatch):
    right = model_history.fields_of
    monkeypatch.setattr(model_history, "fields_of", lambda *args: right(*args) | {"tensor_shape": (9, 9)})
    found = validate(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (torch.ones(1, 4),)).verdict
    assert ("invariants", "linear_1_1", "tensor_shape is (9, 9), the recorded call gave (1, 4)") in failures(found)


FAULTS = {
    "arguments without text": (operation_records, "_texts", lambda right: lambda arguments: ()),
    "line of another call": (
        operation_records,
        "source_place",
        lambda right: lambda call: SourcePlace("model.py", 1, "forward"),
    ),
    "tensors in no module": (graph, "_note_modules", lambda right: lambda recording, nodes: None),
    "nothing leads to an output": (graph, "_mark_output_ancestors", lambda right: lambda nodes: None),
    "two operations fewer": (graph, "_with_ancestors", lambda right: lambda nodes: right(nodes)[:-2]),
    "shapes carry values": (graph, "SHAPE_OF_FIRST", lambda right: frozenset(["linear"])),
    "module calls without number": (Modules, "name", lambda right: lambda self, call: call.address),
    "module calls without children": (Modules, "_pass_children", lambda right: lambda self: {}),
    "no lookup keys": (Lookup, "keys_of", lambda right: lambda self, named, place: ()),
    "labels count from one": (
        model_history,
        "assign_labels",
        lambda right: lambda nodes, layers: _from_one(right, nodes),
    ),
    "no conditions": (model_history, "mark_conditions", lambda right: lambda recording, nodes, records: None),
    "no loops": (model_history, "loop_records", lambda right: lambda recording, nodes, records: ()),
    "no passes": (model_history, "group_passes", lambda right: lambda nodes: []),
    "escapes of no operation": (
        model_history,
        "escape_records",
        lambda right: (
            lambda recording, nodes: tuple(dataclasses.replace(r, operation="") for r in right(recording, nodes))
        ),
    ),
}


def _from_one(right, nodes):
    right(nodes, [])
    for node in nodes:
        node.layer_total_num += node.layer_total_num >= 0
        node.layer_label = operation_records.label_of(node)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_what_makes_the_records_is_found(fault, monkeypatch):
    owner, name, wrong = FAULTS[fault]
    torch.manual_seed(0)
    model, x = Decisions(), torch.rand(2, 5)
    assert validate(model, (x,), parts=["invariants"]).verdict.part("invariants").status is Status.PASSED
    monkeypatch.setattr(owner, name, wrong(getattr(owner, name)))
    assert validate(model, (x,), parts=["invariants"]).verdict.part("invariants").status is Status.FAILED


def test_a_tensor_left_in_the_arguments_is_found_and_named():
    history = validate(Function(lambda x: torch.where(x > 0, x, x.sin())), (torch.ones(2, 3),)).history
    call = history.recording.calls[-1]
    call.args = (*call.args[:2], torch.zeros(2, 3))
    first = check_invariants(history).failures[0]
    assert "its argument 2 is a tensor of shape (2, 3) itself" in " ".join(
        failure.message for failure in check_invariants(history).failures
    )
    assert first.operation == "where_1_3"
    assert first.source_line


class Holder:
    """An object with a tensor in it, and a list that holds itself."""

    def __init__(self, x):
        self.x = x
        self.around = [self]


def given_an_object(x):
    return torch.relu(x) + nn.functional.dropout(Holder(x).x, 0.0)


def sparse(x):
    return torch.sparse.mm(x.to_sparse(), x.t()) + 1


def nested(x):
    return torch.nested.nested_tensor([x, x[:1]]).to_padded_tensor(0.0) * 2


def written_through_views(x):
    y = x * 1
    y[0].add_(1)
    y[1:] = 3
    return y.view(-1), y.t()


def several_outputs(x):
    values, places = x.max(1)
    return {"values": values, "same": values, "places": [places, x]}


def data_decide(x):
    for row in x:
        if row.sum() > 1 and not row.isnan().any():
            x = x + row
    while x.max() < 50:
        x = x * 2
    return x if x.any() else -x


def mapped(x):
    return sum(map(torch.relu, [x, x, x])) + sum(torch.sin(x) for _ in range(3))


def asked_after_a_write(x):
    y = x[0, 0]
    x.add_(1)
    return x * y.item() + (1 if y else 2)


FORWARDS = [
    *(given_an_object, sparse, nested, written_through_views, several_outputs, data_decide, mapped),
    asked_after_a_write,
]


@pytest.mark.parametrize("forward", FORWARDS, ids=lambda forward: forward.__name__)
def test_right_records_of_unusual_values_pass(forward):
    part = validate(Function(forward), (torch.arange(6.0).reshape(2, 3) + 1,)).verdict.part("invariants")
    assert [(failure.operation, failure.message) for failure in part.failures] == []
    assert part.status is Status.PASSED


class Shared(nn.Module):
    """One parameter under two names, one module at two addresses and called four times, a learned first state."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.b.weight = self.a.weight
        self.again = self.a
        self.cell = nn.LSTMCell(3, 3)
        self.start = nn.Parameter(torch.zeros(1, 3))

    def forward(self, x):
        state = self.start.expand(len(x), 3), self.start.expand(len(x), 3)
        for _ in range(2):
            x = self.b(self.again(self.a(x)))
            state = self.cell(x, state)
        return state


class Lazy(nn.Module):
    """Layers that learn their shapes in the first call."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d())

    def forward(self, x):
        return self.layers(x)


class LazyTwice(Lazy):
    def forward(self, x):
        return self.layers(super().forward(x)[:, :3])


class CallsItself(nn.Module):
    def __init__(self):
        super().__init__()
        self.leaf = nn.Linear(3, 3)

    def forward(self, x, depth=2):
        return self.leaf(x) if not depth else self(x, depth - 1) + self.leaf(x)


class Negative(nn.Linear):
    def forward(self, x):
        return -super().forward(x)


class ChangesClass(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        self.layer.__class__ = Negative
        x = self.layer(x)
        self.layer.__class__ = nn.Linear
        return self.layer(x)


class Parametrizes(ChangesClass):
    def forward(self, x):
        parametrize.register_parametrization(self.layer, "weight", nn.Tanh())
        x = self.layer(x)
        parametrize.remove_parametrizations(self.layer, "weight", leave_parametrized=False)
        return self.layer(x)


RIGHT = [Shared, Lazy, LazyTwice, CallsItself, ChangesClass, Parametrizes]


@pytest.mark.parametrize("model", [*RIGHT, lambda: nn.LSTM(3, 3, 2, bidirectional=True)])
def test_right_records_of_unusual_modules_pass(model):
    part = validate(model(), (torch.rand(4, 3),)).verdict.part("invariants")
    assert [(failure.operation, failure.message) for failure in part.failures] == []


def test_a_model_that_calls_itself_made_all_calls_below_it():
    history = validate(CallsItself(), (torch.rand(4, 3),)).history
    assert history.top_level_module_passes == (":2", ":3", "leaf:1", "leaf:2", "leaf:3")


def test_a_wrong_class_of_a_call_fails_where_another_module_changes_its_class():
    history = validate(nn.Sequential(ChangesClass(), nn.ReLU()), (torch.rand(4, 3),)).history
    history.recording.module_calls[-1].module_type = "Negative"
    assert "its class is Negative, the module there is a ReLU" in [
        one.message for one in check_invariants(history).failures
    ]


def test_right_records_of_what_is_on_no_device_pass():
    with torch.device("meta"):
        model, x = nn.Linear(3, 3), torch.rand(2, 3)
    part = validate(model, (x,)).verdict.part("invariants")
    assert [(failure.operation, failure.message) for failure in part.failures] == []


@pytest.mark.parametrize("save", [{"layers_to_save": ["relu", -1]}, {"save_gradients": True}, {"layers_to_save": None}])
def test_right_histories_with_other_options_pass(save):
    from pytest_torchlens import log_forward_pass

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    history = log_forward_pass(model, torch.rand(2, 3, requires_grad=True), **save)
    assert isinstance(history, ModelHistory)
    if "save_gradients" in save:
        history["output_1"].tensor_contents.sum().backward()
    part = check_invariants(history)
    assert [(failure.operation, failure.message) for failure in part.failures] == []


def test_a_parameter_that_a_call_wrote_to_may_be_returned_twice():
    class Centre(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean = nn.Parameter(torch.zeros(4), requires_grad=False)

        def forward(self, x):
            self.mean.add_(x.mean(0))
            return self.mean, x - self.mean, self.mean.view(2, 2), self.mean

    verdict = validate(Centre(), (torch.rand(3, 4),)).verdict
    assert verdict, verdict.words


class Makes(nn.Module):
    """Makes a parameter of shape (2, 3) in the pass, and may put it in the place of its own."""

    def __init__(self, *, replaces: bool):
        super().__init__()
        self.weight, self.replaces = nn.Parameter(torch.rand(3, 3)), replaces

    def forward(self, x):
        made = nn.Parameter((x @ self.weight).detach())
        if self.replaces:
            self.weight = made
        return made * 2


def test_a_pass_that_makes_a_parameter_still_answers_for_the_others():
    recording = record(model := Makes(replaces=False), (torch.rand(2, 3),))
    assert list(model_faults(recording)) == []
    recording.parameters["weight"] = torch.Size([9, 9])
    recording.parameter_bytes += 1
    shape, size = model_faults(recording)
    assert shape == "parameter 'weight' is recorded as (9, 9), it has (3, 3)"
    assert size == "total_params_fsize is 37, the parameters have 36 bytes"
    assert model.weight.shape == (3, 3)


def test_a_parameter_that_is_replaced_is_as_recorded_after_the_pass():
    verdict = validate(Makes(replaces=True), (torch.rand(2, 3),)).verdict
    assert verdict, verdict.words


class ReplacesLast(nn.Module):
    """Changes which parameters it has when it has computed all; nothing reads the new ones."""

    def __init__(self, change):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.change = change

    def forward(self, x):
        y = self.second(self.first(x))
        self.change(self)
        return y


def cut(model):
    model.first.weight = nn.Parameter(model.first.weight.detach()[:2])


def cut_under_its_second_name(model):
    model.second.weight = nn.Parameter(model.first.weight.detach()[:2])


def made_anew(model):
    model.first.weight = model.second.weight = nn.Parameter(torch.zeros(2, 4))


def one_for_another(model):
    del model.first.bias
    model.other = nn.Parameter(torch.zeros(2))


def exchanged(model):
    model.first.bias, model.second.bias = model.second.bias, model.first.bias


def frozen(model):
    model.first.bias = nn.Parameter(model.first.bias.detach(), requires_grad=False)


def removed(model):
    model.first.bias = None


def moved(model):
    model.third = model.first
    del model.first


@pytest.mark.parametrize(
    "change", [cut, cut_under_its_second_name, made_anew, one_for_another, exchanged, frozen, removed, moved]
)
def test_parameters_that_the_last_statement_replaces(change):
    verdict = validate(ReplacesLast(change), (torch.rand(2, 4),)).verdict
    assert verdict.status is Status.PASSED, verdict.words


def test_a_record_that_is_wrong_about_what_was_not_replaced_is_a_fault():
    recording = record(model := ReplacesLast(cut), (torch.rand(2, 4),))
    assert list(model_faults(recording)) == []
    recording.parameters["first.bias"] = torch.Size([9])
    assert list(model_faults(recording)) == ["parameter 'first.bias' is recorded as (9,), it has (4,)"]
    assert model.first.weight.shape == (2, 4)
