"""Options of baselines: which set, what is stored, what fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def add_baseline_options(group: pytest.OptionGroup, parser: pytest.Parser) -> None:
    """Declare them."""
    group.addoption(
        "--lens-update",
        metavar="KIND[,KIND...]",
        dest="lens_update",
        action="append",
        default=[],
        help="Store baselines now: new (of models without one), changed, unused (deleted), all. "
        "Default: none; what was obtained waits for pytest-lens accept.",
    )
    group.addoption(
        "--lens-update-in-ci",
        dest="lens_update_in_ci",
        action="store_true",
        default=False,
        help="Let --lens-update store baselines under CI too, where it is refused.",
    )
    group.addoption(
        "--lens-strict",
        dest="lens_strict",
        action="store_true",
        default=False,
        help="Fail on models without a baseline, and on baselines without a model. "
        "Default: under CI, in projects that have baselines.",
    )
    group.addoption(
        "--lens-baseline",
        metavar="NAME",
        dest="lens_baseline",
        default=None,
        help="Compare with, and store into, the set of baselines of this name. Default: the one without a name.",
    )
    group.addoption(
        "--lens-fail-on",
        metavar="CONDITION[,CONDITION...]",
        dest="lens_fail_on",
        action="append",
        default=[],
        help="What fails a model: classes of change (structure, local-change@layer_norm, none) and limits "
        "(own:1e-5@features.*, output:1e-4, peak:+10%%, time:+20%%). May be repeated. "
        "Default: structure, meta-change, nan-change, regression, inputs-differ.",
    )
    group.addoption(
        "--lens-keep",
        metavar="WHAT",
        dest="lens_keep",
        action="append",
        default=[],
        help="activations: keep all of them in .lens/, some hundred MB a model. A later run that differs runs the "
        "operations again on them, which tells an operation's own error from what it inherits. Default: none are kept.",
    )
    group.addoption(
        "--lens-against",
        metavar="PYTHON",
        dest="lens_against",
        default=None,
        help="Compare with what this interpreter computes, of an environment with another PyTorch, now, in place of "
        "stored baselines: ../torch-2.9/bin/python. It runs each model first; operations that differ are run again on "
        "its inputs. Default: stored baselines.",
    )
    parser.addini("lens_keep", "What is kept of each model, as --lens-keep", "args", default=[])
    parser.addini("lens_baseline_dir", "Folder of the baselines (default: lens_baselines)", default="")
    parser.addini("lens_fail_on", "What fails a model, as --lens-fail-on", "linelist", default=[])
    parser.addini("lens_strict", "Fail on new and unused baselines, as --lens-strict", "bool", default=False)
