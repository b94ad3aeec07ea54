"""Options, ini keys and the marker of the models that tests call; read in every run, so with no import of weight."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

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
