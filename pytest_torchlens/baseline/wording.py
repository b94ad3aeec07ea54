"""Writes a comparison for people."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Iterator

from tabulate import tabulate

from pytest_torchlens.baseline.snapshot_file import function_of
from pytest_torchlens.records import Change
from pytest_torchlens.records import Comparison
from pytest_torchlens.records import Finding
from pytest_torchlens.records import OutputsComparison
from pytest_torchlens.records import size_text

_MOVES = (Change.STRUCTURE, Change.META_CHANGE, Change.REFACTOR)
"""Verdicts that say nothing of the outputs."""
_OF_AN_OPERATION = (Change.REGRESSION, Change.NAN_CHANGE, Change.META_CHANGE, Change.LOCAL_CHANGE)
"""Changes that an operation alone may show."""
_COSTS = (Change.LARGER, Change.SLOWER)
_MOST_NAMES = 4
_LARGEST_GROUPS = 8


def comparison_text(comparison: Comparison, name: str, key: str = "", options: str = "", repro: str = "") -> str:
    """Return a few lines about a comparison: where it differs first, how much, how that grows, what to do.

    Parameters
    ----------
    comparison
        The model's comparison.
    name
        The model's name.
    key
        The model's key in the store; empty if there is nothing to accept.
    options
        Options by which ``pytest-lens`` finds the baseline, each with a space before it.
    repro
        How ``pytest-lens repro`` names the model; empty if it cannot.
    """
    lines = [f"{name}: {headline(comparison)}"]
    lines += [f"  environment: {'; '.join(comparison.axes)}"] if comparison.axes else []
    for finding in comparison.findings[:_MOST_NAMES]:
        lines += ["", *(f"  {line}" for line in _finding(finding))]
    if len(comparison.findings) > _MOST_NAMES:
        lines.append(f"  and {len(comparison.findings) - _MOST_NAMES} more that begin elsewhere")
    if comparison.growth:
        lines += ["", "  how it grows:", *(f"    {line}" for line in _growth(comparison).splitlines())]
    lines += ["", f"  outputs: {comparison.outputs.words}"] if comparison.outputs is not None else []
    lines += [f"  note: {note}" for note in comparison.notes]
    hints = [f"  {line}" for line in _what_to_do(comparison, key, options, repro)] if key else []
    return "\n".join([*lines, "", *hints])


def headline(comparison: Comparison) -> str:
    """Return one line: the verdict, where it begins, and how many operations it reaches."""
    if comparison.verdict is Change.NEW:
        return "new: it has no baseline yet"
    first = comparison.first
    where = f" at {first.operation}" if first is not None and first.operation else ""
    what = f"{comparison.verdict.value}{where}; {_extent_text(comparison.counts)}"
    if comparison.outputs is None:
        return what
    if comparison.fails_outputs:
        return f"{_outputs(comparison.outputs)}; {what}"
    return f"{what}; {_outputs(comparison.outputs)}" if comparison.verdict in _MOVES else what


def _outputs(outputs: OutputsComparison) -> str:
    if outputs.same:
        return "outputs identical"
    if outputs.error is None or outputs.limit is None:
        return f"outputs {outputs.words}"
    size = f"{size_text(outputs.error)} (limit {outputs.limit:.2g})"
    return f"outputs within tolerance: {size}" if outputs.within else f"outputs differ by {size}"


def _extent_text(counts: dict[str, int]) -> str:
    total = sum(counts.values())
    uncompared = counts.get(Change.ENVIRONMENT.value, 0)
    if differing := total - uncompared - counts.get(Change.IDENTICAL.value, 0):
        return f"{differing} of {total} operations differ"
    return (
        f"all {total} operations are the same, their numbers not compared"
        if uncompared
        else f"all {total} operations compute the same"
    )


def _finding(finding: Finding) -> Iterator[str]:
    yield f"{finding.operation or 'the model'}: {finding.change.value}: {finding.message}"
    if finding.error is not None and finding.nrms is not None and finding.limit is not None:
        yield (
            f"    largest difference {_share(finding.error)} of the largest value (limit {finding.limit:.2g}), "
            f"RMS {_share(finding.nrms)} (limit {finding.limit / 2:.2g})"
        )
    elif finding.error is not None and finding.nrms is not None and finding.error:
        yield f"    largest difference {_share(finding.error)} of the largest value, RMS {_share(finding.nrms)}"
    if finding.alone is not None and finding.alone.before is not None and finding.alone.after is not None:
        distances = f"RMS {finding.alone.before:.2g} before, {finding.alone.after:.2g} now"
        yield f"    from the same operation in float64: {distances}: {finding.alone.exactness.value}"
    if finding.source_line:
        yield f"    at {finding.source_line}"


def _share(error: float) -> str:
    return size_text(error) if error else "below 1e-7"


def _growth(comparison: Comparison) -> str:
    rows = [(row.operation, _share(row.error), _share(row.nrms)) for row in comparison.growth]
    return tabulate(rows, headers=("operation", "of the largest value", "RMS"), tablefmt="plain", disable_numparse=True)


def repro_command(comparison: Comparison, repro: str, options: str = "") -> str:
    """Return the command that reproduces a comparison that fails; empty if no operation alone may show it.

    Parameters
    ----------
    comparison
        The model's comparison.
    repro, options
        As of `comparison_text`.
    """
    first = comparison.first
    if not repro or not comparison.fails or first is None or first.change not in _OF_AN_OPERATION:
        return ""
    trusted = comparison.against or "PYTHON"
    return f"pytest-lens repro {shlex.quote(repro)} --against={shlex.quote(trusted)}{options}"


def _what_to_do(comparison: Comparison, key: str, options: str, repro: str) -> Iterator[str]:
    if command := repro_command(comparison, repro, options):
        yield f"to reproduce: {command}"
    accepted = comparison.verdict is Change.IDENTICAL or comparison.stored != ""
    if accepted or comparison.against:
        return
    if comparison.unwritten:
        return  # a note says so
    if comparison.verdict is not Change.NEW:
        yield f"to look:   pytest-lens diff {key}{options}"
    outputs = comparison.outputs
    if comparison.verdict in _MOVES and comparison.fails and outputs is not None and outputs.within:
        how = "the same" if outputs.same else "within tolerance"
        yield f"to let it pass, as the outputs are {how}: --lens-fail-on=outputs"
    yield f"to accept: pytest-lens accept {key}{options}"


def summary(comparisons: Iterable[tuple[str, Comparison]], options: str = "") -> list[str]:
    """Return a few lines on all models of a run: counts of verdicts, and causes that several models share.

    `options` are those by which ``pytest-lens`` finds the baselines, each with a space before it.
    """
    every = list(comparisons)
    if not every:
        return []
    verdicts: dict[str, list[str]] = defaultdict(list)
    for name, comparison in every:
        verdicts[comparison.verdict.value].append(name)
    counts = [f"{len(names)} {word}" for word, names in sorted(verdicts.items(), key=lambda item: -len(item[1]))]
    against = next((f"against {comparison.against}" for _, comparison in every if comparison.against), "baselines")
    lines = [f"{against}: {', '.join(counts)}"]
    axes = dict.fromkeys(axis for _, comparison in every for axis in comparison.axes)
    lines += [f"environment: {'; '.join(axes)}"] if axes else []
    lines += _causes(every)
    lines += dict.fromkeys(comparison.untimed for _, comparison in every if comparison.untimed)
    lines += [f"new: {_names(verdicts[Change.NEW.value])}"] if Change.NEW.value in verdicts else []
    stored = sum(comparison.stored != "" for _, comparison in every)
    changed = [comparison for _, comparison in every if comparison.verdict is not Change.IDENTICAL]
    unwritten = [comparison.unwritten for comparison in changed if comparison.unwritten]
    waiting = sum(not comparison.against for comparison in changed) - stored - len(unwritten)
    lines += [f"stored: {stored} model{'s' * (stored != 1)}"] if stored else []
    if waiting == len(every) == len(verdicts.get(Change.NEW.value, ())):
        return [_first_run(len(every), options)]
    if waiting:
        waits = "waits" if waiting == 1 else "wait"
        lines.append(f"{waiting} {waits} to be accepted, without running again: pytest-lens accept '*'{options}")
    moved = [name for name, comparison in every if comparison.other_files]
    lines += [f"code in other files than before: {_names(moved)}; --lens-update=changed stores which"] if moved else []
    lines += [f"{len(unwritten)} cannot wait to be accepted: {unwritten[0]}"] if unwritten else []
    return lines


def _first_run(count: int, options: str) -> str:
    has, results = ("model has", "this result") if count == 1 else ("models have", "these results")
    why = f"{count} {has} no baseline; to keep {results}, so that later runs say what changed"
    return f"{why}: pytest-lens accept '*'{options}"


def _causes(every: list[tuple[str, Comparison]]) -> Iterator[str]:
    """Yield kinds of change by function, the most frequent first: many models use the same kernel."""
    models: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    costs: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, comparison in every:
        for finding in comparison.findings:
            if finding.change in _COSTS:
                costs[finding.change.value, name].append(finding.message)
            function = function_of(finding.operation)
            cause = models[finding.change.value, function]
            cause[name] = max(cause.get(name, 0.0), finding.error or 0.0)
    groups = sorted(models.items(), key=lambda item: -len(item[1]))
    for (word, function), names in groups[:_LARGEST_GROUPS]:
        worst = max(names.values())
        size = f", at most {worst:.2g} of the largest value" if worst else ""
        if len(names) == 1:
            size += "".join(f", {message}" for message in costs.get((word, next(iter(names))), ()))
        yield f"  {word}{f' in {function}' if function else ''}: {_names(list(names))}{size}"
    if len(groups) > _LARGEST_GROUPS:
        yield f"  and {len(groups) - _LARGEST_GROUPS} further kinds"


def _names(names: list[str]) -> str:
    listed = ", ".join(names[:_MOST_NAMES])
    return listed if len(names) <= _MOST_NAMES else f"{listed} and {len(names) - _MOST_NAMES} more models"
