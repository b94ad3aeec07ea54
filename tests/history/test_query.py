"""Finding layers, walking the graph, and converting it for pandas and networkx."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import pytest_torchlens as tl
from tests.models import DemoNetwork
from tests.models import Function
from tests.models import RecurrentNetwork


class Pools(nn.Module):
    """Two pooling layers, one after a ReLU; half precision; a submodule."""

    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.tail = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(2, 3, 1))

    def forward(self, x):
        return self.tail(self.block(x)).half()


@pytest.fixture(scope="module")
def pools():
    return tl.log_forward_pass(Pools(), torch.rand(1, 1, 8, 8))


@pytest.mark.parametrize(
    ("query", "labels"),
    [
        pytest.param({"func": "*pool*", "preceded_by": "relu"}, ["maxpool2d_1_3"], id="pool-after-relu"),
        pytest.param({"func": "conv2d", "followed_by": "relu"}, ["conv2d_1_1"], id="conv-before-relu"),
        pytest.param({"func": "conv2d"}, ["conv2d_1_1", "conv2d_2_5"], id="type"),
        pytest.param({"func": "max_pool2d"}, ["maxpool2d_1_3"], id="function-name"),
        pytest.param({"module": "block.*"}, ["conv2d_1_1", "relu_1_2", "maxpool2d_1_3"], id="module"),
        pytest.param({"module": "tail", "with_params": True}, ["conv2d_2_5"], id="module-and-parameters"),
        pytest.param({"shape": (None, 2, 4, 4)}, ["maxpool2d_1_3"], id="shape"),
        pytest.param({"dtype": "float16"}, ["half_1_6", "output_1_7"], id="dtype"),
        pytest.param({"label": "conv2d_2_*"}, ["conv2d_2_5"], id="label"),
        pytest.param(
            {"preceded_by": tl.Query(func="relu", preceded_by="conv2d")}, ["maxpool2d_1_3"], id="query-in-query"
        ),
        pytest.param({"func": "lstm"}, [], id="nothing"),
    ],
)
def test_find(pools, query, labels):
    assert [op.label for op in pools.find(**query)] == labels


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ({"func": "rleu"}, "no operation has func='rleu'; did you mean 'relu'?"),
        ({"func": "relu", "module": "blokc"}, "no operation has module='blokc'; did you mean 'block'"),
        ({"label": "conv2_1_1"}, "no operation has label='conv2_1_1'; did you mean 'conv2d_1_1'"),
        ({"func": "relu", "with_params": True}, "no operation has all of these attributes"),
    ],
)
def test_an_empty_list_says_why_nothing_was_found(pools, query, why):
    found = pools.find(**query)
    assert found == []
    assert repr(found).startswith(f"[] ({why}")


@pytest.mark.parametrize(
    ("wanted", "labels"),
    [
        pytest.param(tl.Query("*pool*", preceded_by="relu"), ["maxpool2d_1_3"], id="query"),
        pytest.param(lambda op: op.computed_with_params, ["conv2d_1_1", "conv2d_2_5"], id="function"),
        pytest.param([0, tl.Query("relu"), "half"], ["input_1_0", "relu_1_2", "half_1_6"], id="mixed"),
        pytest.param("conv2d", ["conv2d_1_1", "conv2d_2_5"], id="part-of-labels"),
        pytest.param(-1, ["output_1_7"], id="place"),
    ],
)
def test_only_what_is_asked_for_is_saved(wanted, labels):
    history = tl.log_forward_pass(Pools(), torch.rand(1, 1, 8, 8), layers_to_save=wanted)
    assert history.layer_labels == labels
    assert [op.label for op in history.operations if op.tensor_contents is not None] == labels
    assert history.num_tensors_saved == len(labels)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        pytest.param(tl.Query("lstm"), "no layer passes Query", id="query-without-result"),
        pytest.param(2.5, "cannot have 2.5", id="number"),
        pytest.param(["relu", None], "cannot have None", id="none-in-a-list"),
    ],
)
def test_what_cannot_be_saved_is_said(wanted, message):
    with pytest.raises(tl.LookupKeyError, match=message):
        tl.log_forward_pass(Pools(), torch.rand(1, 1, 8, 8), layers_to_save=wanted)


def test_walks():
    history = tl.log_forward_pass(DemoNetwork(), torch.rand(5, 5))
    assert history.ancestors("add_2") == ("input_1_0", "add_1_1", "relu_1_2", "linear_1_3", "relu_2_4", "randn_1_5")
    assert history.descendants("add_2") == ("pow_1_7", "div_1_8", "mul_1_9", "output_1_10")
    assert history.path("add_2", "mul_1") == ("add_2_6", "div_1_8", "mul_1_9")
    assert history.path("mul_1", "mul_1") == ("mul_1_9",)
    assert history.path(history["add_2"], -2) == ("add_2_6", "div_1_8", "mul_1_9")
    with pytest.raises(tl.LookupKeyError, match="no layer 'mult_1'"):
        history.ancestors("mult_1")


@pytest.mark.parametrize(
    ("start", "end", "message"),
    [
        ("mul_1", "add_2", "no path from mul_1_9 to add_2_6: data flow the other way, from add_2_6 to mul_1_9"),
        ("linear_1", "randn_1", "no path from linear_1_3 to randn_1_5: neither is computed from the other"),
    ],
)
def test_no_path_is_said(start, end, message):
    history = tl.log_forward_pass(DemoNetwork(), torch.rand(5, 5))
    with pytest.raises(tl.NoPathError, match=message):
        history.path(start, end)


def test_walks_from_layers_cover_all_passes():
    history = tl.log_forward_pass(RecurrentNetwork(), torch.rand(5, 5))
    before = tuple(history.layer_list[:9])
    for which in ("add_1_2", "add_1", history["add_1_2"]):
        assert history.ancestors(which) == before[:8]
        assert history.descendants(which) == tuple(history.layer_list[3:])
    assert history.ancestors("add_1_2:1") == ("input_1_0", "linear_1_1:1")
    assert history.path("linear_1_1", "output_1") == ("linear_1_1:3", "add_1_2:3", "mul_1_3:3", "output_1_4")
    assert history.path("input_1", "mul_1_3") == ("input_1_0", "linear_1_1:1", "add_1_2:1", "mul_1_3:1")


@pytest.mark.parametrize("which", [None, 2.5, ["add_1"], object()])
def test_walks_from_nothing_that_is_there(pools, which):
    with pytest.raises(tl.LookupKeyError, match="expected a key, an operation or a layer, got"):
        pools.ancestors(which)


def test_walks_from_an_operation_of_another_history(pools):
    other = tl.log_forward_pass(DemoNetwork(), torch.rand(5, 5))
    with pytest.raises(tl.LookupKeyError, match="'div_1_8' is not an operation of this history of Pools"):
        pools.descendants(other["div_1"])


def test_tables_of_layers():
    networkx, _ = pytest.importorskip("networkx"), pytest.importorskip("pandas")
    history = tl.log_forward_pass(RecurrentNetwork(), torch.rand(5, 5))
    frame = history.to_pandas(rolled=True)
    assert list(frame.index) == ["input_1_0", "linear_1_1", "add_1_2", "mul_1_3", "output_1_4"]
    assert frame.num_params_total.sum() == history.total_params
    assert frame.loc["linear_1_1", "pass_num"] == (1, 2, 3)
    assert len(history.to_pandas()) == 11
    graph = history.to_networkx(rolled=True)
    assert list(graph) == list(frame.index)
    assert graph.nodes["linear_1_1"]["operation_num"] == (1, 4, 7)
    assert graph.edges["mul_1_3", "linear_1_1", 0]["passes"] == ((1, 2), (2, 3))
    assert [sorted(cycle) for cycle in networkx.simple_cycles(graph)] == [["add_1_2", "linear_1_1", "mul_1_3"]]


def test_deep_graphs_can_be_walked():
    history = tl.log_forward_pass(Function(lambda x: [x := x + 1 for _ in range(3000)][-1]), torch.zeros(1))
    assert len(history.ancestors(-1)) == 3001
    assert history[-1].max_distance_from_input == 3001


def test_networkx(pools):
    networkx = pytest.importorskip("networkx")
    graph = pools.to_networkx()
    assert networkx.is_directed_acyclic_graph(graph)
    assert list(networkx.topological_sort(graph)) == pools.layer_list
    assert graph.nodes["conv2d_1_1"]["tensor_shape"] == (1, 2, 8, 8)
    assert graph.edges["input_1_0", "conv2d_1_1", 0] == {"argument": "0", "through_write": False}
    both = tl.log_forward_pass(Function(lambda x: (x + 1) * 2), torch.ones(1)).to_networkx()
    assert both.number_of_edges() == 3


def test_pandas(pools):
    pytest.importorskip("pandas")
    frame = pools.to_pandas()
    assert list(frame.index) == pools.layer_list
    assert frame.loc["conv2d_2_5", "num_params_total"] == 9
    assert frame.num_params_total.sum() == pools.total_params


@pytest.mark.parametrize("name", ["to_networkx", "to_pandas"])
def test_a_missing_library_is_named_with_the_remedy(pools, monkeypatch, name):
    library = name.removeprefix("to_")
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(
        ImportError, match=rf"{library} is not installed; run: pip install 'pytest-torchlens\[graphs\]'"
    ):
        getattr(pools, name)()


def test_call_stack(pools):
    stack = pools["conv2d_1"].func_call_stack
    assert [frame["function"] for frame in stack] == ["forward", "forward", "forward", "_conv_forward"]
    assert stack[0]["call_fname"] == __file__
    line = stack[0]["call_linenum"]
    lines = Path(__file__).read_text(encoding="utf-8").splitlines(keepends=True)
    assert lines[line - 1].strip() == "return self.tail(self.block(x)).half()"
    assert stack[0]["code_context"] == lines[line - 10 : line + 9]
    assert pools["input_1"].func_call_stack == ()
