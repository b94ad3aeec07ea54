"""The command-line options and ini keys, as two tables that `add_options` declares.

pytest imports this module in every run, so it imports nothing heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any
from typing import Literal
from typing import NamedTuple

import pytest

from pytest_torchlens.plugin.arguments import ZOO_FOLDER
from pytest_torchlens.plugin.arguments import names_zoo

if TYPE_CHECKING:
    from collections.abc import Collection
    from collections.abc import Iterable

AUTOTRACE_VALUES = ("once", "all", "off")
"""Values of ``--lens-autotrace``, the default first."""
AUTOTRACE_MODES = ("fail", "warn")
"""Values of ``--lens-autotrace-mode``, the default first."""
SIZES = ("fast", "slow", "huge")
"""Size classes of zoo models."""
ISOLATE_ABOVE = 20
"""If a zoo file has more models to run than this, each runs in a worker process."""
DEFAULT_TIMEOUT = 600
"""Default of ``--lens-timeout``."""
MARKER_LINES = (
    "lens(*, autotrace, mode, parts, seconds, memory, fail_on, checks): how the models that a test calls are "
    "validated, what fails lens_check, and the checks of lens_same, each like the option or ini key of that name; "
    "models of a zoo have it without arguments",
    "lens_zoo(zoo, *, include='*', exclude=(), limit=None): run the test, which uses the fixture lens_model, "
    "with each model of a zoo whose name matches",
    "lens_expect(no_nan=True, grad_norm='<1e3', ..., every=10, folder=None): expectations of a test's training, "
    "and options of its recorder; the recorder finds the models unless the test uses lens_recorder",
)
"""The markers, each as ``pytest --markers`` prints it."""


def add_options(parser: pytest.Parser) -> None:
    """Declare all options and ini keys."""
    group = parser.getgroup("lens", "model graph auditing (pytest-torchlens)")
    for option in OPTIONS:
        metavar = {"metavar": option.metavar} if option.metavar else {}
        group.addoption(option.flag, dest=option.name, help=option.help, **metavar, **_ARGUMENTS[option.kind])
    for key in INI_KEYS:
        parser.addini(key.name, key.help, key.kind, default=key.default)


def is_wanted(config: pytest.Config) -> bool:
    """Whether an option or an argument of this run concerns models."""
    option = config.option
    return bool(
        option.lens_zoo
        or option.lens_validate
        or option.lens_parts
        or option.lens_report
        or option.lens_graph
        or option.lens_checks
        or option.lens_device
        or option.lens_changed_since
        or names_models(config)
    )


def names_models(config: pytest.Config) -> bool:
    """Whether an argument of this run names models of a zoo."""
    return config.args_source is config.ArgsSource.ARGS and any(names_zoo(config, arg) for arg in config.args)


def is_set(config: pytest.Config) -> bool:
    """Whether an option besides ``--lens-validate``, or an ini key, has another value than its default."""
    options = {option.name for option in OPTIONS} - {"lens_validate"}
    return any(getattr(config.option, name) not in (None, False, []) for name in options) or any(
        (config.getini(key.name) or None) != (key.default or None) for key in INI_KEYS
    )


def is_distributed(config: pytest.Config) -> bool:
    """Whether pytest-xdist shares the tests between processes, of which this is one."""
    return hasattr(config, "workerinput") or getattr(config.option, "dist", "no") != "no"


def marked(items: Iterable[pytest.Item], names: Collection[str]) -> list[pytest.Item]:
    """Return the tests that have a marker of one of these names, or whose class, module or folder has."""
    parents: dict[Any, bool] = {}  # has each of them such a marker?
    found = []
    for item in items:
        parent = item.parent
        if parent not in parents:
            parents[parent] = parent is not None and _has(parent.iter_markers(), names)
        if parents[parent] or (item.own_markers and _has(item.own_markers, names)):
            found.append(item)
    return found


def _has(marks: Iterable[pytest.Mark], names: Collection[str]) -> bool:
    return any(mark.name in names for mark in marks)


class CommandLineOption(NamedTuple):
    """A command-line option.

    Attributes
    ----------
    flag
        Its name on the command line.
    kind
        A key of `_ARGUMENTS`, which also sets the default.
    metavar
        The value, as ``--help`` prints it; empty for an option without a value.
    help
        Its text in ``--help``.
    dest
        Its name in ``config.option``; empty for the name that follows from `flag`.
    """

    flag: str
    kind: Literal["text", "list", "flag", "yes", "no"]
    metavar: str
    help: str
    dest: str = ""

    @property
    def name(self) -> str:
        """Its name in ``config.option``."""
        return self.dest or self.flag.removeprefix("--").replace("-", "_")


class IniKey(NamedTuple):
    """A key of the ini file; `kind` is pytest's type of its value."""

    name: str
    kind: Literal["string", "paths", "args", "linelist", "bool"]
    default: object
    help: str


_ARGUMENTS: dict[str, dict[str, Any]] = {
    "text": {"action": "store", "default": None},
    "list": {"action": "append", "default": []},
    "flag": {"action": "store_true", "default": False},
    "yes": {"action": "store_const", "const": True, "default": None},
    "no": {"action": "store_const", "const": False, "default": None},
}
"""Arguments of ``addoption`` for each kind of option; argparse copies the list before it appends."""

OPTIONS = (
    # Which models run, and what is done with them.
    CommandLineOption(
        "--lens-zoo",
        "list",
        "ZOO:NAME[,NAME...]",
        "Audit models of a zoo, each as a test item: torchvision:resnet18,alexnet. "
        "A name may be a glob ('timm:test_*'); ZOO alone selects all its models. May be repeated.",
    ),
    CommandLineOption(
        "--lens-validate",
        "flag",
        "",
        "Validate each recorded graph: replay it from its inputs bit for bit, and perturb every edge. "
        "A model whose graph is wrong fails; so does a test that calls one. "
        "Default: models of a zoo are only run and recorded, and tests are not traced.",
    ),
    CommandLineOption(
        "--lens-parts",
        "list",
        "PART[,PART...]",
        "Parts of the validation: observer, replay, perturbation, invariants, completeness. Default: all.",
    ),
    CommandLineOption(
        "--lens-checks",
        "list",
        "CHECK[,CHECK...]",
        "Check that each model computes the same when it is run another way: repeat,rows; all runs all, none none; "
        "pytest-lens checks lists them. They are the checks of the fixture lens_same, too. Default: those of the zoo "
        "file. (Baselines are another thing: --lens-validate and the fixture lens_check compare with them.)",
    ),
    CommandLineOption(
        "--lens-report",
        "text",
        "DIR",
        "Write report.json and pages with each model's graph, layers and verdict into this folder. "
        "Default: no report, only the table at the end.",
    ),
    CommandLineOption(
        "--lens-report-activations",
        "flag",
        "",
        "Show a small picture of each activation on the pages of --lens-report: the first 16 channels of its first "
        "example, as gray maps.",
    ),
    CommandLineOption(
        "--lens-graph",
        "text",
        "DIR[,OPTION=VALUE...]",
        "Draw each model into this folder: graphs,format=pdf,vis_opt=rolled. "
        "Options: format (svg, pdf, png, dot), vis_opt, vis_nesting_depth, direction, focus, color_by, theme, legend, "
        "repeats, max_nodes.",
    ),
    CommandLineOption(
        "--lens-device",
        "text",
        "DEVICE",
        "Run the models of a zoo on this device: cuda, cuda:1, mps. Default: the zoo file's device, else cpu.",
    ),
    # Runs over many models: isolation, limits, selection.
    CommandLineOption(
        "--lens-isolate",
        "yes",
        "",
        "Run each model in a worker process with a limit of time and memory: a crash, a kill or a hang fails only that "
        f"model. Default: if a zoo file has more than {ISOLATE_ABOVE} models to run.",
    ),
    CommandLineOption(
        "--lens-no-isolate",
        "no",
        "",
        "Run each model in pytest's own process, however many there are.",
        "lens_isolate",
    ),
    CommandLineOption(
        "--lens-timeout",
        "text",
        "SECONDS",
        f"Time limit of a model in a worker process. Default: the zoo file's, else {DEFAULT_TIMEOUT}.",
    ),
    CommandLineOption(
        "--lens-memory",
        "text",
        "SIZE",
        "Memory limit of a worker process, such as 8GiB. Default: the zoo file's, else four fifths of the machine's, "
        "shared between the workers of xdist.",
    ),
    CommandLineOption("--lens-limit", "text", "N", "Run the N cheapest of the selected models."),
    CommandLineOption(
        "--lens-sample",
        "text",
        "N[,SEED]",
        "Run N of the selected models, drawn evenly from all families. Default seed: 0.",
    ),
    CommandLineOption(
        "--lens-size",
        "text",
        "CLASS[,CLASS...]",
        f"Run models of these size classes of the zoo file: {', '.join(SIZES)}. Default: all.",
    ),
    CommandLineOption(
        "--lens-resume",
        "flag",
        "",
        "Resume the last interrupted run: models that passed in it, under the same versions, settings and options, are "
        "not run again, and appear in the report.",
    ),
    CommandLineOption(
        "--lens-table",
        "text",
        "FILE",
        "Write a row for each model into this CSV file as it ends; rows of other models stay. Default: no table.",
    ),
    # Files that a CI reads.
    CommandLineOption(
        "--lens-report-md",
        "text",
        "FILE",
        "Write the run as Markdown into this file: counts, failures with reasons, a table. A GitHub job always gets "
        "it as the summary of its step. Default: no file.",
    ),
    CommandLineOption(
        "--lens-json",
        "text",
        "FILE",
        "Write the run as JSON into this file, in the format of report.json, without the models' layers. "
        "Default: no file.",
    ),
    # Baselines: which set, what is stored, what fails.
    CommandLineOption(
        "--lens-update",
        "list",
        "KIND[,KIND...]",
        "Store baselines now: new (of models without one), changed, unused (deleted), all. "
        "Default: none; pytest-lens accept stores them later.",
    ),
    CommandLineOption(
        "--lens-update-in-ci", "flag", "", "Let --lens-update store baselines under CI, where it is else an error."
    ),
    CommandLineOption(
        "--lens-strict",
        "flag",
        "",
        "Fail on models without a baseline, on baselines without a model, and on unproven verdicts. "
        "Default: under CI, in projects that have baselines.",
    ),
    CommandLineOption(
        "--lens-baseline",
        "text",
        "NAME",
        "Compare with, and store into, the set of baselines of this name. Default: the unnamed set.",
    ),
    CommandLineOption(
        "--lens-fail-on",
        "list",
        "CONDITION[,CONDITION...]",
        "What fails a model: classes of change (structure, local-change@layer_norm, none), other outputs (outputs), "
        "limits "
        "(own:1e-5@features.*, output:1e-4, peak:+10%%, time:+20%%), and unproven verdicts (unproven), calls of tests "
        "that no verdict covers (unvalidated), audit findings of high severity (high). May be repeated. "
        "Default: structure, meta-change, refactor, nan-change, regression, inputs-differ.",
    ),
    CommandLineOption(
        "--lens-ignore",
        "list",
        "RULE[,RULE...]",
        "Leave out the findings of these audit rules: not-a-number, infinite. A zoo file can do so for a model, with "
        "the reason. Default: none.",
    ),
    CommandLineOption(
        "--lens-keep",
        "list",
        "WHAT",
        "activations: save them in .lens/, some hundred MB per model. A later run that differs runs the operations "
        "again on them, which separates an operation's own error from an inherited one. Default: save nothing.",
    ),
    CommandLineOption(
        "--lens-against",
        "text",
        "PYTHON",
        "Compare with what this interpreter computes now, in an environment with another PyTorch, instead of stored "
        "baselines: ../torch-2.9/bin/python. It runs each model first; operations that differ are run again on its "
        "inputs. Default: stored baselines.",
    ),
    CommandLineOption(
        "--lens-changed-since",
        "text",
        "COMMIT",
        "Audit only models whose code, zoo file, baseline or environment changed since this commit (origin/main), "
        "with what is not committed. A model whose baseline does not name its files is audited. Default: all models.",
    ),
    # The models that tests call. They default to None, because the ini keys hold the defaults.
    CommandLineOption(
        "--lens-autotrace",
        "text",
        "once|all|off",
        "Which models that tests call are validated with --lens-validate: 'once' each structure with each kind of "
        "input, 'all' calls, or none ('off'). Tests need no change. Default: once.",
    ),
    CommandLineOption(
        "--lens-autotrace-mode",
        "text",
        "fail|warn",
        "What happens to a passing test that called a model whose graph is wrong: it fails, or gets a warning. "
        "Default: fail.",
    ),
    CommandLineOption(
        "--lens-autotrace-seconds",
        "text",
        "SECONDS",
        "Time that recording and validating may take in one test. Default: 20.",
    ),
    CommandLineOption(
        "--lens-autotrace-memory",
        "text",
        "MIB",
        "Memory in MiB that validating one call may take; a call that needs more is not replayed. Default: 2048.",
    ),
)

INI_KEYS = (
    IniKey("lens_timeout", "string", "", "Time limit of a model in seconds, as --lens-timeout"),
    IniKey("lens_memory", "string", "", "Memory limit of a worker process, as --lens-memory"),
    IniKey("lens_report_md", "string", "", "File for the run as Markdown, as --lens-report-md"),
    IniKey("lens_json", "string", "", "File for the run as JSON, as --lens-json"),
    IniKey("lens_keep", "args", [], "What is saved of each model, as --lens-keep"),
    IniKey("lens_baseline_dir", "string", "", "Folder of the baselines (default: lens_baselines)"),
    IniKey("lens_fail_on", "linelist", [], "What fails a model, as --lens-fail-on"),
    IniKey("lens_ignore", "args", [], "Audit rules whose findings are left out, as --lens-ignore"),
    IniKey("lens_strict", "bool", False, "Fail on new and unused baselines, as --lens-strict"),
    IniKey("lens_autotrace", "string", "once", "Which models that tests call are validated, as --lens-autotrace"),
    IniKey("lens_autotrace_mode", "string", "fail", "What a failed verdict does, as --lens-autotrace-mode"),
    IniKey("lens_autotrace_seconds", "string", "20", "Seconds for one test, as --lens-autotrace-seconds"),
    IniKey("lens_autotrace_memory", "string", "2048", "MiB for one call, as --lens-autotrace-memory"),
    IniKey("lens_zoo_paths", "paths", None, f"Folders of zoo files (default: {ZOO_FOLDER})"),
    IniKey("lens_parts", "args", [], "Parts of the validation, as --lens-parts"),
    IniKey("lens_checks", "args", [], "Checks of each model, as --lens-checks"),
    IniKey("lens_report", "string", "", "Folder of the report, as --lens-report"),
    IniKey("lens_report_activations", "bool", False, "Pictures of activations, as --lens-report-activations"),
    IniKey("lens_graph", "string", "", "Folder of drawings and their options, as --lens-graph"),
    IniKey("lens_device", "string", "", "Device that models run on, as --lens-device"),
    IniKey("lens_junit_properties", "bool", True, "Write lens.* properties into JUnit XML (default: true)"),
)
