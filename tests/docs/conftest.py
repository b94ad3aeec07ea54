"""What tests of pages share."""

from __future__ import annotations

import pytest


@pytest.fixture
def outside_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pytest print what a person sees, where CI runs these tests."""
    for variable in ("CI", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(variable, raising=False)
