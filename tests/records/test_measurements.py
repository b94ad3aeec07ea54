"""What a pass cost, as data."""

from __future__ import annotations

import pytest

from pytest_torchlens.records import Measurements
from pytest_torchlens.records import ModuleMeasurements
from pytest_torchlens.records import from_json
from pytest_torchlens.records import to_json


@pytest.fixture
def measured():
    return Measurements(
        operations=("linear_1_1", "view_1_2"),
        operation_seconds=(0.002, 0.001),
        operation_flops=(800, 0),
        operation_bytes_moved=(400, 0),
        live_bytes=(64, 64),
        modules=(ModuleMeasurements(address="", seconds=0.003, self_seconds=0.001, flops=800),),
        methods={"operation_flops": "counted"},
    )


def test_totals(measured):
    assert measured.seconds == pytest.approx(0.003)
    assert (measured.flops, measured.bytes_moved) == (800, 400)
    assert measured.operation_intensity == (2.0, None)


def test_to_json_and_back(measured):
    assert from_json(to_json(measured), Measurements) == measured
