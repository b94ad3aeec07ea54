"""A plugin for the pytest of a trial: the models run in the interpreter that an environment variable names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_torchlens.run import JobLimits
    from pytest_torchlens.run import Runner
    from pytest_torchlens.run import RunOptions

PYTHON = "PYTEST_LENS_BISECT_PYTHON"


@pytest.hookimpl(tryfirst=True)
def pytest_lens_make_runner(config: pytest.Config, options: RunOptions, limits: JobLimits) -> Runner:
    """Run models in a worker process of the other interpreter."""
    from pytest_torchlens.run import Isolation
    from pytest_torchlens.run import OtherPython

    python = OtherPython.find(os.environ[PYTHON], config.invocation_params.dir)
    return Isolation(options, limits, python.worker())
