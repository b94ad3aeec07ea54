"""Options, ini keys and the marker of the models that tests call; read in every run, so with no import of weight.

Options of baselines: which set, what is stored, what fails.

Options of what a CI reads.

Options of runs over many models: in which process, how long, how many, in what order.

Options and ini keys.
"""

from __future__ import annotations

import pytest

from pytest_torchlens.plugin.zoo_arguments import ZOO_FOLDER
from pytest_torchlens.plugin.zoo_arguments import names_zoo

WHICH = ("once", "all", "off")
MODES = ("fail", "warn")
MARKER_HELP = (
    "lens(*, autotrace, mode, parts, seconds, memory, fail_on): how the models that a test calls are validated, and "
    "what fails lens_check, each as the option or ini key of its name; without arguments it is set by itself on the "
    "models of a zoo"
)


def add_autotrace_options(parser: pytest.Parser, group: pytest.OptionGroup) -> None:
    """Declare them; what they default to stands in the ini keys, for a project may decide."""
    group.addoption(
        "--lens-autotrace",
        metavar="once|all|off",
        dest="lens_autotrace",
        default=None,
        help="Which of the models that tests call --lens-validate validates: 'once' each structure with each kind of "
        "input, 'all' calls, or none ('off'). No test needs to be changed. Default: once.",
    )
    group.addoption(
        "--lens-autotrace-mode",
        metavar="fail|warn",
        dest="lens_autotrace_mode",
        default=None,
        help="What becomes of a test that passed but called a model whose graph does not hold: it fails, or there is "
        "a warning. Default: fail.",
    )
    group.addoption(
        "--lens-autotrace-seconds",
        metavar="SECONDS",
        dest="lens_autotrace_seconds",
        default=None,
        help="Time that recording and validating may take in one test. Default: 20.",
    )
    group.addoption(
        "--lens-autotrace-memory",
        metavar="MIB",
        dest="lens_autotrace_memory",
        default=None,
        help="Memory in MiB that validating one call may take; one that needs more is not replayed. Default: 2048.",
    )
    parser.addini("lens_autotrace", "Which models in tests are validated, as --lens-autotrace", default="once")
    parser.addini("lens_autotrace_mode", "What a failed verdict does, as --lens-autotrace-mode", default="fail")
    parser.addini("lens_autotrace_seconds", "Seconds for one test, as --lens-autotrace-seconds", default="20")
    parser.addini("lens_autotrace_memory", "MiB for one call, as --lens-autotrace-memory", default="2048")


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


def add_ci_options(group: pytest.OptionGroup, parser: pytest.Parser) -> None:
    """Declare them."""
    group.addoption(
        "--lens-report-md",
        metavar="FILE",
        dest="lens_report_md",
        default=None,
        help="Write the run as Markdown into this file: counts, what failed and why, a table. In a GitHub job it also "
        "goes to the summary of the step, asked for or not. Default: no file.",
    )
    group.addoption(
        "--lens-json",
        metavar="FILE",
        dest="lens_json",
        default=None,
        help="Write the run as JSON into this file, in the published form of report.json, without the models' layers. "
        "Default: no file.",
    )
    parser.addini("lens_report_md", "File for the run as Markdown, as --lens-report-md", default="")
    parser.addini("lens_json", "File for the run as JSON, as --lens-json", default="")


MANY = 20
"""A zoo file with more models than these has each run in a worker process."""
SECONDS = 600
SIZES = ("fast", "slow", "huge")


def add_sweep_options(group: pytest.OptionGroup, parser: pytest.Parser) -> None:
    """Declare them."""
    group.addoption(
        "--lens-isolate",
        dest="lens_isolate",
        action="store_const",
        const=True,
        default=None,
        help="Run each model in a worker process with a limit of time and memory: a crash, a kill or a hang costs that "
        f"model only. Default: where a zoo file has more than {MANY} models to run.",
    )
    group.addoption(
        "--lens-no-isolate",
        dest="lens_isolate",
        action="store_const",
        const=False,
        help="Run each model in pytest's own process, also where there are many.",
    )
    group.addoption(
        "--lens-timeout",
        metavar="SECONDS",
        dest="lens_timeout",
        default=None,
        help=f"Time that a model may take in a worker process. Default: {SECONDS}, or what the zoo file says of it.",
    )
    group.addoption(
        "--lens-memory",
        metavar="SIZE",
        dest="lens_memory",
        default=None,
        help="Memory that a worker process may take, as 8GiB. Default: four fifths of the machine's, shared between "
        "the workers of xdist, or what the zoo file says of the model.",
    )
    group.addoption(
        "--lens-limit",
        metavar="N",
        dest="lens_limit",
        default=None,
        help="Run the N cheapest of the models asked for.",
    )
    group.addoption(
        "--lens-sample",
        metavar="N[,SEED]",
        dest="lens_sample",
        default=None,
        help="Run N of the models asked for, drawn from all families alike. Default seed: 0.",
    )
    group.addoption(
        "--lens-size",
        metavar="CLASS[,CLASS...]",
        dest="lens_size",
        default=None,
        help=f"Run models of these size classes of the zoo file: {', '.join(SIZES)}. Default: all.",
    )
    group.addoption(
        "--lens-resume",
        dest="lens_resume",
        action="store_true",
        default=False,
        help="Go on with the last run that was cut short: models that passed in it, under the same versions, settings "
        "and options, are not run again, and stand in the report.",
    )
    group.addoption(
        "--lens-table",
        metavar="FILE",
        dest="lens_table",
        default=None,
        help="Write a row a model into this CSV file as each ends; rows of other models in it stay. Default: no table.",
    )
    parser.addini("lens_timeout", "Seconds that a model may take, as --lens-timeout", default="")
    parser.addini("lens_memory", "Memory that a worker process may take, as --lens-memory", default="")


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
