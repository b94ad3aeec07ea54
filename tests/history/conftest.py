"""A history with gradients, and the folder that it is saved in."""

from __future__ import annotations

import pytest
import torch

import pytest_torchlens as tl
from tests.history.test_table import TableModel


@pytest.fixture(scope="session")
def history():
    history = tl.log_forward_pass(TableModel(), torch.ones(2, 2), random_seed=3, save_gradients=True)
    history["output_1"].tensor_contents.sum().backward(retain_graph=True)
    history["linear_1"].tensor_contents.sum().backward()
    return history


@pytest.fixture(scope="session")
def folder(history, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "history"
    history.save(folder)
    return folder
