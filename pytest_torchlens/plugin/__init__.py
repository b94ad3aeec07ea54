"""The pytest plugin: options, fixtures, and the zoo's models as items.

pytest imports this module in every run, so it imports nothing heavy.  Torch, the engine and the model libraries are
imported when a model is named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_torchlens.plugin.arguments import explain_not_found
from pytest_torchlens.plugin.fixtures import lens_check
from pytest_torchlens.plugin.fixtures import lens_draw
from pytest_torchlens.plugin.fixtures import lens_edit
from pytest_torchlens.plugin.fixtures import lens_model
from pytest_torchlens.plugin.fixtures import lens_recorder
from pytest_torchlens.plugin.fixtures import lens_report
from pytest_torchlens.plugin.fixtures import lens_same
from pytest_torchlens.plugin.fixtures import lens_trace
from pytest_torchlens.plugin.fixtures import lens_validate
from pytest_torchlens.plugin.options import MARKER_LINES
from pytest_torchlens.plugin.options import add_options
from pytest_torchlens.plugin.options import is_distributed
from pytest_torchlens.plugin.options import is_set
from pytest_torchlens.plugin.options import is_wanted
from pytest_torchlens.plugin.options import marked
from pytest_torchlens.plugin.options import names_models

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = [
    "lens_check",
    "lens_draw",
    "lens_edit",
    "lens_model",
    "lens_recorder",
    "lens_report",
    "lens_same",
    "lens_trace",
    "lens_validate",
    "pytest_addhooks",
    "pytest_addoption",
    "pytest_assertrepr_compare",
    "pytest_collection",
    "pytest_collection_finish",
    "pytest_configure",
    "pytest_generate_tests",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options and ini keys."""
    add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hooks that other plugins can implement."""
    from pytest_torchlens.plugin import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize tests that use ``lens_model`` with the models that their mark ``lens_zoo`` names."""
    if "lens_model" in metafunc.fixturenames:
        from pytest_torchlens.plugin.zoo_marker import parametrize

        parametrize(metafunc)
    elif any(mark.name == "lens_zoo" for mark in metafunc.definition.own_markers):  # not those of its class
        from pytest_torchlens.plugin.zoo_marker import reject_unused_mark

        reject_unused_mark(metafunc)


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Explain why tensors or histories are not equal."""
    from pytest_torchlens.plugin.fixtures import explain

    return explain(op, left, right)


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, and the plugins for models if any are named."""
    for marker in MARKER_LINES:
        config.addinivalue_line("markers", marker)
    if is_wanted(config):
        if config.hook.pytest_lens_checks.get_hookimpls():
            from pytest_torchlens.plugin.checks import own_checks

            own_checks(config)
        if is_set(config) or names_models(config) or is_distributed(config):
            from pytest_torchlens.plugin.session import LensSession

            config.pluginmanager.register(LensSession(config), "lens-session")
        if config.option.lens_validate:
            from pytest_torchlens.plugin.first_call import watch_calls

            watch_calls(config)
    if not hasattr(config, "workerinput") and (config.option.lens_report or config.getini("lens_report")):
        from pytest_torchlens.plugin.training import TrainingReport

        config.pluginmanager.register(TrainingReport(config), "lens-training")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Explain why a YAML file that pytest did not collect is not a zoo file, and how a zoo's model is named."""
    try:
        return (yield)
    except pytest.UsageError as error:
        error.args = tuple(
            explain_not_found(arg, session.config) if isinstance(arg, str) else arg for arg in error.args
        )
        raise


def pytest_collection_finish(session: pytest.Session) -> None:
    """Apply the markers ``lens`` and ``lens_expect``, unless tests are only listed."""
    if session.config.option.collectonly:
        return
    if items := marked(session.items, _MARKERS):
        from pytest_torchlens.plugin.marker import MarkerApplication

        session.config.pluginmanager.register(MarkerApplication(items), "lens-markers")


_MARKERS = ("lens", "lens_expect")
