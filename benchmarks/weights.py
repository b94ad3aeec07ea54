"""Measure how much outputs depend on inputs, by weights: `python -m benchmarks.weights ZOO NAME ...`.

For each model: the change of the output with other values of the input, as a share of its RMS, with the library's
initial values, with the zoo's `random` ones, and with those that checks draw anew.  The smaller, the less checks show.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from tabulate import tabulate
from torch import nn

from pytest_torchlens.checks.inputs import other_inputs
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.subject import Tools
from pytest_torchlens.checks.vacuity import redraw
from pytest_torchlens.run.preserved_state import preserved_global_state
from pytest_torchlens.validate.state import ModelState
from pytest_torchlens.zoo import load_zoo
from pytest_torchlens.zoo.case import Inputs
from pytest_torchlens.zoo.case import ModelCase
from pytest_torchlens.zoo.catalog import shipped_folder
from pytest_torchlens.zoo.fill import fill_model


def main(zoo: str, names: Sequence[str]) -> None:
    """Print a table of models."""
    cases = load_zoo(shipped_folder() / f"{zoo}.yaml")
    rows = [[name, *(f"{share:.1e}" for share in shares(cases.case(name)))] for name in names]
    print(tabulate(rows, ["model", "init", "random", "drawn anew"], "github"))


def shares(case: ModelCase) -> list[float]:
    """Return the changes with each kind of weights."""
    with case.fixed_seed():
        model = case.provider.build(case.name, case.settings.kwargs, pretrained=False).eval()
    inputs = case.make_inputs(model)
    found = [change(model, inputs)]
    for fill in (fill_model, redraw):
        fill(model)
        found.append(change(model, inputs))
    return found


def change(model: nn.Module, inputs: Inputs) -> float:
    """Return the largest change of an output, as a share of its RMS."""
    with torch.no_grad():
        subject = Subject(model, *inputs, tools=Tools(snapshot=ModelState, preserved=preserved_global_state), seed=0)
        others = subject.call(*other_inputs(subject))
        pairs = [(one, others.get(path)) for path, one in subject.outputs.items() if one.is_floating_point()]
        return max(
            (
                float((two - one).norm() / one.norm())
                for one, two in pairs
                if two is not None and one.shape == two.shape
            ),
            default=float("nan"),
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("zoo")
    parser.add_argument("names", nargs="+", metavar="NAME")
    main(**vars(parser.parse_args()))
