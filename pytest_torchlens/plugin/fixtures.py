"""Fixtures for any test."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def lens_trace() -> Callable[..., Any]:
    """Record one forward pass of a model: every operation, its values, shapes, parents and modules.

    Example::

        def test_shape_of_the_first_layer(lens_trace):
            history = lens_trace(model, x)
            assert history["conv2d_1_1"].tensor_shape == (1, 64, 55, 55)

    It is `pytest_torchlens.log_forward_pass`: a tensor is the one argument of ``forward``, a list or tuple
    holds the positional arguments, `input_kwargs` the others.  The model is left as it was found.
    """
    from pytest_torchlens.functions import log_forward_pass

    return log_forward_pass


@pytest.fixture
def lens_validate() -> Callable[..., Any]:
    """Validate one forward pass of a model: the verdict is true when its graph, replayed, gives equal values.

    Example::

        def test_graph_holds(lens_validate):
            assert lens_validate(model, x)

    It is `pytest_torchlens.validate_model_activations`, and takes its inputs as `lens_trace` does.
    """
    from pytest_torchlens.functions import validate_model_activations

    return validate_model_activations
