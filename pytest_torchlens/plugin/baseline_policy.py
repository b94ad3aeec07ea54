"""What the options and ini keys of baselines come to."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from pytest_torchlens.baseline.conditions import ConditionError
from pytest_torchlens.baseline.conditions import Conditions
from pytest_torchlens.baseline.policy import KEEPS
from pytest_torchlens.baseline.policy import UPDATES
from pytest_torchlens.baseline.policy import Policy
from pytest_torchlens.baseline.store import Store
from pytest_torchlens.records import nearest

_OF_STORED = ("--lens-update", "--lens-baseline", "--lens-keep")


def policy_of(config: pytest.Config) -> Policy:
    """Return what the options and ini keys of baselines come to.

    Raises
    ------
    pytest.UsageError
        If a value is none that its option takes, or baselines are to be stored under CI.
    """
    option: Any = config.option
    given = config.getini("lens_baseline_dir")
    store = Store.of(config.rootpath, config.rootpath / given if given else None, _name(option.lens_baseline))
    fail_on = (*config.getini("lens_fail_on"), *option.lens_fail_on)
    try:
        Conditions.of(fail_on)
    except ConditionError as error:
        raise pytest.UsageError(f"--lens-fail-on: {error}") from None
    in_ci = bool(os.environ.get("CI"))
    return Policy(
        folder=str(store.folder),
        pending=str(store.pending),
        activations=str(store.activations),
        times=str(store.times),
        root=str(config.rootpath),
        update=_update(option.lens_update, refused=in_ci and not option.lens_update_in_ci),
        strict=option.lens_strict or config.getini("lens_strict") or (in_ci and bool(store)),
        fail_on=fail_on,
        keep=_keep(option.lens_keep or config.getini("lens_keep")),
    )


def command_options(config: pytest.Config) -> str:
    """Return what ``pytest-lens`` must be told to find the baselines of a run, with a space before each word."""
    here, root, given = config.invocation_params.dir, config.rootpath, config.getini("lens_baseline_dir")
    options = {
        "root": os.path.relpath(root, here) if root != here else "",
        "dir": os.path.relpath(root / given, here) if given else "",
        "baseline": config.getoption("lens_baseline") or "",
    }
    return "".join(f" {shlex.quote(f'--{name}={value}')}" for name, value in options.items() if value)


def _name(name: str | None) -> str:
    if name is None:
        return ""
    if not name or Path(name).name != name or name.startswith((".", "@")):
        raise pytest.UsageError(f"--lens-baseline: {name!r} is no name of a set; one is a plain word, as torch-2.13")
    return name


def _keep(values: list[str]) -> tuple[str, ...]:
    kinds = tuple(kind.strip() for value in values for kind in value.split(","))
    for kind in kinds:
        if kind not in KEEPS:
            raise pytest.UsageError(f"--lens-keep: there is no {kind!r} to keep: {nearest(kind, KEEPS)}")
    return kinds


def _update(values: list[str], *, refused: bool) -> tuple[str, ...]:
    kinds = [kind.strip() for value in values for kind in value.split(",")]
    for kind in kinds:
        if kind not in UPDATES:
            raise pytest.UsageError(f"--lens-update: no kind {kind!r}: {nearest(kind, UPDATES)}")
    if kinds and refused:
        raise pytest.UsageError(
            "--lens-update under CI would accept whatever it finds; store baselines on your machine, "
            "or add --lens-update-in-ci"
        )
    return UPDATES[:-1] if "all" in kinds else tuple(kinds)


def check_alone(config: pytest.Config) -> None:
    """Refuse options of baselines where nothing is compared.

    Raises
    ------
    pytest.UsageError
        If one is there without ``--lens-validate``.
    """
    option: Any = config.option
    given = {"--lens-update": option.lens_update, "--lens-strict": option.lens_strict}
    given |= {"--lens-baseline": option.lens_baseline, "--lens-fail-on": option.lens_fail_on}
    given |= {"--lens-keep": option.lens_keep, "--lens-against": option.lens_against}
    for name, value in given.items():
        if value and not option.lens_validate:
            raise pytest.UsageError(f"{name} is about the comparison with a baseline: add --lens-validate")
        if value and option.lens_against and name in _OF_STORED:
            raise pytest.UsageError(
                f"{name} is about stored baselines, and --lens-against leaves these alone: drop one"
            )
