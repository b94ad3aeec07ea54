"""Options of runs over many models: in which process, how long, how many, in what order."""

from __future__ import annotations

import pytest

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
