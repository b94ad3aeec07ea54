from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from pytest_torchlens.baseline.compare import compare
from pytest_torchlens.baseline.conditions import ConditionError
from pytest_torchlens.baseline.conditions import Conditions
from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.baseline.snapshot_file import parse_snapshot
from pytest_torchlens.baseline.snapshot_file import to_text
from pytest_torchlens.baseline.store import Store
from pytest_torchlens.records import Change
from tests.baseline.samples import Small
from tests.baseline.samples import an_input
from tests.baseline.samples import filled
from tests.baseline.samples import snapshot_of

COSTS = {"flops": "flops", "operations": "operations", "parameters": "parameters", "peak": "peak_bytes"}


@pytest.fixture(scope="module")
def small() -> Snapshot:
    return snapshot_of(filled(Small()), an_input(2, 3, 8, 8))


def _with(snapshot: Snapshot, name: str, factor: float) -> Snapshot:
    return replace(snapshot, totals={**snapshot.totals, name: round(snapshot.totals[name] * factor)})


def test_what_a_pass_costs_is_counted():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    found = snapshot_of(model, torch.ones(3, 4)).totals
    # two multiply-adds a weight and row; at most the outputs of two neighbours live at a time
    assert found == {"flops": 2 * 3 * (32 + 16), "operations": 3, "parameters": 58, "peak_bytes": 4 * 3 * (8 + 8)}


@pytest.mark.parametrize(("cost", "name"), COSTS.items())
def test_a_larger_cost_is_told_and_fails_where_a_condition_names_it(small, cost, name):
    larger = _with(small, name, 2)
    found = compare(small, larger)
    assert (found.verdict, found.fails) == (Change.LARGER, False)
    old, new = small.totals[name], larger.totals[name]
    assert [f.message for f in found.findings] == [f"{name.replace('_', ' ')} {old:,} → {new:,} (+100 %)"]
    assert compare(larger, small).verdict is Change.IDENTICAL
    for text, verdict, fails in (
        (f"{cost}:+50%", Change.LARGER, True),
        (f"{cost}:+150%", Change.IDENTICAL, False),
        ("larger", Change.LARGER, True),
        ("structure", Change.LARGER, False),
    ):
        found = compare(small, larger, Conditions.of([text]))
        assert (found.verdict, found.fails) == (verdict, fails), text


def test_the_first_byte_more_is_larger(small):
    more = replace(small, totals={name: size + 1 for name, size in small.totals.items()})
    assert len(compare(small, more).findings) == len(COSTS)


def test_a_wider_layer_costs_more(small):
    wider = Small()
    wider.mix, wider.head = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 8)
    found = compare(small, snapshot_of(filled(wider), an_input(2, 3, 8, 8)))
    told = [finding.message.split(" ")[0] for finding in found.findings if finding.change is Change.LARGER]
    assert told == ["flops", "parameters"]


@pytest.mark.parametrize(
    ("conditions", "seconds", "verdict", "fails"),
    [
        ("time:+20%", (0.010, 0.013), Change.SLOWER, True),
        ("time:+20%", (0.010, 0.0119), Change.IDENTICAL, False),
        ("time:+20%", (0.010, 0.005), Change.IDENTICAL, False),
        ("time:+20%", None, Change.IDENTICAL, False),
        ("", (0.010, 0.013), Change.IDENTICAL, False),  # advisory: told where it is asked for alone
    ],
)
def test_slower_is_told_where_a_condition_names_time(small, conditions, seconds, verdict, fails):
    found = compare(small, small, Conditions.of([conditions]), seconds=seconds)
    assert (found.verdict, found.fails) == (verdict, fails)
    if verdict is Change.SLOWER:
        assert [f.message for f in found.findings] == [
            "the fastest pass took 10 ms and takes 13 ms on this machine (+30 %)"
        ]


def test_a_cost_is_the_whole_models():
    with pytest.raises(ConditionError, match="expected 'flops' without '@conv', as it is the whole model's, got "):
        Conditions.of(["flops:+10%@conv"])


def _proved(snapshot: Snapshot, **proof: str) -> Snapshot:
    return replace(snapshot, measured={name: replace(block, proof=proof) for name, block in snapshot.measured.items()})


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"replay": "passed"}, {"replay": "passed-with-tolerance"}, ["replay passed → passed-with-tolerance"]),
        ({"perturbation": "passed"}, {"perturbation": "not-applicable"}, ["perturbation passed → not-applicable"]),
        ({"replay": "passed"}, {"replay": "failed"}, ["replay passed → failed"]),  # repro compares such a pass
        ({"replay": "passed-with-tolerance"}, {"replay": "passed"}, []),
        ({"replay": "passed"}, {}, []),  # --lens-parts left it out
        ({}, {"replay": "passed-with-tolerance"}, []),
    ],
)
def test_a_weaker_proof_is_told(small, before, after, expected):
    found = compare(_proved(small, **before), _proved(small, **after))
    assert [f.message for f in found.findings] == [f"less could be proved: {words}" for words in expected]
    assert (found.verdict, found.fails) == (Change.UNSTABLE if expected else Change.IDENTICAL, False)


def test_costs_and_proof_come_back_from_the_text(small):
    proved = _proved(small, replay="passed", observer="not-applicable")
    found = parse_snapshot(to_text(proved))
    assert found.totals == small.totals
    assert [block.proof for block in found.measured.values()] == [{"replay": "passed", "observer": "not-applicable"}]


def test_a_proof_that_is_none_is_refused(small):
    with pytest.raises(ValueError, match=r"'replay': expected one of passed, .*, got 'failed'"):
        parse_snapshot(to_text(_proved(small, replay="failed")))


def test_a_file_without_them_is_still_read_and_compared(small):
    raw = json.loads(to_text(_proved(small, replay="passed")))
    del raw["totals"]["flops"]
    for block in raw["measured"].values():
        del block["proof"]
    old = parse_snapshot(json.dumps(raw))
    assert compare(old, _proved(small, replay="passed-with-tolerance")).verdict is Change.IDENTICAL


def test_times_stay_on_this_machine_and_begin_anew_on_another(small, tmp_path):
    store = Store.of(tmp_path)
    store.accept("zoo/small", small)
    committed = store.path("zoo/small").read_bytes()
    store.note_time("zoo/small", "this", 0.25)
    times = store.note_time("zoo/small", "this", 0.5)
    assert (times.baseline, times.last) == (0.25, 0.5)
    store.accept("zoo/small", small)
    assert store.times_of("zoo/small") == replace(times, baseline=0.5)
    assert store.path("zoo/small").read_bytes() == committed
    assert (tmp_path / ".lens" / ".gitignore").exists()
    times = store.note_time("zoo/small", "other", 0.125)
    assert (times.machine, times.baseline, times.last) == ("other", 0.125, 0.125)


@pytest.mark.parametrize("text", ["", "{}", "null", '{"machine": "x", "baseline": -1, "last": 1}', "\ud800"])
def test_a_damaged_file_of_times_is_written_anew(text, tmp_path):
    store = Store.of(tmp_path)
    store.note_time("zoo/small", "this", 0.25)
    (file,) = tmp_path.rglob("small.json")
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    assert store.times_of("zoo/small") is None
    assert store.note_time("zoo/small", "this", 0.5).baseline == 0.5
