"""Writes through views: found by their bytes, and searched only where they can overlap."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import example
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from pytest_torchlens import log_forward_pass
from pytest_torchlens.capture import Aliased
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture import record
from pytest_torchlens.capture import write_log
from pytest_torchlens.capture.storage import Extent
from pytest_torchlens.capture.values import Value
from pytest_torchlens.capture.write_log import WriteLog
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.validate import check_recording
from pytest_torchlens.validate import validate
from tests.models import Function

BYTES = 2048
INDICES = torch.arange(BYTES)
ROWS = 60


def any_view(draw, base):
    """Return a random view: rows, columns, blocks, runs, every nth, and steps that overlap each other."""
    kind = draw.randrange(6)
    if kind == 0:
        return base.view(32, 64)[draw.randrange(32)]
    if kind == 1:
        return base.view(32, 64)[:, draw.randrange(64)]
    if kind == 2:
        return base.view(8, 64, 4)[:, draw.randrange(64)]
    if kind == 3:
        start = draw.randrange(BYTES)
        return base[start : start + draw.randrange(1, 200)]
    if kind == 4:
        return base[draw.randrange(50) :: draw.randrange(2, 70)]
    sizes, steps = (draw.randrange(1, 4), draw.randrange(1, 5)), (draw.randrange(9), draw.randrange(9))
    return base.as_strided(sizes, steps, draw.randrange(1000))


def bytes_of(view):
    return set(INDICES.as_strided(view.shape, view.stride(), view.storage_offset()).flatten().tolist())


@pytest.mark.parametrize("seed", range(20))
def test_the_log_finds_the_writes_that_a_look_at_every_byte_finds(seed):
    draw, base = random.Random(seed), torch.zeros(BYTES, dtype=torch.uint8)
    log, plain = WriteLog(), []
    for number in range(100):
        written = any_view(draw, base)
        extent, value = Extent.of(written), Value(0, number, 0, written)
        log.add(number, value, extent)
        hit = bytes_of(written)
        plain = [old for old in plain if old[3] != extent and not (extent.dense and old[2] <= hit)]
        plain.append((number, value, hit, extent))
        read, since = any_view(draw, base), draw.randrange(-1, number + 1)
        looked_at = bytes_of(read)
        assert log.since(since, Extent.of(read)) == [old[1] for old in plain if old[0] > since and old[2] & looked_at]


def rows(x):
    t = torch.zeros(ROWS, 2)
    for row in range(ROWS):
        t[row].add_(x)
    return t + 0


def copied_rows(x):
    t = torch.zeros(ROWS, 2)
    for row in range(ROWS):
        t[row].copy_(x)
    return t + 0


def columns(x):
    t = torch.zeros(2, ROWS)
    for column in range(ROWS):
        t[:, column].add_(x)
    return t + 0


def rows_twice(x):
    t = torch.zeros(ROWS // 2, 2)
    for row in [*range(ROWS // 2), *range(ROWS // 2)]:
        t[row].add_(x)
    return t + 0


LOOPS = pytest.mark.parametrize("loop", [rows, copied_rows, columns, rows_twice])


@LOOPS
def test_a_view_depends_on_what_shows_in_it_and_the_base_on_every_write(loop):
    with torch.no_grad():
        history = ModelHistory(record(Function(loop), (torch.ones(2),)))
        assert validate(Function(loop), (torch.ones(2),)).verdict
    last = [op for op in history.operations if op.layer_type == "add"][-1]
    shown = ROWS // 2 if loop is rows_twice else ROWS
    assert sum(edge.through_write for edge in last.edges) == shown
    again = shown if loop is rows_twice else 0
    through_writes = sum(edge.through_write for op in history.operations for edge in op.edges)
    assert through_writes == shown + again


@LOOPS
def test_writes_through_views_are_not_all_looked_at_again_for_each(loop, monkeypatch):
    looks = []
    overlap = write_log.overlap
    monkeypatch.setattr(write_log, "overlap", lambda *extents: looks.append(extents) or overlap(*extents))
    with torch.no_grad():
        recording = record(Function(loop), (torch.ones(2),))
        for call in recording.calls:
            _ = [getattr(read, "writes", ()) for read in call.args]
    assert len(looks) < 10 * ROWS


def test_a_view_taken_while_a_write_is_under_way_elsewhere_sees_what_it_saw():
    """A call's reads stay those of its time, however late they are looked up."""

    def forward(x):
        t = torch.zeros(3)
        t[0].add_(1)
        total = t.sum()
        t[1].add_(1)
        return total, t.sum()

    with torch.no_grad():
        recording = record(Function(forward), (torch.ones(1),))
    first, second = [call.args[0] for call in recording.calls if call.info.name == "sum"]
    assert [write.call for write in second.writes] == [2, 5]
    assert [write.call for write in first.writes] == [2]


def test_reductions_into_their_own_memory_read_all_of_it():
    def forward(x):
        t = x * 1
        t[2].add_(1)
        torch.sum(t, dim=0, keepdim=True, out=t[:1])
        return t[:1] + 0

    with torch.no_grad():
        recording = record(Function(forward), (torch.ones(3),))
        assert validate(Function(forward), (torch.ones(3),)).verdict
    total = next(call for call in recording.calls if call.info.name == "sum")
    assert [write.call for write in total.args[0].writes] == [2]


def test_a_write_that_a_view_is_recorded_without_is_found_by_the_replay():
    def forward(x):
        t = x * 1
        t[1].add_(1)
        return t[1:] * 2

    with torch.no_grad():
        recording = record(Function(forward), (torch.ones(3),))
        view = recording.calls[3]
        assert view.info.name == "__getitem__"
        view.args = (view.args[0].value, *view.args[1:])
        replay = {part.name: part for part in check_recording(recording, ModelHistory(recording))}["replay"]
    assert [(failure.operation, failure.cause) for failure in replay.failures] == [
        ("getitem_2_4", "it was overwritten in place by add_1_3")
    ]


def test_a_view_that_is_recorded_with_a_write_to_other_bytes_is_found_by_the_replay():
    def forward(x):
        t = x * 1
        t[1].add_(1)
        return (t + 0)[:1], t[:1] * 2

    with torch.no_grad():
        recording = record(Function(forward), (torch.ones(3),))
        whole, view = recording.calls[3], recording.calls[5]
        view.args = (whole.args[0], *view.args[1:])
        replay = {part.name: part for part in check_recording(recording, ModelHistory(recording))}["replay"]
    assert [failure.operation for failure in replay.failures] == ["getitem_3_6"]


@st.composite
def steps_over_one_memory(draw):
    """Return steps: take a view of a view (False), or write an input to one (True), each of the n-th view."""
    place = st.tuples(st.integers(0, 10), st.integers(0, 6))
    return draw(st.lists(st.tuples(st.booleans(), place), min_size=3, max_size=12))


VIEWS = (
    lambda t: t[: max(1, len(t) // 2)],
    lambda t: t[-1:],
    lambda t: t[::2],
    lambda t: t.view(t.shape),
    lambda t: t.unsqueeze(0)[0],
    lambda t: t[1:] if len(t) > 1 else t[:],
    lambda t: t.flatten(),  # returns its argument itself
)


class StepsOverOneMemory(torch.nn.Module):
    """Runs the steps over 8 numbers; notes which inputs each view must depend on, from the bytes alone."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def forward(self, *inputs):
        views = [torch.zeros(8)]
        places = [torch.arange(8)]
        reached = [frozenset()] * 8
        for number, (writes, (of, kind)) in enumerate(self.steps):
            at = of % len(views)
            if not writes:
                views.append(VIEWS[kind](views[at]))
                places.append(VIEWS[kind](places[at]))
                continue
            views[at].copy_(inputs[number])
            read = frozenset().union(*(reached[place] for place in places[at].tolist()), {number})
            for place in places[at].tolist():
                reached[place] = read
        self.expected = [frozenset().union(*(reached[place] for place in each.tolist())) for each in places]
        return [view * 2 for view in views[1:]]


@settings(max_examples=150, deadline=None)
@given(steps_over_one_memory())
@example([(True, (0, 0)), (False, (0, 3)), (False, (0, 1)), (True, (2, 0)), (False, (1, 6)), (False, (3, 0))])
def test_a_view_depends_on_the_inputs_whose_writes_reach_its_bytes_and_on_no_others(steps):
    model = StepsOverOneMemory(steps)
    with torch.no_grad():
        history = log_forward_pass(model, tuple(torch.rand(1) for _ in steps))
        for label, expected in zip(history.output_layers, model.expected[1:], strict=True):
            reached = {parent for parent in ancestors(history, label) if parent in history.input_layers}
            assert {history.input_layers.index(parent) for parent in reached} == expected
        replay = {part.name: part for part in check_recording(history.recording, history)}["replay"]
    assert replay.failures == ()


def ancestors(history, label):
    found, waiting = set(), [label]
    while waiting:
        for parent in history[waiting.pop()].parent_layers:
            if parent not in found:
                found.add(parent)
                waiting.append(parent)
    return found


def past_a_view(x):
    packed = torch.zeros(2, 4)
    packed[:, :2].copy_(x)
    packed[:, 2:].copy_(torch.ones(2, 2))
    return packed.view(8)[2:4] * 2


@pytest.mark.parametrize("damage", ["base", "write", "no view"])
def test_a_wrong_base_of_a_part_of_a_view_is_found_by_the_replay(damage):
    with torch.no_grad():
        recording = record(Function(past_a_view), (torch.rand(2, 2),))
        part = recording.calls[-2]
        read = part.args[0]
        history = ModelHistory(recording)
        wrong = {
            "base": Aliased(read.value, read.writes, base=recording.sources[0].value),
            "write": Aliased(read.value, read.writes[1:], base=read.base),
            "no view": Aliased(recording.calls[0].outputs[0], (), base=recording.sources[0].value),
        }
        part.args = (wrong[damage], *part.args[1:])
        replay = {part.name: part for part in check_recording(recording, history)}["replay"]
    assert replay.failures[0].operation == history.label(recording.calls.index(part))


def test_what_is_kept_of_views_is_their_size_and_not_that_of_their_base():
    def forward(x):
        t = torch.zeros(100, 1000) + x
        for row in range(100):
            t[row].add_(row)
        return t + 0

    with torch.no_grad():
        recording = record(Function(forward), (torch.ones(1),), keep="all")
    kept = [value.tensor for call in recording.calls for value in call.outputs]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in kept}
    assert sum(storages.values()) < 1.25 * sum(tensor.nbytes for tensor in kept)  # the last row holds the base
    saved = [call.outputs[0] for call in recording.calls if call.info.name == "add_"]
    assert [value.tensor.mean().item() for value in saved] == [1.0 + row for row in range(100)]
    assert all(fingerprint(value.tensor) == value.fingerprint for value in saved)


def test_kept_views_of_one_memory_stay_aliases_of_each_other():
    def forward(x):
        t = x * 1
        t.add_(1)
        first, rest, none = t[:40], t[35:].view(5, 13), t[100:]
        t.mul_(0)
        return first + 0, rest + 0, none

    with torch.no_grad():
        recording = record(Function(forward), (torch.arange(100.0),), keep="all")
    kept = [call.outputs[0] for call in recording.calls]
    assert all(fingerprint(value.tensor) == value.fingerprint for value in kept)
    first, rest = (value.tensor for value in kept if tuple(value.shape) in ((40,), (5, 13)) and value.call < 5)
    assert first[35:].data_ptr() == rest.data_ptr()
    assert rest.is_contiguous()
