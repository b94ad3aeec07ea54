"""Each limit of the recorder on both sides: what just passes, and what just fails."""

from __future__ import annotations

import csv
import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pytest_torchlens.recorder import ExpectationError
from pytest_torchlens.recorder import Recorder
from pytest_torchlens.recorder.recorder_options import RecorderOptions
from pytest_torchlens.recorder.ring import Ring
from pytest_torchlens.recorder.statistics import TensorStatistics
from pytest_torchlens.recorder.statistics import picture_sample
from pytest_torchlens.recorder.statistics import spread_sample
from pytest_torchlens.recorder.steps import Clock
from pytest_torchlens.recorder.worker.files import WholeFile
from pytest_torchlens.recorder.worker.pixels import Channels
from pytest_torchlens.recorder.worker.pixels import Heatmap
from pytest_torchlens.recorder.worker.pixels import Histogram
from pytest_torchlens.recorder.worker.pixels import new_view
from pytest_torchlens.recorder.worker.pixels import tile_grid
from pytest_torchlens.recorder.worker.tables import Table
from tests.recorder import callbacks


def fails_at(values: list[float], *, name: str = "loss", window: int = 20, **expected: Any) -> int | None:
    """Return the step at which a number that is told in each step violates an expectation; None if it never does."""
    recorder = Recorder()
    recorder.expect(window=window, **expected)
    try:
        for value in values:
            recorder.step(**{name: value})
    except ExpectationError as error:
        return error.step
    finally:
        recorder.abandon()
    return None


@pytest.mark.parametrize(
    ("wanted", "inside", "outside"),
    [
        ("1..3", (1.0, 3.0), (math.nextafter(1, 0), math.nextafter(3, 4))),
        ("2..2", (2.0,), (math.nextafter(2, 0), math.nextafter(2, 3))),
        ("<3", (math.nextafter(3, 0),), (3.0,)),
        ("<=3", (3.0,), (math.nextafter(3, 4),)),
        (">3", (math.nextafter(3, 4),), (3.0,)),
        (">=3", (3.0,), (math.nextafter(3, 0),)),
        ("<50%", (0.49,), (0.5,)),
    ],
)
def test_the_ends_of_a_range(wanted: str, inside: tuple[float, ...], outside: tuple[float, ...]):
    assert [fails_at([value], loss=wanted) for value in inside] == [None] * len(inside)
    assert [fails_at([value], loss=wanted) for value in outside] == [0] * len(outside)


def gradient_of(norms: list[float], window: int = 20) -> int | None:
    """Return the step at which a gradient of these norms grows a hundredfold beyond its median."""
    recorder = Recorder()
    weight = torch.ones(1, requires_grad=True)
    recorder.expect(grad_growth="<100", window=window)
    try:
        for norm in norms:
            product = weight * 1.0
            recorder.track_tensor("x", product)
            product.backward(torch.tensor([norm]))
            recorder.step()
    except ExpectationError as error:
        return error.step
    finally:
        recorder.abandon()
    return None


def test_growth_is_judged_from_five_norms_on():
    assert gradient_of([1.0] * 4 + [1000.0]) is None
    assert gradient_of([1.0] * 5 + [1000.0]) == 5


def test_the_median_is_that_of_the_window():
    assert gradient_of([1.0] * 12 + [50.0] * 8 + [1000.0], window=20) == 20
    assert gradient_of([1.0] * 12 + [50.0] * 8 + [1000.0], window=8) is None


def still(norms: list[float], window: int) -> int | None:
    """Return the step at which a parameter has stood still for as long as the window."""
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    recorder = Recorder()
    recorder.track_parameters(model)
    recorder.expect(parameters_move=True, window=window)
    try:
        for norm in norms:
            model.weight.grad = torch.full((1, 1), norm)
            optimizer.step()
    except ExpectationError as error:
        return error.step
    finally:
        recorder.abandon()
    return None


def test_a_parameter_stands_still_once_it_did_so_in_as_many_steps_as_the_window():
    assert still([0.0, 0.0], window=3) is None
    assert still([0.0, 0.0, 0.0], window=3) == 2
    assert still([0.0, 0.0, 1.0, 0.0, 0.0], window=3) is None


@pytest.mark.parametrize(
    ("losses", "fails"),
    [
        ([2.0, 1.0], False),
        ([1.0, 2.0], True),
        ([1.0, 1.0], True),
        ([4.0, 1.0, 9.0, 9.0, 9.0, 9.0, 9.0, 3.0], True),  # quarters of two: 2.5 and 6
        ([9.0, 9.0, 1.0, 1.0, 8.0, 8.0, 8.0, 8.0], False),  # quarters of two: 9 and 8; halves would be 5 and 8
    ],
)
def test_losses_decrease_where_the_last_quarter_is_below_the_first(losses: list[float], fails: bool):
    recorder = Recorder()
    recorder.expect(loss_decreases=True)
    for loss in losses:
        recorder.step(loss=loss)
    if not fails:
        recorder.close()
        return
    with pytest.raises(ExpectationError, match="losses, the first"):
        recorder.close()


def test_one_loss_does_not_decrease():
    recorder = Recorder()
    recorder.expect(loss_decreases=True)
    recorder.step(loss=1.0)
    with pytest.raises(ExpectationError, match="had nothing to check"):
        recorder.close()


class Zeros(nn.Module):
    """Gives some numbers in order, one tensor a call."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        super().__init__()
        self.tensors = list(tensors)
        self.layer = nn.Identity()

    def forward(self) -> torch.Tensor:
        return self.layer(self.tensors.pop(0))


def dead_shares(*tensors: torch.Tensor, window: int = 1) -> list[float]:
    """Return the share of dead units after each step; NaN where it is not measured."""
    model = Zeros(*tensors)
    with Recorder(every=1, no_grad=True) as recorder:
        recorder.track_layers(model, "layer")
        recorder.expect(dead_units="<99%", window=window)
        recorder.expect(no_nan=True)
        for _ in tensors:
            model()
            recorder.step()
        shares: list[float] = recorder.series["layer"].dead.tolist()
        recorder.abandon()
    return shares


ROWS = torch.tensor([[0.0, 1.0, 1.0, 0.0], [0.0, 1.0, 1.0, 1.0]])
SEQUENCES = torch.ones(2, 3, 4).index_fill(2, torch.tensor([0]), 0.0)
IMAGES = torch.ones(2, 4, 3, 3).index_fill(1, torch.tensor([0]), 0.0)


@pytest.mark.parametrize("tensor", [ROWS, SEQUENCES, IMAGES], ids=["rows", "sequences", "images"])
def test_a_unit_is_a_channel_of_images_and_the_last_dimension_of_all_else(tensor: torch.Tensor):
    assert dead_shares(tensor) == [1 / 4]


def test_a_vector_has_no_units():
    recorder = Recorder(every=1, no_grad=True)
    model = Zeros(torch.zeros(4))
    recorder.track_layers(model, "layer")
    recorder.expect(dead_units="<1%", window=1)
    model()
    recorder.step()
    assert math.isnan(recorder.series["layer"].dead[0])
    recorder.abandon()


def test_a_unit_is_dead_once_it_was_zero_for_the_whole_window():
    assert dead_shares(ROWS, ROWS, ROWS, window=2) == [0.0, 1 / 4, 1 / 4]
    assert dead_shares(ROWS, ROWS + 1, ROWS, window=2) == [0.0, 0.0, 0.0]


def test_a_step_that_the_loss_scaler_skips_is_no_failure_and_any_other_is():
    def run(scaler: Any) -> int | None:
        recorder = Recorder(scaler=scaler)
        recorder.expect(no_nan=True)
        weight = torch.ones(1, requires_grad=True)
        product = weight * 1.0
        recorder.track_tensor("x", product)
        try:
            product.backward(torch.tensor([math.inf]))
            recorder.step()
        except ExpectationError as error:
            return error.step
        finally:
            recorder.abandon()
        return None

    class Scaler:
        def get_scale(self) -> float:
            return 1024.0

    assert run(Scaler()) is None
    assert run(None) == 0


def test_numbers_of_a_scaled_gradient_are_divided_by_the_scale():
    class Scaler:
        def get_scale(self) -> float:
            return 8.0

    with Recorder(every=1, scaler=Scaler()) as recorder:
        weight = torch.ones(2, requires_grad=True)
        product = weight * 1.0
        recorder.track_tensor("x", product)
        product.backward(torch.tensor([8.0, 16.0]))
        recorder.step()
    assert (recorder.series["x.grad"].max[0], recorder.series["x.grad"].min[0]) == (2.0, 1.0)


def test_the_first_of_a_step_is_drawn_divided_by_the_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Scaler:
        def get_scale(self) -> float:
            return 8.0

    monkeypatch.chdir(tmp_path)
    weight = torch.ones(2, requires_grad=True)
    with Recorder(tmp_path / "out", every=1, videos=False, page=False, scaler=Scaler()) as recorder:
        for factor in (1.0, 3.0):  # twice in one step
            product = weight * factor
            recorder.track_tensor("x", product, callback=callbacks.append)
            product.backward(torch.tensor([8.0, 16.0]))
        recorder.step()
    seen = Path("seen.txt").read_text(encoding="utf-8").splitlines()
    assert seen == ["x 0 1.0 1.0", "x.grad 0 1.0 2.0"]
    assert recorder.series["x"].max.tolist() == [1.0, 3.0]


def recorded_steps(count: int, **options: Any) -> list[int]:
    clock = Clock(RecorderOptions.of(**options))
    steps = []
    for _ in range(count):
        if clock.is_recorded:
            steps.append(clock.step)
        clock.advance()
    return steps


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"every": 3}, [0, 3, 6, 9]),
        ({"every": 3, "start": 2}, [2, 5, 8]),
        ({"every": 1, "start": 2, "until": 4}, [2, 3]),
        ({"every": 2, "until": 5}, [0, 2, 4]),
        ({"every": 2, "until": 4}, [0, 2]),
        ({"every": 1, "start": 9, "until": 10}, [9]),
    ],
    ids=str,
)
def test_the_first_and_the_last_step_that_is_recorded(options: dict[str, int], steps: list[int]):
    assert recorded_steps(10, **options) == steps


@pytest.mark.parametrize(("passed", "steps"), [(0.24, [0]), (0.26, [0, 1])])
def test_so_many_steps_a_second(passed: float, steps: list[int], monkeypatch: pytest.MonkeyPatch):
    times = iter([100.0, 100.0 + passed])
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    clock = Clock(RecorderOptions.of(every=1, per_second=4))
    found = [0] * clock.is_recorded
    clock.advance()
    assert found + [1] * clock.is_recorded == steps


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("frames_per_second", 1, 240),
        ("slots", 4, 1 << 20),
        ("slot_values", 256, 1 << 28),
        ("workers", 1, 64),
        ("every", 1, None),
        ("start", 0, None),
        ("max_frames", 1, None),
    ],
)
def test_the_least_and_the_most_of_an_option(name: str, least: int, most: int | None):
    for allowed in (least, *([most] if most is not None else [])):
        assert getattr(RecorderOptions.of(**{name: allowed}), name) == allowed
    for refused in (least - 1, *([most + 1] if most is not None else [])):
        with pytest.raises(ValueError, match=f"{name}: expected a whole number"):
            RecorderOptions.of(**{name: refused})


def test_an_end_comes_after_the_start():
    assert RecorderOptions.of(start=5, until=6).until == 6
    with pytest.raises(ValueError, match="until: expected a whole number of at least 6, got 5"):
        RecorderOptions.of(start=5, until=5)


def test_the_deviation_is_that_of_a_sample():
    assert TensorStatistics(torch.tensor([1.0, 3.0])).statistics().std == pytest.approx(math.sqrt(2))
    assert TensorStatistics(torch.tensor([1.0, 3.0, math.nan])).statistics().std == pytest.approx(math.sqrt(2))


def test_a_sample_is_all_up_to_its_limit_and_a_part_beyond():
    assert spread_sample(torch.ones(64), 64).numel() == 64
    assert spread_sample(torch.ones(65), 64).numel() == 33
    assert spread_sample(torch.ones(65_536)).numel() == 65_536
    assert spread_sample(torch.ones(65_537)).numel() == 32_769


def test_of_a_batch_of_three_dimensions_one_sample_is_drawn():
    assert picture_sample(torch.ones(5, 4), 100, is_batch=True).shape == (5, 4)
    assert picture_sample(torch.ones(5, 4, 3), 100, is_batch=True).shape == (4, 3)
    assert picture_sample(torch.ones(5, 4, 3), 100, is_batch=False).shape == (5, 4, 3)


@pytest.mark.parametrize(
    ("shape", "view"),
    [((5,), Histogram), ((5, 1), Histogram), ((1, 5), Histogram), ((2, 2), Heatmap), ((3, 2, 2), Channels)],
    ids=str,
)
def test_the_view_fits_the_shape(shape: tuple[int, ...], view: type):
    assert type(new_view("auto", "output", shape)) is view


def test_tiles_stand_in_about_the_shape_asked_for_and_never_beside_the_last():
    tiles = torch.zeros(3, 2, 2, 3, dtype=torch.uint8).numpy()
    assert tile_grid(tiles, 1.0).shape == (6, 6, 3)  # two columns and two lines of 3 × 3
    assert tile_grid(tiles, 100.0).shape == (3, 9, 3)
    assert tile_grid(tiles, 0.01).shape == (9, 3, 3)


def test_the_table_has_nine_digits_which_tell_all_float32_numbers_apart(tmp_path: Path):
    table = Table(tmp_path / "t.csv")
    number = 1.00000012
    table.write([("x", "output", (0, 1, 1, number, *[math.nan] * 4, 0.5, 0, math.nan, math.nan))])
    table.close()
    with (tmp_path / "t.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["mean"], row["step"], row["std"]) == ("1.00000012", "0", "")


class Halting:
    """A file that takes two bytes at a time, and after some writes no more."""

    def __init__(self, file: Any, writes: int) -> None:
        self.file, self.writes = file, writes

    def write(self, data: bytes) -> int:
        if not self.writes:
            raise OSError("the disk is full")
        self.writes -= 1
        return int(self.file.write(data[:2]))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def test_what_is_written_by_pieces_is_whole_or_not_there(tmp_path: Path):
    file = WholeFile(tmp_path / "f")
    file._file = Halting(file._file, writes=5)  # type: ignore[assignment]
    file.append(b"abcdef")
    with pytest.raises(OSError, match="full"):
        file.append(b"ghijkl")
    file.close()
    assert (tmp_path / "f").read_bytes() == b"abcdef"


def test_a_ring_is_full_with_as_many_slots_as_it_has_and_goes_round():
    ring = Ring(slots=2, values=4)
    free = []
    for number in range(3):
        free.append(ring.num_free)
        if not ring.num_free:
            ring.release()
        ring.next_slot()[:] = number
        assert ring.fill() == number
    assert free == [2, 1, 0]
    assert [float(ring.read(number, 1)[0]) for number in (1, 2)] == [1.0, 2.0]
    ring.close()


def test_an_update_is_related_to_the_weight_before_it():
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(2.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with Recorder(every=1) as recorder:
        recorder.track_parameters(model)
        model.weight.grad = torch.full((1, 1), 0.5)
        optimizer.step()
    assert recorder.series["weight.update"].ratio.tolist() == [0.25]


def test_the_ratio_of_an_update_is_judged_of_weights_alone():
    model = nn.ParameterDict({"scale": nn.Parameter(torch.ones(3))})
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    recorder = Recorder()
    recorder.track_parameters(model)
    recorder.expect(update_ratio="<1e-9")
    model["scale"].grad = torch.ones(3)
    optimizer.step()
    with pytest.raises(ExpectationError, match="no update of a weight"):
        recorder.close()
