"""Options and ini keys."""

from __future__ import annotations

import pytest

from pytest_torchlens.plugin.arguments import ZOO_FOLDER
from pytest_torchlens.plugin.arguments import names_zoo
from pytest_torchlens.plugin.autotrace_options import add_autotrace_options
from pytest_torchlens.plugin.baseline_options import add_baseline_options
from pytest_torchlens.plugin.ci_options import add_ci_options
from pytest_torchlens.plugin.sweep_options import add_sweep_options


def add_options(parser: pytest.Parser) -> None:
    """Declare all options and ini keys."""
    group = parser.getgroup("lens", "model graph auditing (pytest-torchlens)")
    group.addoption(
        "--lens-zoo",
        metavar="ZOO:NAME[,NAME...]",
        dest="lens_zoo",
        action="append",
        default=[],
        help="Audit models of a zoo, each one item, with no test written: torchvision:resnet18,alexnet. "
        "A name may be a glob ('timm:test_*'); ZOO alone stands for all its models. May be repeated.",
    )
    group.addoption(
        "--lens-validate",
        dest="lens_validate",
        action="store_true",
        default=False,
        help="Prove each recorded graph: replay it from its inputs bit for bit, and perturb every edge. "
        "A model whose graph does not hold fails; so does a test that calls one. "
        "Default: models of a zoo are run and recorded only, tests are left alone.",
    )
    group.addoption(
        "--lens-parts",
        metavar="PART[,PART...]",
        dest="lens_parts",
        action="append",
        default=[],
        help="Parts of the validation, of observer, replay, perturbation, invariants and completeness. Default: all.",
    )
    group.addoption(
        "--lens-report",
        metavar="DIR",
        dest="lens_report",
        default=None,
        help="Write report.json and pages with each model's graph, layers and verdict into this folder. "
        "Default: no report, only the table at the end.",
    )
    group.addoption(
        "--lens-graph",
        metavar="DIR[,OPTION=VALUE...]",
        dest="lens_graph",
        default=None,
        help="Draw each model into this folder: graphs,format=pdf,vis_opt=rolled. "
        "Options: format (svg, pdf, png, dot), vis_opt, vis_nesting_depth, direction, focus, color_by, theme, legend, "
        "repeats, max_nodes.",
    )
    group.addoption(
        "--lens-device",
        metavar="DEVICE",
        dest="lens_device",
        default=None,
        help="Run the models of a zoo there: cuda, cuda:1, mps. Default: where the zoo file says, else cpu.",
    )
    add_sweep_options(group, parser)
    add_ci_options(group, parser)
    add_baseline_options(group, parser)
    add_autotrace_options(parser, group)
    parser.addini("lens_zoo_paths", f"Folders of zoo files (default: {ZOO_FOLDER})", "paths", default=None)
    parser.addini("lens_parts", "Parts of the validation, as --lens-parts", "args", default=[])
    parser.addini("lens_report", "Folder of the report, as --lens-report", default="")
    parser.addini("lens_graph", "Folder of drawings and their options, as --lens-graph", default="")
    parser.addini("lens_device", "Where models run, as --lens-device", default="")
    parser.addini(
        "lens_junit_properties",
        "Write lens.* properties into JUnit XML (default: true)",
        "bool",
        default=True,
    )


def is_wanted(config: pytest.Config) -> bool:
    """Whether this run has to do with models: an option says so, or a zoo file was named."""
    option = config.option
    return bool(
        option.lens_zoo
        or option.lens_validate
        or option.lens_parts
        or option.lens_report
        or option.lens_graph
        or option.lens_device
        or (config.args_source is config.ArgsSource.ARGS and any(names_zoo(config, arg) for arg in config.args))
    )
