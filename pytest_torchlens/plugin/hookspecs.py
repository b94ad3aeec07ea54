"""Hooks that other plugins and conftest files can implement."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from torch import nn

    from pytest_torchlens.records import Comparison
    from pytest_torchlens.records import Environment
    from pytest_torchlens.records import ModelReport
    from pytest_torchlens.run import JobLimits
    from pytest_torchlens.run import Runner
    from pytest_torchlens.run import RunOptions
    from pytest_torchlens.zoo import ModelCase


def pytest_lens_register_zoo(config: pytest.Config) -> Path | Iterable[Path] | None:
    """Name zoo files besides those of the project and those that ship with pytest-torchlens.

    Called once a run, when models are first asked for.  A file ``birds.yaml`` is then found by ``--lens-zoo birds``
    and ``@pytest.mark.lens_zoo("birds")``; the project's own file of that name wins.

    Parameters
    ----------
    config
        pytest's configuration.

    Returns
    -------
    Path or iterable of Path
        Zoo files.  Their ``provider`` may be ``python:package.module:FUNCTION``, whose function returns a mapping of
        names to builders, or a `pytest_torchlens.zoo.Provider`: worker processes read the file anew, so it must be
        complete in itself.

    Examples
    --------
    In the module that a package names in its entry point ``pytest11``::

        from pathlib import Path

        def pytest_lens_register_zoo(config):
            return Path(__file__).with_name("birds.yaml")
    """


def pytest_lens_configure_model(config: pytest.Config, case: ModelCase, model: nn.Module) -> None:
    """Change a model of a zoo after it was built, in place: patch it, set what its zoo file cannot.

    Called after each time that a model is built, with weights, dtype, device and mode as the zoo file has them; all
    implementations are.  Models are then run in pytest's own process, for others load no ``conftest.py``:
    ``--lens-isolate`` is refused.

    Parameters
    ----------
    config
        pytest's configuration.
    case
        The model's ``zoo``, ``name`` and ``settings``.
    model
        The model.

    Examples
    --------
    ::

        def pytest_lens_configure_model(config, case, model):
            if case.zoo == "timm" and hasattr(model, "set_grad_checkpointing"):
                model.set_grad_checkpointing(False)
    """


@pytest.hookspec(firstresult=True)
def pytest_lens_make_inputs(config: pytest.Config, case: ModelCase, model: nn.Module) -> Any:
    """Make the inputs of a model of a zoo, in place of those that its zoo file describes.

    Called several times for a model: return the same values each time, in new tensors.  The first answer that is not
    None counts.  The generators of torch are seeded as the zoo file says, and put back after.  ``--lens-isolate`` is
    refused, as for `pytest_lens_configure_model`.

    Parameters
    ----------
    config
        pytest's configuration.
    case
        The model's ``zoo``, ``name`` and ``settings``.
    model
        The model, built.

    Returns
    -------
    Tensor, tuple, list, dict or None
        The one argument; positional arguments; keyword arguments; None for those of the zoo file.

    Examples
    --------
    ::

        def pytest_lens_make_inputs(config, case, model):
            if case.name.startswith("clip"):
                return {"image": torch.rand(1, 3, 224, 224), "text": torch.arange(16)[None]}
    """


def pytest_lens_environment(config: pytest.Config, environment: Environment) -> Mapping[str, str] | None:
    """Name facts of the machine or the build that a reader of the report should know.

    Called once a run over models of zoos, before they are collected, where the run is told of; all implementations are.
    A ``conftest.py`` is heard that pytest has loaded by then: that of rootdir, and of folders that were named.

    Parameters
    ----------
    config
        pytest's configuration.
    environment
        What is known.

    Returns
    -------
    mapping of str to str, or None
        Facts by name.  They stand among the report's settings, in its pages and in ``report.json``.

    Examples
    --------
    ::

        def pytest_lens_environment(config, environment):
            return {"commit": subprocess.check_output(["git", "rev-parse", "HEAD"], text=True).strip()}
    """


@pytest.hookspec(firstresult=True)
def pytest_lens_compare(config: pytest.Config, key: str, comparison: Comparison) -> bool | None:
    """Have the last word on whether a model that was compared with its baseline fails.

    Called for each model that was compared, of a zoo or by ``lens_check``, in the process of its test.  The first
    answer that is not None counts, and a note says that a hook gave it.

    Parameters
    ----------
    config
        pytest's configuration.
    key
        Of the baseline: ``"timm/resnet18"``.
    comparison
        What was found, with ``verdict``, ``fails`` and ``findings``.

    Returns
    -------
    bool or None
        Whether it fails; None where that is left to the conditions of ``--lens-fail-on``.

    Examples
    --------
    ::

        def pytest_lens_compare(config, key, comparison):
            if key.startswith("experimental/"):
                return False
    """


def pytest_lens_report_notes(config: pytest.Config, report: ModelReport) -> str | list[str] | None:
    """Say something to the reader of a model's page, and of its entry in ``report.json``.

    Called once for each model of a zoo that was run, in the process of its test; all implementations are.

    Parameters
    ----------
    config
        pytest's configuration.
    report
        All that is known of the model.

    Returns
    -------
    str, list of str or None
        Notes, below those of pytest-torchlens; None for none.

    Examples
    --------
    ::

        def pytest_lens_report_notes(config, report):
            return f"owner: {OWNERS.get(report.name, 'nobody')}"
    """


@pytest.hookspec(firstresult=True)
def pytest_lens_make_runner(config: pytest.Config, options: RunOptions, limits: JobLimits) -> Runner | None:
    """Make what runs the models of zoos, in place of this process and of ``--lens-isolate``.

    Called once in each process that runs models, before the first.  The first answer that is not None counts.

    Parameters
    ----------
    config
        pytest's configuration.
    options
        What is to be done with each model.
    limits
        What a model may use whose zoo file says nothing else.

    Returns
    -------
    pytest_torchlens.run.Runner or None
        It has ``run(case, progress)``, which gives a `pytest_torchlens.run.IsolatedResult`, and ``close()``, called at
        the end.  `pytest_torchlens.run.run_case` does the work wherever it is called.

    Examples
    --------
    ::

        class HighMemory:
            def __init__(self, options):
                self.options = options

            def run(self, case, progress):
                return IsolatedResult(on_the_big_machine(run_case, case, self.options).report)

            def close(self):
                pass

        def pytest_lens_make_runner(config, options, limits):
            return HighMemory(options)
    """
