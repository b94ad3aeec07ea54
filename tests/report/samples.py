"""Made-up reports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest_torchlens.records import ActivationStatistics
from pytest_torchlens.records import AuditFinding
from pytest_torchlens.records import AuditPlace
from pytest_torchlens.records import Change
from pytest_torchlens.records import Comparison
from pytest_torchlens.records import Environment
from pytest_torchlens.records import ErrorRecord
from pytest_torchlens.records import Failure
from pytest_torchlens.records import Finding
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import Measurements
from pytest_torchlens.records import ModelReport
from pytest_torchlens.records import ModuleMeasurements
from pytest_torchlens.records import Outcome
from pytest_torchlens.records import PartVerdict
from pytest_torchlens.records import RunReport
from pytest_torchlens.records import Severity
from pytest_torchlens.records import Stage
from pytest_torchlens.records import Status
from pytest_torchlens.records import Verdict
from tests.draw.samples import Sketch
from tests.draw.samples import alexnet

TRACEBACK = """Traceback (most recent call last):
  File "/models/zoo/net.py", line 31, in forward
    return self.head(x.flatten(1))
  File "/models/zoo/head.py", line 12, in forward
    return self.linear(x)
RuntimeError: mat1 and mat2 shapes cannot be multiplied (1x512 and 256x10)
"""


def passed(name: str = "alexnet", zoo: str = "torchvision", history: HistoryRecord | None = None) -> ModelReport:
    """Return the report of a model that holds."""
    record = history or alexnet()
    return ModelReport(
        zoo=zoo,
        name=name,
        nodeid=f"model_zoo_configs/{zoo}.yaml::{name}",
        inputs=("x: float32[1, 3, 224, 224]",),
        outputs=("float32[1, 1000]",),
        weights="deterministic",
        forward_ms=12.34,
        forward_runs=5,
        record_ms=20.0,
        seconds=1.5,
        history=record,
        verdict=verdict(len(record.operations)),
    )


def verdict(count: int) -> Verdict:
    """Return a verdict that passed."""
    parts = (
        part("observer", 17, "output and state tensors"),
        part("replay", count, "activations"),
        part("perturbation", count, "edges", exempt={"comparison: the result stayed the same": 2, "shape only": 1}),
        part("invariants", 12, "rules"),
        PartVerdict(name="completeness", status=Status.NOT_RUN, reason="needs torch 2.6 or later"),
    )
    return Verdict(status=Status.PASSED, parts=parts, operations_checked=count, edges_checked=count, seconds=0.8)


def part(name: str, checked: int, unit: str, **fields: Any) -> PartVerdict:
    """Return a part that passed unless told otherwise."""
    return PartVerdict(**({"name": name, "status": Status.PASSED, "checked": checked, "unit": unit} | fields))


def measured(name: str = "measured") -> ModelReport:
    """Return the report of a model that was measured, and whose activations were looked at."""
    history = alexnet()
    labels = tuple(op.label for op in history.operations)
    numbers = tuple(float(place) for place in range(len(labels)))
    modules = tuple(
        ModuleMeasurements(address=module.address, seconds=2.0, self_seconds=0.5, flops=4_000_000, bytes_moved=2**20)
        for module in history.modules
    )
    cost = Measurements(
        operations=labels,
        operation_seconds=tuple(number * 1e-4 for number in numbers),
        operation_flops=tuple(int(number * 1e6) for number in numbers),
        operation_bytes_moved=(10,) * len(labels),
        live_bytes=tuple(int(1e6 * (30 - number)) for number in numbers),
        modules=modules,
        peak_bytes=30_000_000,
        measured_peak_bytes=31_000_000,
        methods={"live_bytes": "computed from storages and last uses"},
    )
    statistics = ActivationStatistics(
        operations=labels,
        mean=numbers,
        std=numbers,
        minimum=tuple(-number for number in numbers),
        maximum=(float("inf"), *numbers[1:]),
        zeros=(0.5,) * len(labels),
        not_finite=(0.0,) * len(labels),
        histograms=((1, 2, 4, 8, 5),) * len(labels),
        pictures=("2x3:AP+ABwgJ",) * len(labels),
    )
    code = {op.source_line: ">   50 x = torch.flatten(x, 1)" for op in history.operations if op.source_line}
    return replace(passed(name, history=history), measurements=cost, statistics=statistics, code=code)


def audited(name: str = "audited") -> ModelReport:
    """Return the report of a model in which the audit found something."""
    nan = AuditPlace(
        operation="conv2d_2_4", module="features.3", source_line="/zoo/net.py:48, in forward", detail="2 %"
    )
    aux = AuditPlace(module="aux", source_line="/zoo/net.py:12, in forward", detail="2 parameters of 90 elements")
    advice = "Bound what goes in."
    found = (
        AuditFinding(
            rule="not-a-number",
            severity=Severity.HIGH,
            title="An activation holds NaN",
            advice=advice,
            meaning="From here on nothing means anything.",
            places=(nan,),
            num_places=1,
        ),
        AuditFinding(
            rule="unused-module",
            severity=Severity.MEDIUM,
            title="A module is never used",
            meaning="It takes memory.",
            advice="Remove it.",
            places=(aux,) * 20,
            num_places=23,
        ),
    )
    return replace(passed(name), findings=found)


def refuted(name: str = "swapped") -> ModelReport:
    """Return the report of a model whose replay gave other values."""
    failure = Failure(
        operation="conv2d_2_4",
        message="replay gave other values: 3 of 139,968 elements differ, by at most 1.2e-3",
        cause="the model reads a counter that each forward pass raises",
        advice="set model.counter = 0 in the zoo's `prepare`, or mark the model as stateful",
        source_line="zoo/net.py:48, in forward",
    )
    broken = part("replay", 24, "activations", status=Status.FAILED, failures=(failure,), num_failures=14)
    good = passed(name)
    assert good.verdict is not None
    parts = tuple(broken if each.name == "replay" else each for each in good.verdict.parts)
    bad = replace(good.verdict, status=Status.FAILED, parts=parts)
    return replace(good, outcome=Outcome.FAILED, stage=Stage.VALIDATE, verdict=bad)


def raised(name: str = "broken", stage: Stage = Stage.FORWARD) -> ModelReport:
    """Return the report of a model that raised."""
    message = "mat1 and mat2 shapes cannot be multiplied (1x512 and 256x10)"
    error = ErrorRecord(stage=stage, type="RuntimeError", message=message, traceback=TRACEBACK)
    return ModelReport(zoo="torchvision", name=name, outcome=Outcome.FAILED, stage=stage, error=error)


def run(*models: ModelReport) -> RunReport:
    """Return a run over some models."""
    environment = Environment(
        python="3.11.9",
        platform="Linux-6.1-x86_64",
        torch="2.14.1",
        packages={"torchvision": "0.29.1", "numpy": "2.1.0"},
        cpu_capability="AVX512",
        num_threads=2,
        settings={"default dtype": "torch.float32"},
    )
    command = "pytest --lens-zoo torchvision:alexnet --lens-validate --lens-report=lens-report"
    return RunReport(created="2026-11-28T01:02:03Z", command=command, environment=environment, models=models)


HOSTILE = (
    "<script>window.harmed = 1</script>",
    "<img src=x onerror='window.harmed = 2'>",
    "</script><script>window.harmed = 3</script>",
    "\"'&<>\n\x00\x1b\ud800\u202e",
    "]]><!--",
    "javascript:window.harmed=4//",
    "x" * 10_000,
)
"""Names that try to break a page."""


def changed() -> ModelReport:
    """Return the report of a model in which one operation differs from its baseline."""
    finding = Finding(change=Change.LOCAL_CHANGE, operation="features.3/conv2d", message="other values by 1 ulp")
    return replace(passed("changed"), comparison=Comparison(verdict=Change.LOCAL_CHANGE, findings=(finding,)))


def shares(zeros: float) -> ModelReport:
    """Return the report of a model in whose activations this share is zero."""
    report = measured(f"shares-{zeros}")
    assert report.statistics is not None
    assert report.history is not None
    return replace(report, statistics=replace(report.statistics, zeros=(zeros,) * len(report.history.operations)))


def hostile_history() -> HistoryRecord:
    """Return a forward pass whose names try to break a page."""
    net = Sketch(HOSTILE[0])
    x = net.op("input")
    for name in HOSTILE:
        net.module(name, name)
        x = net.op("cos", x, inside=(name,), source_line=name, func_applied_name=name)
        x = net.op("sin", x, inside=(name,), parent_param_addresses=(name,), parent_param_shapes=((5,),))
    net.op("output", x)
    return net.record()
