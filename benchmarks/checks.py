"""Measure what each check costs in plain passes of a resnet50, in one thread: `python -m benchmarks.checks [NAME ...]`.

Costs are CPU time, children included, so that other work of the machine hardly counts.  Each check runs on a subject of
its own, then the five cheap ones in a row on one, which share passes.  ``A+B`` are two in a row.  Threads sleep where
they wait for each other (``OMP_WAIT_POLICY=PASSIVE``): that is no work.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
from collections.abc import Callable
from collections.abc import Sequence
from functools import partial

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch loads OpenMP

import torch
from tabulate import tabulate

from pytest_torchlens.checks.catalog import CHECKS
from pytest_torchlens.checks.catalog import CheckSetting
from pytest_torchlens.checks.catalog import PlannedCheck
from pytest_torchlens.checks.uncalled import Uncalled
from pytest_torchlens.run.checks import check_model
from pytest_torchlens.zoo import load_zoo
from pytest_torchlens.zoo.catalog import shipped_folder

TOGETHER = ("repeat", "rows", "batch-size", "layout", "threads")
_PASSES = 7


def main(names: Sequence[str]) -> None:
    """Print a table of the checks."""
    torch.set_num_threads(1)
    case = load_zoo(shipped_folder() / "torchvision.yaml").case("resnet50")
    model = case.build()
    inputs = case.make_inputs(model)
    uncalled = Uncalled.of(model, is_new=True)

    def run(*wanted: str) -> str:
        plan = [PlannedCheck(check, CheckSetting(seconds=3600)) for check in CHECKS if check.name in wanted]
        found = check_model(model, inputs, plan, seed=0, build=case.build, uncalled=uncalled)
        return ", ".join(sorted({result.word for result in found}))

    with torch.no_grad():
        model(*inputs[0])
        plain = statistics.median(cpu_seconds(lambda: model(*inputs[0]))[0] for _ in range(_PASSES))
        groups = [tuple(name.split("+")) for name in names] or [*((check.name,) for check in CHECKS), TOGETHER]
        rows = []
        for group in groups:
            seconds, words = cpu_seconds(partial(run, *group))
            stated = sum(check.cost for check in CHECKS if check.name in group)
            rows.append([", ".join(group), f"{seconds / plain:.1f}", f"{seconds:.2f}", stated, words])
    print(f"plain pass: {plain * 1000:.0f} ms of CPU time")
    print(tabulate(rows, ["check", "plain passes", "CPU seconds", "stated", "result"], "github"))


def cpu_seconds(work: Callable[[], object]) -> tuple[float, object]:
    """Return the CPU time of this process and its children that some work takes, and what it returns."""
    before = _used()
    result = work()
    return _used() - before, result


def _used() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="checks; default: each, and the five cheap ones together")
    main(parser.parse_args().names)
