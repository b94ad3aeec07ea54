"""Calls the hooks that plugins and conftest files implement, and checks what they return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import pytest

from pytest_torchlens.records import Outcome
from pytest_torchlens.records import Stage

if TYPE_CHECKING:
    from pytest_torchlens.records import Comparison
    from pytest_torchlens.records import Environment
    from pytest_torchlens.records import ModelReport

_MODEL_HOOKS = ("pytest_lens_configure_model", "pytest_lens_make_inputs")


class HookError(Exception):
    """A hook returned a value of a wrong type."""

    def __init__(self, hook: str, expected: str, answer: object) -> None:
        super().__init__(f"{hook}: expected {expected}, got {answer!r:.80} ({type(answer).__name__})")


def has_model_hooks(config: pytest.Config) -> bool:
    """Whether a hook that changes models or inputs is implemented."""
    return any(getattr(config.hook, name).get_hookimpls() for name in _MODEL_HOOKS)


def model_hook_files(config: pytest.Config) -> set[Path]:
    """Return the files with hooks that change models or inputs."""
    hooks = [hook for name in _MODEL_HOOKS for hook in getattr(config.hook, name).get_hookimpls()]
    return {Path(hook.function.__code__.co_filename).resolve() for hook in hooks}


def add_environment_facts(environment: Environment, config: pytest.Config) -> Environment:
    """Return the environment with the facts that hooks return.

    Raises
    ------
    pytest.UsageError
        If a hook does not return a mapping of text to text.
    """
    settings = dict(environment.settings)
    for facts in config.hook.pytest_lens_environment(config=config, environment=environment):
        if not isinstance(facts, Mapping) or not all(isinstance(text, str) for pair in facts.items() for text in pair):
            raise pytest.UsageError(str(HookError("pytest_lens_environment", "a mapping of names to text", facts)))
        settings |= facts
    return replace(environment, settings=settings)


def apply_compare_hook(comparison: Comparison, key: str, config: pytest.Config) -> Comparison:
    """Return the comparison; a hook can decide whether it fails.

    Raises
    ------
    HookError
        If a hook returns neither a bool nor None.
    """
    fails = config.hook.pytest_lens_compare(config=config, key=key, comparison=comparison)
    if fails is None or fails is comparison.fails:
        return comparison
    if not isinstance(fails, bool):
        raise HookError("pytest_lens_compare", "True if the model fails, False if not, or None", fails)
    note = f"a hook pytest_lens_compare says that it {'fails' if fails else 'does not fail'}"
    return replace(comparison, fails=fails, notes=(*comparison.notes, note))


def apply_report_hooks(report: ModelReport, key: str, config: pytest.Config) -> ModelReport:
    """Return the model's report with the verdict and the notes of hooks.

    Raises
    ------
    HookError
        If a hook returns a value of a wrong type.
    """
    if report.comparison is not None:
        comparison = apply_compare_hook(report.comparison, key, config)
        if comparison.fails != report.comparison.fails and report.error is None:
            end = (Outcome.FAILED, Stage.COMPARE) if comparison.fails else (Outcome.PASSED, Stage.DONE)
            report = replace(report, outcome=end[0], stage=end[1])
        report = replace(report, comparison=comparison)
    answers = config.hook.pytest_lens_report_notes(config=config, report=report)
    return replace(report, notes=(*report.notes, *(line for answer in answers for line in _note_lines(answer))))


def _note_lines(answer: Any) -> list[str]:
    lines = [answer] if isinstance(answer, str) else list(answer) if isinstance(answer, list | tuple) else [answer]
    if not all(isinstance(line, str) for line in lines):
        raise HookError("pytest_lens_report_notes", "text, or a list of text", answer)
    return lines
