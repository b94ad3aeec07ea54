"""pytest's side: options, fixtures, and the zoo's models as items.

pytest imports this module in every run, also where nothing of ours is asked for: it costs nothing but itself.
Torch, the engine and all libraries are imported when a model is named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_torchlens.plugin.arguments import with_reason
from pytest_torchlens.plugin.fixtures import lens_check
from pytest_torchlens.plugin.fixtures import lens_draw
from pytest_torchlens.plugin.fixtures import lens_model
from pytest_torchlens.plugin.fixtures import lens_recorder
from pytest_torchlens.plugin.fixtures import lens_report
from pytest_torchlens.plugin.fixtures import lens_trace
from pytest_torchlens.plugin.fixtures import lens_validate
from pytest_torchlens.plugin.options import MARKER_HELP
from pytest_torchlens.plugin.options import add_options
from pytest_torchlens.plugin.options import is_wanted

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = [
    "lens_check",
    "lens_draw",
    "lens_model",
    "lens_recorder",
    "lens_report",
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
    """Declare the hooks for others to implement."""
    from pytest_torchlens.plugin import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give tests that ask for ``lens_model`` the models that their mark ``lens_zoo`` names."""
    if "lens_model" in metafunc.fixturenames:
        from pytest_torchlens.plugin.zoo_marker import parametrize

        parametrize(metafunc)
    elif any(mark.name == "lens_zoo" for mark in metafunc.definition.own_markers):  # its own; a class has other tests
        from pytest_torchlens.plugin.zoo_marker import refuse_unasked

        refuse_unasked(metafunc)


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Explain why tensors or histories are not equal."""
    from pytest_torchlens.plugin.fixtures import explain

    return explain(op, left, right)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and all that is needed for models where some are named."""
    config.addinivalue_line("markers", MARKER_HELP)
    config.addinivalue_line(
        "markers",
        "lens_zoo(zoo, *, include='*', exclude=(), limit=None): run the test, which asks for the fixture lens_model, "
        "with each model of a zoo whose name fits",
    )
    config.addinivalue_line(
        "markers",
        "lens_expect(no_nan=True, grad_norm='<1e3', ..., every=10, folder=None): what is expected of the training in a "
        "test, and options of its recorder; models are found by themselves unless the test has lens_recorder",
    )
    if is_wanted(config):
        from pytest_torchlens.plugin.session import LensSession

        config.pluginmanager.register(LensSession(config), "lens-session")
        if config.option.lens_validate:
            from pytest_torchlens.plugin.autotrace import register_autotrace

            register_autotrace(config)
    if not hasattr(config, "workerinput") and (config.option.lens_report or config.getini("lens_report")):
        from pytest_torchlens.plugin.training import TrainingReport

        config.pluginmanager.register(TrainingReport(config), "lens-training")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Say of a YAML file that nobody collected why we did not."""
    try:
        return (yield)
    except pytest.UsageError as error:
        error.args = tuple(with_reason(arg) if isinstance(arg, str) else arg for arg in error.args)
        raise


def pytest_collection_finish(session: pytest.Session) -> None:
    """Heed our markers, once for all tests: it costs nothing where tests are but listed, and next to nothing else."""
    if session.config.option.collectonly:
        return
    marked = [item for item in session.items if any(mark.name in _MARKERS for mark in item.iter_markers())]
    if marked:
        from pytest_torchlens.plugin.marker import MarkerApplication

        session.config.pluginmanager.register(MarkerApplication(marked), "lens-marked")


_MARKERS = ("lens", "lens_expect")
