"""Stored activations as Parquet and as zarr hold the same numbers."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

import pytest_torchlens as tl
from tests.extraction.models import batches
from tests.extraction.models import net
from tests.models import Function


@pytest.fixture
def acts(tmp_path):
    loader = [(x, torch.arange(len(x))) for x in batches()]
    return tl.extract(net(), loader, ["1", "3"], tmp_path / "acts", labels=1, shard_bytes=250)


def test_parquet(acts, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    file = parquet.ParquetFile(acts.to_parquet(tmp_path / "acts.parquet"))
    table = file.read()
    assert table.column_names == ["relu_1_2", "linear_2_4", "labels"]
    assert np.array_equal(np.array(table["relu_1_2"].to_pylist(), dtype=np.float32), acts["1"].numpy())
    assert table["labels"].to_pylist() == acts.labels[:].tolist()
    assert file.metadata.num_row_groups == len(acts.shards)
    assert file.schema_arrow.metadata[b"relu_1_2"] == b"(11, 8)"


def test_parquet_has_no_complex_numbers(tmp_path):
    pytest.importorskip("pyarrow.parquet")
    acts = tl.extract(Function(torch.fft.fft), [torch.rand(2, 3)], "fftfft_1", tmp_path / "acts")
    with pytest.raises(tl.ExtractError, match=r"fftfft_1_1: Parquet has no torch.complex64; .* torch.view_as_real"):
        acts.to_parquet(tmp_path / "acts.parquet")
    assert not (tmp_path / "acts.parquet").exists()


def test_parquet_of_several_lengths(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    acts = tl.extract(Function(torch.sin), [torch.rand(2, 3, 2), torch.rand(1, 5, 2)], "sin_1", tmp_path / "acts")
    table = parquet.read_table(acts.to_parquet(tmp_path / "acts.parquet"))
    rows = zip(table["sin_1_1"].to_pylist(), table["sin_1_1 shape"].to_pylist(), strict=True)
    read = [torch.tensor(numbers).reshape(shape) for numbers, shape in rows]
    assert all(map(torch.equal, read, acts["sin_1"]))


def test_zarr(acts, tmp_path):
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(str(acts.to_zarr(tmp_path / "acts.zarr")), mode="r")
    assert np.array_equal(group["relu_1_2"][:], acts["1"].numpy())
    assert np.array_equal(group["labels"][:], acts.labels.numpy())
    with pytest.raises(tl.ExtractError, match=r"acts.zarr exists already"):
        acts.to_zarr(tmp_path / "acts.zarr")


@pytest.mark.parametrize(("name", "library"), [("parquet", "pyarrow"), ("zarr", "zarr")])
def test_without_the_library_the_extra_is_named(acts, tmp_path, monkeypatch, name, library):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(tl.ExtractError, match=rf"install pytest-torchlens\[{name}\]"):
        getattr(acts, f"to_{name}")(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_they_cannot_hold(tmp_path):
    pytest.importorskip("pyarrow")
    acts = tl.extract(net(), batches(), "1", tmp_path / "acts", transform=torch.Tensor.bfloat16)
    with pytest.raises(tl.ExtractError, match=r"relu_1_2: there is no torch.bfloat16 outside torch"):
        acts.to_parquet(tmp_path / "out.parquet")
    assert not list(tmp_path.glob("*.parquet"))
