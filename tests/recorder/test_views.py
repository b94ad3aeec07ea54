"""What is drawn, without a process beside: pixels that mean something."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

Image = pytest.importorskip("PIL.Image")
from pytest_torchlens.recorder.statistics import picture_sample  # noqa: E402
from pytest_torchlens.recorder.statistics import spread_sample  # noqa: E402
from pytest_torchlens.recorder.worker.painter import Painter  # noqa: E402
from pytest_torchlens.recorder.worker.pixels import BAR  # noqa: E402
from pytest_torchlens.recorder.worker.pixels import NOT_A_NUMBER  # noqa: E402
from pytest_torchlens.recorder.worker.pixels import new_view  # noqa: E402
from pytest_torchlens.recorder.worker.video import WebP  # noqa: E402


def draw(values, view: str = "auto", kind: str = "parameter", size=(200, 100)) -> np.ndarray:
    values = np.asarray(values, np.float32)
    return new_view(view, kind, values.shape).draw(values, *size)


def test_a_heat_map_is_red_above_zero_blue_below_and_marks_what_is_no_number():
    pixels = draw([[1, -1], [np.nan, 0]])
    assert pixels.shape == (100, 200, 3)
    red, blue = pixels[10, 10].astype(int), pixels[10, 190].astype(int)
    assert red[0] > red[2]
    assert blue[2] > blue[0]
    assert tuple(pixels[90, 10]) == NOT_A_NUMBER
    assert pixels[90, 190].min() > 240


def test_numbers_that_are_not_negative_go_from_dark_to_light():
    pixels = draw([[0, 1], [2, 3]]).astype(int).sum(axis=2)
    assert pixels[10, 10] < pixels[10, 190] < pixels[90, 10] < pixels[90, 190]


def test_what_becomes_small_is_still_seen_and_brighter_by_and_by():
    view = new_view("auto", "output gradient", (2, 2))
    contrasts = []
    for size in (1.0, 0.5, 1e-3, *(10 * [1e-3]), 0.0, 1e-3):
        pixels = view.draw(np.array([[size, -size], [0, 0]], np.float32), 100, 100).astype(int)
        contrasts.append(pixels[10, 10][0] - pixels[10, 10][2])
        assert abs(pixels[90, 10][0] - pixels[90, 10][2]) < 5
    assert contrasts[1] > 50
    assert 10 < contrasts[2] < contrasts[12]
    assert contrasts[13] < 5
    assert contrasts[14] > 50


def test_channels_are_tiles_of_one_scale():
    pixels = draw(np.stack([np.full((4, 4), level) for level in (0.0, 1.0, 2.0, 3.0)]), size=(100, 100)).astype(int)
    sums = [pixels[y, x].sum() for y, x in ((20, 20), (20, 70), (70, 20), (70, 70))]
    assert sums == sorted(sums)
    assert len(set(sums)) == 4


def test_a_histogram_is_high_where_the_values_are():
    values = np.concatenate([np.full(900, 0.1), np.full(100, 0.9), [0.0, 1.0]])
    heights = (draw(values) == BAR).all(axis=2).sum(axis=0)
    assert heights[20:26].max() > heights[195:].max() > heights[100] == 0


def test_a_projection_tells_groups_apart_and_keeps_its_directions():
    rng = np.random.default_rng(0)
    centre = rng.standard_normal(30) * 10
    rows = np.concatenate([rng.standard_normal((20, 30)) + centre, rng.standard_normal((20, 30)) - centre])
    view = new_view("pca", "output", rows.shape)
    first = view.draw(rows.astype(np.float32), 200, 100)
    again = view.draw((rows * 0.999).astype(np.float32), 200, 100)
    lit = [(picture.astype(int).sum(axis=2) > 300).sum(axis=0) for picture in (first, again)]
    assert lit[0][:60].sum() > 0
    assert lit[0][140:].sum() > 0
    assert lit[0][80:120].sum() == 0
    assert np.abs(first.astype(int) - again).mean() < 3
    assert "100%" not in view.caption()


def test_a_square_takes_any_shape():
    pixels = draw(np.arange(2 * 3 * 4 * 5), "square", size=(100, 100)).astype(int).sum(axis=2)
    assert pixels[5, 5] < pixels[50, 50] < pixels[85, 50]


@pytest.mark.parametrize("view", ["auto", "heatmap", "channels", "histogram", "pca", "square"])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (1, 1), (3, 1), (1, 3), (2, 3, 4), (1, 2, 3, 4, 5)], ids=str)
@pytest.mark.parametrize("value", [0.0, 1e38, np.nan, -np.inf, 3e38])
def test_every_view_draws_every_shape(view: str, shape: tuple, value: float):
    frame = Painter("name", "output", view, (160, 160)).paint(np.full(shape, value, np.float32), said(shape))
    assert frame.size == (160, 160)


def said(shape) -> dict:
    facts = {"mean": 0.0, "std": 1.0, "min": -1.0, "max": 1.0, "nans": 3}
    return {"step": 12, "facts": facts, "full": list(shape), "dtype": "float32", "note": "epoch 3"}


@pytest.mark.parametrize("part", [(0, 18, 0, 200), (0, 18, 400, 480), (18, 50, 0, 300), (340, 360, 0, 200)])
def test_a_frame_says_name_step_statistics_and_range(part: tuple[int, int, int, int]):
    top, bottom, left, right = part
    frame = np.asarray(Painter("features.0.grad", "output", "auto", (480, 360)).paint(np.eye(3), said((3, 3))))
    assert (frame[top:bottom, left:right].max(axis=2) > 120).sum() > 30


def test_a_long_name_is_cut_at_its_front():
    Painter("a" * 500, "output", "auto", (160, 160)).paint(np.eye(3), said((3, 3)))


def test_samples_are_spread_and_views():
    torch = pytest.importorskip("torch")
    tensor = torch.arange(40 * 300 * 17.0).view(40, 300, 17)
    part = spread_sample(tensor, 1000)
    assert part.numel() <= 1000
    assert part.dim() == 3
    assert part._base is not None
    assert part[0, 0, 0] == 0
    assert part.max() > 0.9 * tensor.max()
    batch = torch.rand(8, 3, 5, 5)
    assert picture_sample(batch, 1000, is_batch=True).equal(batch[0])
    assert picture_sample(batch, 1000, is_batch=False).equal(batch)


def test_webp_is_whole_after_each_frame(tmp_path: Path):
    painter, path = Painter("a", "output", "auto", (160, 160)), tmp_path / "a.webp"
    film = WebP(path, 10, (160, 160))
    for number in range(4):
        film.add(painter.paint(np.full((2, 2), float(number)), said((2, 2))))
        with Image.open(io.BytesIO(path.read_bytes())) as seen:
            assert (getattr(seen, "n_frames", 1), seen.size) == (number + 1, (160, 160))
            seen.seek(number)
            seen.load()
            assert seen.info["duration"] == 100
    film.close()
