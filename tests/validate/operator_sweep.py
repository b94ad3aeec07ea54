"""Runs PyTorch's operator database over awkward values in every dtype: replay and perturbation must raise no alarm.

`samples_of` gives the calls of one operator: each sample as it is, and with all tensors of its arguments replaced.
`alarms_of` validates each in a one-line module.  As a script it sweeps all operators, each in a process of its own:

    python -m tests.validate.operator_sweep results.jsonl [every n-th operator]

A result file that exists is continued.
"""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from pytest_torchlens.validate import validate
from tests.capture.test_op_db import NOT_RUN
from tests.capture.test_op_db import OneCall
from tests.capture.test_op_db import name_of

OPERATORS = {name_of(op): op for op in op_db if name_of(op) not in NOT_RUN}
MOST_ELEMENTS = 2_000
SAMPLES = slice(1, 12, 6)  # of each operator and dtype, each in all kinds; the first is often a single number
SECONDS = 600
# what has no one answer, or reads memory outside of its arguments for values like these
LEFT_OUT = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}


def constant(tensor, number):
    return torch.full_like(tensor, number)


def largest(tensor):
    if tensor.dtype is torch.bool:
        return constant(tensor, True)
    facts = torch.finfo if tensor.is_floating_point() or tensor.is_complex() else torch.iinfo
    return constant(tensor, facts(tensor.dtype).max)


def not_a_number(tensor):
    return constant(tensor, math.nan) if tensor.is_floating_point() or tensor.is_complex() else tensor


def first(tensor):
    """Return the first element, with as many dimensions."""
    return tensor[tuple(slice(0, 1) for _ in tensor.shape)].clone()


def as_integers(tensor):
    return tensor if tensor.is_complex() else (torch.arange(tensor.numel()) % 3).view(tensor.shape).to(tensor.dtype)


KINDS = {
    "as it is": lambda tensor: tensor,
    "zeros": torch.zeros_like,
    "ones": torch.ones_like,
    "twos": lambda tensor: constant(tensor, 2) if tensor.dtype is not torch.bool else tensor,
    "negative": lambda tensor: constant(tensor, -1) if tensor.is_floating_point() else tensor,
    "largest": largest,
    "not a number": not_a_number,
    "integers": as_integers,
    "one element": first,
    "empty": lambda tensor: tensor[:0] if tensor.dim() else tensor,
}


def replaced(value, kind):
    def other(leaf):
        plain = isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and not leaf.is_nested
        return KINDS[kind](leaf.detach()) if plain and leaf.numel() else leaf

    return pytree.tree_map(other, value)


def samples_of(name):
    """Yield kind, dtype and arguments of each call of an operator that PyTorch accepts."""
    op = OPERATORS[name]
    for dtype in sorted(op.supported_dtypes("cpu"), key=str):
        torch.manual_seed(0)
        for sample, kind in itertools.product(_small_samples(op, dtype), KINDS):
            torch.manual_seed(0)
            try:
                call = replaced((sample.input, *sample.args), kind), replaced(sample.kwargs, kind)
                op.op(*replaced(call[0], "as it is"), **call[1])
            except Exception:  # noqa: BLE001, S112 - these values are not for this operator
                continue
            yield kind, dtype, call


def _small_samples(op, dtype):
    samples = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=False), SAMPLES.stop))
    return [sample for sample in samples[SAMPLES] or samples if _num_elements(sample) <= MOST_ELEMENTS]


def _num_elements(sample):
    leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    return sum(leaf.numel() for leaf in leaves if isinstance(leaf, torch.Tensor))


def alarms_of(name):
    """Validate the calls of an operator; return how many there were, their reasons, and each alarm as text."""
    count, reasons, alarms = 0, Counter(), []
    for kind, dtype, (args, kwargs) in samples_of(name):
        count += 1
        text = f"{name}, {kind}, {str(dtype).removeprefix('torch.')}"
        try:
            verdict = validate(
                OneCall(OPERATORS[name].op, args[1:], kwargs), args[:1], parts=["replay", "perturbation"]
            ).verdict
        except Exception as error:  # noqa: BLE001 - PyTorch accepts the call, so this is an alarm
            alarms.append(f"{text}: raised {type(error).__name__}: {error!s:.150}")
            continue
        alarms += [f"{text}: {failure.message}" for part in verdict.parts for failure in part.failures]
        reasons.update(verdict.part("perturbation").exempt or {})
    return count, dict(reasons), alarms


def main(path, every=1):
    """Sweep all operators, and print the alarms."""
    results = Path(path)
    done = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    ahead = [name for name in sorted(OPERATORS)[::every] if name not in LEFT_OUT | {one["name"] for one in done}]
    for name in ahead:
        code = f"from tests.validate import operator_sweep as s; import json; print(json.dumps(s.alarms_of({name!r})))"
        try:
            run = subprocess.run(
                [sys.executable, "-W", "ignore", "-c", code],
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
            count, reasons, alarms = json.loads(run.stdout.splitlines()[-1])
        except (IndexError, ValueError, subprocess.TimeoutExpired) as error:
            count, reasons, alarms = 0, {}, [f"{name}: {type(error).__name__}, {run.stderr[-200:]}"]
        done.append({"name": name, "count": count, "reasons": reasons, "alarms": alarms})
        with results.open("a") as lines:
            lines.write(json.dumps(done[-1]) + "\n")
    print(*(alarm for one in done for alarm in one["alarms"]), sep="\n")  # noqa: T201 - a script
    print(sum(one["count"] for one in done), "calls,", sum(len(one["alarms"]) for one in done), "alarms")  # noqa: T201


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1], *map(int, sys.argv[2:3]))
