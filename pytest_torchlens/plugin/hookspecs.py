"""The hooks that other plugins and conftest files can implement."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from torch import nn

    from pytest_torchlens.checks.catalog import Check
    from pytest_torchlens.records import Comparison
    from pytest_torchlens.records import Environment
    from pytest_torchlens.records import ModelReport
    from pytest_torchlens.run import JobLimits
    from pytest_torchlens.run import Runner
    from pytest_torchlens.run import RunOptions
    from pytest_torchlens.zoo import ModelCase


def pytest_lens_register_zoo(config: pytest.Config) -> Path | Iterable[Path] | None:
    """Name zoo files in addition to the project's and those that ship with pytest-torchlens.

    Called once per run, when models are first needed.  A file ``birds.yaml`` is then found by ``--lens-zoo birds``
    and ``@pytest.mark.lens_zoo("birds")``; a project's file of that name takes precedence.

    Parameters
    ----------
    config
        pytest's configuration.

    Returns
    -------
    Path or iterable of Path
        Zoo files.  Their ``provider`` may be ``python:package.module:FUNCTION``, whose function returns a mapping of
        names to builders, or a `pytest_torchlens.zoo.Provider`.  Worker processes read the file again, so it must be
        complete.

    Examples
    --------
    In the module that a package names in its entry point ``pytest11``::

        from pathlib import Path

        def pytest_lens_register_zoo(config):
            return Path(__file__).with_name("birds.yaml")
    """


def pytest_lens_configure_model(config: pytest.Config, case: ModelCase, model: nn.Module) -> None:
    """Change a model of a zoo in place after it was built: patch it, or set what its zoo file cannot set.

    Called each time a model is built, after the zoo file's weights, dtype, device and mode are applied; all
    implementations are called.  Models then run in pytest's own process, because other processes do not load
    ``conftest.py``, and ``--lens-isolate`` is a usage error.

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
    """Make the inputs of a model of a zoo, instead of those that its zoo file describes.

    Called several times for a model: return the same values each time, in new tensors.  The first result that is not
    None is used.  The generators of torch are seeded as the zoo file says, and restored afterwards.
    ``--lens-isolate`` is a usage error, as for `pytest_lens_configure_model`.

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
        The only argument; positional arguments; keyword arguments; None for the inputs of the zoo file.

    Examples
    --------
    ::

        def pytest_lens_make_inputs(config, case, model):
            if case.name.startswith("clip"):
                return {"image": torch.rand(1, 3, 224, 224), "text": torch.arange(16)[None]}
    """


def pytest_lens_environment(config: pytest.Config, environment: Environment) -> Mapping[str, str] | None:
    """Name facts about the machine or the build that a reader of the report should know.

    Called once per run over models of zoos, in the controller, before collection; all implementations are called.
    pytest has then loaded the ``conftest.py`` of rootdir and of the folders in the arguments.

    Parameters
    ----------
    config
        pytest's configuration.
    environment
        The environment so far.

    Returns
    -------
    mapping of str to str, or None
        Facts by name.  The report lists them among its settings, in its pages and in ``report.json``.

    Examples
    --------
    ::

        def pytest_lens_environment(config, environment):
            return {"commit": subprocess.check_output(["git", "rev-parse", "HEAD"], text=True).strip()}
    """


@pytest.hookspec(firstresult=True)
def pytest_lens_compare(config: pytest.Config, key: str, comparison: Comparison) -> bool | None:
    """Decide whether a model that was compared with its baseline fails.

    Called for each comparison, of a zoo's model or by ``lens_check``, in the process of its test.  The first result
    that is not None is used, and a note says that a hook decided.

    Parameters
    ----------
    config
        pytest's configuration.
    key
        The key of the baseline: ``"timm/resnet18"``.
    comparison
        The comparison, with ``verdict``, ``fails`` and ``findings``.

    Returns
    -------
    bool or None
        Whether it fails; None leaves that to the conditions of ``--lens-fail-on``.

    Examples
    --------
    ::

        def pytest_lens_compare(config, key, comparison):
            if key.startswith("experimental/"):
                return False
    """


def pytest_lens_report_notes(config: pytest.Config, report: ModelReport) -> str | list[str] | None:
    """Add notes to a model's page, and to its entry in ``report.json``.

    Called once for each model of a zoo that ran, in the process of its test; all implementations are called.

    Parameters
    ----------
    config
        pytest's configuration.
    report
        The model's report.

    Returns
    -------
    str, list of str or None
        Notes, shown below those of pytest-torchlens; None for no note.

    Examples
    --------
    ::

        def pytest_lens_report_notes(config, report):
            return f"owner: {OWNERS.get(report.name, 'nobody')}"
    """


def pytest_lens_checks(config: pytest.Config) -> Check | list[Check] | None:
    """Add checks of a project's own to those that ``--lens-checks`` can name.

    Called before models run; all implementations are called.  A model that such a check is asked for runs in pytest's
    own process, because other processes do not load ``conftest.py``.

    Parameters
    ----------
    config
        pytest's configuration.

    Returns
    -------
    Check, list of Check or None
        Objects with ``name``, ``sentence`` (what must hold), ``cost`` (in plain passes) and ``run(subject)``, which
        returns a `pytest_torchlens.records.CheckResult`; see docs/checks.md.

    Examples
    --------
    ::

        class SumsToOne:
            name = "sums-to-one"
            sentence = "The output is a distribution."
            cost = 1

            def run(self, subject):
                total = subject.outputs[""].sum(-1)
                if torch.allclose(total, torch.ones_like(total)):
                    return passed(self.name, compared=len(total))
                return failed(self.name, Failure(message=f"rows sum to {total.tolist()}"))

        def pytest_lens_checks(config):
            return SumsToOne()
    """


@pytest.hookspec(firstresult=True)
def pytest_lens_make_runner(config: pytest.Config, options: RunOptions, limits: JobLimits) -> Runner | None:
    """Make a runner for the models of zoos, instead of this process and of ``--lens-isolate``.

    Called once in each process that runs models, before the first model.  The first result that is not None is used.

    Parameters
    ----------
    config
        pytest's configuration.
    options
        What to do with each model.
    limits
        Time and memory of a model, unless its zoo file sets others.

    Returns
    -------
    pytest_torchlens.run.Runner or None
        It has ``run(case, progress)``, which returns a `pytest_torchlens.run.IsolatedResult`, and ``close()``, which is
        called at the end.  `pytest_torchlens.run.run_case` runs a model in the calling process.

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
