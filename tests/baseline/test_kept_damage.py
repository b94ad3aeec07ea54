"""Activations that were kept of a baseline and changed since are not taken for them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from pytest_torchlens.baseline.saved_activations import SavedActivations
from pytest_torchlens.baseline.saved_activations import SavedActivationsError
from tests.baseline.samples import an_input
from tests.baseline.samples import filled
from tests.baseline.test_saved_activations import kept_pass


def test_one_bit_that_changed_in_the_file_is_noticed(tmp_path: Path):
    kept_pass(tmp_path, filled(nn.Linear(3, 2)), an_input(4, 3))
    (folder,) = tmp_path.iterdir()
    (file,) = folder.glob("*.safetensors")
    whole = SavedActivations(folder).tensor("/linear", torch.device("cpu")).clone()
    contents = bytearray(file.read_bytes())
    place = contents.index(whole.numpy().tobytes())
    contents[place] ^= 1
    file.write_bytes(bytes(contents))
    with pytest.raises(SavedActivationsError, match="/linear is damaged: its digest differs from the stored one"):
        SavedActivations(folder).tensor("/linear", torch.device("cpu"))
