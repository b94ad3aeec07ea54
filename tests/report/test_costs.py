from __future__ import annotations

import pytest

from pytest_torchlens.records import ModelReport
from pytest_torchlens.report.layer_table import Costs
from tests.draw.samples import Sketch
from tests.draw.samples import alexnet
from tests.draw.samples import transformer
from tests.report.samples import measured


def test_kinds_of_operation_the_most_costly_first():
    costs = Costs.of(measured())
    bars = costs.by_type()
    assert [bar.seconds for bar in bars] == sorted((bar.seconds for bar in bars), reverse=True)
    linear = next(bar for bar in bars if bar.name == "linear")
    assert (linear.count, linear.seconds) == (3, pytest.approx((17 + 20 + 22) * 1e-4))
    assert sum(bar.share for bar in bars) == pytest.approx(1.0)


def test_without_measurements_the_recorded_times_stand_in():
    costs = Costs(alexnet())
    assert costs.total == pytest.approx(sum(op.func_time_elapsed for op in alexnet().operations))
    assert costs.flops(alexnet().operations[1]) is None


def test_modules_of_the_outermost_level_that_has_some():
    names = {bar.name for bar in Costs(transformer(3)).by_module()}
    assert names == {"blocks.0", "blocks.1", "blocks.2", "outside of modules"}


def test_many_bars_end_in_others():
    bars = Costs(transformer(30)).by_module()
    assert len(bars) == 13
    assert bars[-1].name == "19 others"
    assert sum(bar.share for bar in bars) == pytest.approx(1.0)


def test_a_call_with_several_tensors_costs_once():
    net = Sketch("Net")
    for _ in range(3):
        net.op("lstm", call_id=0, func_time_elapsed=0.25)
    assert Costs(net.record()).total == 0.25


def test_nothing_recorded_costs_nothing():
    assert Costs.of(ModelReport(zoo="z", name="n")) is None
    assert Costs(Sketch("Net").record()).by_type() == Costs(Sketch("Net").record()).by_module() == []
