"""What each inner pytest would import again, or load for nothing."""

from __future__ import annotations

import pytest
import torchvision  # noqa: F401 - like torch it cannot be imported twice in a process

import pytest_torchlens.functions
import pytest_torchlens.plugin.hooked_case
import pytest_torchlens.plugin.items
import pytest_torchlens.plugin.session
import pytest_torchlens.report.pages
import pytest_torchlens.run.job  # noqa: F401


@pytest.fixture(autouse=True)
def lean(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out plugins that import some hundred modules at the end of each run, or change or warn of something.

    After `pytester`, which clears the variable.
    """
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest -p no:anyio -p no:asyncio -p no:randomly")
