from __future__ import annotations

from dataclasses import replace

from pytest_torchlens.records import ModuleRecord
from pytest_torchlens.report.layer_table import Costs
from pytest_torchlens.report.layer_table import layers
from pytest_torchlens.report.layer_table import module_tree
from tests.draw.samples import Sketch
from tests.draw.samples import alexnet
from tests.draw.samples import demo_network


def test_a_row_for_each_operation_with_links_to_its_parents():
    rows = {row.label: row for row in layers(demo_network())}
    assert list(rows) == [op.layer_label for op in demo_network().operations]
    assert rows["div_1_8"].parents == (("add_2_6", "row-add_2_6"), ("pow_1_7", "row-pow_1_7"))


def test_modules_come_in_order_and_close_as_many_lists_as_they_open():
    tree = module_tree(Costs(alexnet()))
    assert [branch.module.address for branch in tree][:3] == ["", "features", "features.0"]
    assert sum(branch.opens for branch in tree) == sum(branch.num_closing for branch in tree) == 3
    assert [branch.level for branch in tree][:3] == [0, 1, 2]


def test_a_module_holds_what_is_below_it():
    history = alexnet()
    modules = tuple(replace(m, num_params=7) if m.address == "features.0" else m for m in history.modules)
    tree = {branch.module.address: branch for branch in module_tree(Costs(replace(history, modules=modules)))}
    assert tree["features.0"].num_params == tree["features"].num_params == tree[""].num_params == 7
    assert tree["classifier"].num_params == 0
    assert tree["features"].num_operations == 13
    times = [op.func_time_elapsed for op in history.operations if "features" in op.containing_module_origin_nested]
    assert abs(tree["features"].seconds - sum(times)) < 1e-12


def test_a_call_with_several_tensors_counts_once():
    net = Sketch("Net")
    net.module("lstm", "LSTM")
    for _ in range(3):
        net.op("lstm", leaf="lstm", call_id=5, func_time_elapsed=0.25)
    lstm = module_tree(Costs(net.record()))[1]
    assert (lstm.num_operations, lstm.seconds) == (1, 0.25)


def test_a_module_that_two_others_share_stands_in_the_tree_once():
    modules = [ModuleRecord(address="", module_type="Net", children=("a", "b"))]
    modules += [ModuleRecord(address=address, module_type="Half", children=("a.shared",)) for address in "ab"]
    modules.append(ModuleRecord(address="a.shared", module_type="Linear", num_params=9))
    tree = module_tree(Costs(replace(alexnet(), modules=tuple(modules))))
    assert [branch.module.address for branch in tree] == ["", "a", "a.shared", "b"]
    assert tree[0].num_params == 9
    assert sum(branch.opens for branch in tree) == sum(branch.num_closing for branch in tree) == 2


def test_modules_nested_beyond_any_recursion_limit():
    modules = [ModuleRecord(address="", module_type="Deep", children=("m0",))]
    modules += [ModuleRecord(address=f"m{i}", module_type="Deep", children=(f"m{i + 1}",)) for i in range(1200)]
    tree = module_tree(Costs(replace(alexnet(), modules=tuple(modules))))
    assert tree[-1].level == 1200
