"""Reads and checks the values of options and ini keys.

`LensOptions` holds those of a run.  It contains `SweepOptions`, `CiOptions` and the baseline `Policy`.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import pytest

from pytest_torchlens.baseline.conditions import ConditionError
from pytest_torchlens.baseline.conditions import Conditions
from pytest_torchlens.baseline.policy import KEEPS
from pytest_torchlens.baseline.policy import UPDATES
from pytest_torchlens.baseline.policy import Policy
from pytest_torchlens.baseline.store import Store
from pytest_torchlens.plugin.checks import named_checks
from pytest_torchlens.plugin.checks import own_checks
from pytest_torchlens.plugin.options import DEFAULT_TIMEOUT
from pytest_torchlens.plugin.options import SIZES
from pytest_torchlens.records import close
from pytest_torchlens.records.files import UnwritableError
from pytest_torchlens.records.files import check_file
from pytest_torchlens.records.files import check_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_torchlens.checks.catalog import Check
    from pytest_torchlens.report import Graphs
    from pytest_torchlens.report import ResultTable
    from pytest_torchlens.run import JobLimits
    from pytest_torchlens.run import OtherPython


@dataclass(frozen=True)
class LensOptions:
    """Options and ini keys of a run, checked; an option overrides the ini key of its name."""

    zoos: tuple[str, ...]
    validate: bool
    parts: tuple[str, ...] | None
    """Parts of the validation; None for all."""
    report: Path | None
    pictures: bool
    """Whether the report shows a picture of each activation."""
    junit_properties: bool
    graphs: Graphs | None
    """Drawings in addition to those of the report; None if not requested."""
    checks: tuple[str, ...] | None
    """Names of checks; None for those of zoo files."""
    own_checks: tuple[Check, ...]
    """The checks that hooks return."""
    ignore: tuple[str, ...]
    """Audit rules whose findings are left out."""
    device: str
    """The device of all models; empty to use the zoo file's."""
    sweep: SweepOptions
    ci: CiOptions
    baseline: Policy | None
    """How baselines are used; None if nothing is compared."""
    against: OtherPython | None
    """The interpreter to compare with; None for stored baselines."""
    changed_since: str | None
    """The commit since which a model must have changed to be audited; None for all models."""

    @property
    def wants_called_models(self) -> bool:
        """Whether a file of the run is to have the models that tests call."""
        return any([self.report, self.ci.json, self.ci.markdown, self.sweep.table])

    @classmethod
    def of(cls, config: pytest.Config) -> LensOptions:
        """Read and check them.

        Raises
        ------
        pytest.UsageError
            If an option does not accept its value, a file or folder cannot be written, or a device does not exist.
        """
        option: Any = config.option
        if option.lens_parts and not option.lens_validate:
            raise pytest.UsageError("--lens-parts needs --lens-validate, whose parts it selects")
        check_baseline_options(config)
        against = _against(config)
        policy = policy_of(config) if option.lens_validate else None
        options = cls(
            zoos=tuple(option.lens_zoo),
            validate=option.lens_validate,
            parts=_parts(option.lens_parts or config.getini("lens_parts")),
            report=report_folder(config),
            pictures=_pictures(config),
            junit_properties=config.getini("lens_junit_properties"),
            graphs=_graphs(config),
            checks=named_checks(config),
            own_checks=own_checks(config),
            ignore=ignored_rules(config),
            device=_device(option.lens_device or config.getini("lens_device")),
            sweep=SweepOptions.of(config),
            ci=CiOptions.of(config),
            baseline=replace(policy, against=str(against)) if policy and against else policy,
            against=against,
            changed_since=option.lens_changed_since,
        )
        if not (option.collectonly or hasattr(config, "workerinput")):
            _check_writable(options)
        return options


def _pictures(config: pytest.Config) -> bool:
    """Return whether the report shows pictures of activations; the ini key means nothing without a report."""
    if report_folder(config) is not None:
        return bool(config.option.lens_report_activations or config.getini("lens_report_activations"))
    if config.option.lens_report_activations:
        raise pytest.UsageError("--lens-report-activations needs --lens-report=DIR, on whose pages the pictures are")
    return False


def report_folder(config: pytest.Config) -> Path | None:
    """Return the folder of the report; None if not requested."""
    return _folder(config, "lens_report", config.option.lens_report or config.getini("lens_report"))


def _words(option: str, values: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """Return the words of comma-separated lists; each must be one of `known`."""
    words = tuple(word.strip() for value in values for word in value.split(","))
    for word in words:
        if word not in known:
            hint = close(word, known)
            raise pytest.UsageError(f"{option}: expected {', '.join(known)}, got {word!r}{hint and f' ({hint})'}")
    return words


def _parts(values: list[str]) -> tuple[str, ...] | None:
    if not values:
        return None
    from pytest_torchlens.validate import PARTS
    from pytest_torchlens.validate import check_parts

    return check_parts(_words("--lens-parts", values, PARTS))


def ignored_rules(config: pytest.Config) -> tuple[str, ...]:
    """Return the audit rules of ``--lens-ignore`` or its ini key; raises `pytest.UsageError` for an unknown one."""
    values = config.option.lens_ignore or config.getini("lens_ignore")
    if not values:
        return ()
    from pytest_torchlens.audit import RULES

    return _words("--lens-ignore", values, [rule.name for rule in RULES])


def _device(name: str) -> str:
    if not name:
        return name
    from pytest_torchlens.run import check_device

    try:
        return str(check_device(name))
    except ValueError as error:
        raise pytest.UsageError(f"--lens-device: {error}") from None


def _against(config: pytest.Config) -> OtherPython | None:
    name: str | None = config.option.lens_against
    if name is None:
        return None
    from pytest_torchlens.run import OtherPython
    from pytest_torchlens.run import OtherPythonError

    try:
        return OtherPython.find(name, config.invocation_params.dir)
    except OtherPythonError as error:
        raise pytest.UsageError(f"--lens-against: {error}") from None


def _graphs(config: pytest.Config) -> Graphs | None:
    value: str = config.option.lens_graph or config.getini("lens_graph")
    name, *settings = value.split(",")
    if "=" in name.partition("/")[0] or (settings and not name):
        example = f"graphs,{value.lstrip(',')}"
        raise pytest.UsageError(f"--lens-graph: expected a folder before the settings, as in {example}, got {value!r}")
    folder = _folder(config, "lens_graph", name)
    if folder is None:
        return None
    from pytest_torchlens.report import Graphs

    try:
        return Graphs.of(folder, settings)
    except (ValueError, TypeError) as error:
        raise pytest.UsageError(f"--lens-graph: {error}") from None


def _folder(config: pytest.Config, key: str, name: str) -> Path | None:
    """Return a folder: an option is relative to the current folder, an ini key to rootdir."""
    if not name:
        return None
    return Path((config.invocation_params.dir if getattr(config.option, key) else config.rootpath) / name)


def _check_writable(options: LensOptions) -> None:
    """Check that all that the run will write can be written, before models run for nothing."""
    baseline = options.baseline
    folders = {
        "--lens-report": options.report,
        "--lens-graph": options.graphs.folder if options.graphs else None,
        "--lens-update": Path(baseline.folder) if baseline and baseline.update else None,
        "--lens-keep": Path(baseline.activations) if baseline and baseline.keep else None,
    }
    files = {
        "--lens-table": options.sweep.table,
        "--lens-json": options.ci.json,
        "--lens-report-md": options.ci.markdown,
    }
    for check, paths in ((check_folder, folders), (check_file, files)):
        for option, path in paths.items():
            try:
                if path is not None:
                    check(path)
            except UnwritableError as error:
                raise pytest.UsageError(f"{option}: {error}") from None


_STORED_BASELINE_OPTIONS = ("--lens-update", "--lens-baseline", "--lens-keep", "--lens-changed-since")


def policy_of(config: pytest.Config) -> Policy:
    """Read and check the options and ini keys of baselines.

    Raises
    ------
    pytest.UsageError
        If an option does not accept its value, or baselines would be stored under CI.
    """
    option: Any = config.option
    folder = config.getini("lens_baseline_dir")
    name = _baseline_name(option.lens_baseline)
    store = Store.of(config.rootpath, config.rootpath / folder if folder else None, name)
    fail_on = fail_on_of(config)
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


def fail_on_of(config: pytest.Config) -> tuple[str, ...]:
    """Read and check ``--lens-fail-on`` and its ini key; ``--lens-strict`` adds ``unproven``.

    Raises
    ------
    pytest.UsageError
        If there is no such condition.
    """
    option: Any = config.option
    strict = option.lens_strict or config.getini("lens_strict")
    fail_on = (*config.getini("lens_fail_on"), *option.lens_fail_on, *(("unproven",) if strict else ()))
    try:
        Conditions.of(fail_on)
    except ConditionError as error:
        raise pytest.UsageError(f"--lens-fail-on: {error}") from None
    return fail_on


def command_options(config: pytest.Config, *, only_root: bool = False) -> str:
    """Return the options with which ``pytest-lens`` finds the baselines of a run, each after a space.

    With `only_root` those with which it finds the project.
    """
    here, root, folder = config.invocation_params.dir, config.rootpath, config.getini("lens_baseline_dir")
    options = {
        "root": os.path.relpath(root, here) if root != here else "",
        "dir": os.path.relpath(root / folder, here) if folder else "",
        "baseline": config.getoption("lens_baseline") or "",
    }
    wanted = ["root"] if only_root else [*options]
    return "".join(f" {shlex.quote(f'--{name}={options[name]}')}" for name in wanted if options[name])


def _baseline_name(name: str | None) -> str:
    if name is None:
        return ""
    name = name.removeprefix("@")
    if not name or Path(name).name != name or name.startswith((".", "@")):
        raise pytest.UsageError(f"--lens-baseline: expected a plain name such as torch-2.13, got {name!r}")
    return name


def _keep(values: list[str]) -> tuple[str, ...]:
    return _words("--lens-keep", values, KEEPS)


def _update(values: list[str], *, refused: bool) -> tuple[str, ...]:
    kinds = _words("--lens-update", values, UPDATES)
    if kinds and refused:
        raise pytest.UsageError(
            "--lens-update under CI would accept any change: store baselines on your machine, "
            "or add --lens-update-in-ci"
        )
    return UPDATES[:-1] if "all" in kinds else kinds


def check_baseline_options(config: pytest.Config) -> None:
    """Check that options of baselines are used with ``--lens-validate``, and not with ``--lens-against``.

    Raises
    ------
    pytest.UsageError
        If they are not.
    """
    option: Any = config.option
    options = {"--lens-update": option.lens_update, "--lens-strict": option.lens_strict}
    options |= {"--lens-baseline": option.lens_baseline, "--lens-fail-on": option.lens_fail_on}
    options |= {"--lens-keep": option.lens_keep, "--lens-against": option.lens_against}
    options |= {"--lens-changed-since": option.lens_changed_since}
    for name, value in options.items():
        if value and not option.lens_validate:
            raise pytest.UsageError(f"{name} needs --lens-validate, which compares models with baselines")
        if value and option.lens_against and name in _STORED_BASELINE_OPTIONS:
            raise pytest.UsageError(f"{name} needs stored baselines, which --lens-against does not use: remove one")


@dataclass(frozen=True)
class CiOptions:
    """Files for a CI; None if not requested."""

    markdown: Path | None
    json: Path | None

    @classmethod
    def of(cls, config: pytest.Config) -> CiOptions:
        """Read them."""
        return cls(_file(config, "lens_report_md"), _file(config, "lens_json"))


def _file(config: pytest.Config, key: str) -> Path | None:
    option: Any = getattr(config.option, key)
    name = option or config.getini(key)
    if not name:
        return None
    return Path((config.invocation_params.dir if option else config.rootpath) / name)


@dataclass(frozen=True)
class SweepOptions:
    """The options of a run over many models, checked."""

    isolate: bool | None
    """None decides by the number of models."""
    timeout: float
    memory: int | None
    """Bytes; None takes a share of the machine's memory."""
    limit: int | None
    sample: tuple[int, int] | None
    """How many models, and the seed."""
    sizes: tuple[str, ...]
    resume: bool
    table: Path | None
    """The CSV file of results; None if not requested."""

    @classmethod
    def of(cls, config: pytest.Config) -> SweepOptions:
        """Read and check them.

        Raises
        ------
        pytest.UsageError
            If an option does not accept its value.
        """
        option: Any = config.option
        # A debugger needs the model in the process with the terminal.
        isolate = False if option.usepdb else option.lens_isolate
        return cls(
            isolate=isolate,
            timeout=_seconds(option.lens_timeout or config.getini("lens_timeout")),
            memory=_memory(option.lens_memory or config.getini("lens_memory")),
            limit=None if option.lens_limit is None else _count("--lens-limit", option.lens_limit),
            sample=_sample(option.lens_sample),
            sizes=_sizes(option.lens_size),
            resume=option.lens_resume,
            table=config.invocation_params.dir / option.lens_table if option.lens_table else None,
        )

    def limits(self) -> JobLimits:
        """Return the time and memory of a model, unless its zoo file sets others."""
        from pytest_torchlens.run import JobLimits
        from pytest_torchlens.run import memory_share

        return JobLimits(self.timeout, self.memory or memory_share())

    def open_table(self) -> ResultTable | None:
        """Return the file of results; None if not requested.

        Raises
        ------
        pytest.UsageError
            If the file is not a table of results.
        """
        if self.table is None:
            return None
        from pytest_torchlens.report import ResultTable
        from pytest_torchlens.report import TableError

        try:
            return ResultTable(self.table)
        except TableError as error:
            raise pytest.UsageError(f"--lens-table: {error}") from None


def _seconds(text: str) -> float:
    try:
        seconds = float(text or DEFAULT_TIMEOUT)
    except ValueError:
        seconds = 0
    if not seconds > 0:
        raise pytest.UsageError(f"--lens-timeout: expected a positive number of seconds, got {text!r}")
    return seconds


def _memory(text: str) -> int | None:
    if not text:
        return None
    from pytest_torchlens.zoo.zoo_settings import parse_bytes

    try:
        return parse_bytes(text)
    except ValueError as error:
        raise pytest.UsageError(f"--lens-memory: {error}") from None


def _count(name: str, text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise pytest.UsageError(f"{name}: expected a positive number of models, got {text!r}")
    return int(text)


def _sample(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    count, comma, seed = text.partition(",")
    if comma and not seed.isdecimal():
        raise pytest.UsageError(f"--lens-sample: expected a seed of 0 or more, got {seed!r}")
    return _count("--lens-sample", count), int(seed or 0)


def _sizes(text: str | None) -> tuple[str, ...]:
    if text is None:
        return SIZES
    return _words("--lens-size", [text], SIZES)
