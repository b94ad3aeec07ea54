"""Activations that were kept of a baseline and changed since are not taken for them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.baseline.test_kept import kept_pass
from torch import nn

from pytest_torchlens.baseline.saved_activations import Kept
from pytest_torchlens.baseline.saved_activations import KeptError
from tests.baseline.samples import an_input
from tests.baseline.samples import filled


def test_one_bit_that_changed_in_the_file_is_noticed(tmp_path: Path):
    kept_pass(tmp_path, filled(nn.Linear(3, 2)), an_input(4, 3))
    (folder,) = tmp_path.iterdir()
    (file,) = folder.glob("*.safetensors")
    whole = Kept(folder).tensor("/linear", torch.device("cpu")).clone()
    contents = bytearray(file.read_bytes())
    place = contents.index(whole.numpy().tobytes())
    contents[place] ^= 1
    file.write_bytes(bytes(contents))
    with pytest.raises(KeptError, match="/linear is damaged: it is not what was kept"):
        Kept(folder).tensor("/linear", torch.device("cpu"))
