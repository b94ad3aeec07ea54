"""Which environments compute alike, and in what two of them differ.

One model against its baseline: what differs, where it began, and whether to care; no torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_torchlens.baseline.align import Aligned
from pytest_torchlens.baseline.conditions import Conditions
from pytest_torchlens.baseline.costs import grown
from pytest_torchlens.baseline.distance import Tolerance
from pytest_torchlens.baseline.judge import Judge
from pytest_torchlens.baseline.judge import Judgement
from pytest_torchlens.baseline.snapshot import Measured
from pytest_torchlens.baseline.snapshot import Numbers
from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.baseline.snapshot import weaker
from pytest_torchlens.baseline.snapshot_file import function_of
from pytest_torchlens.records import Alone
from pytest_torchlens.records import Change
from pytest_torchlens.records import Comparison
from pytest_torchlens.records import Environment
from pytest_torchlens.records import Finding
from pytest_torchlens.records import Growth

LIBRARIES = ("torchvision", "timm", "transformers", "numpy")
"""Packages that a model's code may come from; of others the version says nothing about its numbers."""


def class_of(environment: Environment) -> str:
    """Return the class of an environment: device, CPU capability, threads, as one name.

    Between such classes numbers differ more than between versions of PyTorch, so each has its own block.
    """
    threads = environment.num_threads
    count = f"{threads} thread{'s' * (threads != 1)}"
    return " ".join(filter(None, (environment.device, environment.cpu_capability, count)))


def nearest_class(wanted: str, known: Iterable[str]) -> str | None:
    """Return the class itself, or of those known the one that has most in common; None where none has the device."""
    same_device = [name for name in known if name.split(" ")[0] == wanted.split(" ", maxsplit=1)[0]]
    if not same_device:
        return None
    words = wanted.split(" ")
    return max(sorted(same_device), key=lambda name: [a == b for a, b in zip(name.split(" "), words, strict=False)])


def axes(before: Environment, after: Environment) -> tuple[str, ...]:
    """Return in what two environments differ, each as ``"torch 2.13.0 → 2.14.1"``; the machine first."""
    return (*machine_axes(before, after), *version_axes(before, after))


def machine_axes(before: Environment, after: Environment) -> tuple[str, ...]:
    """Return what differs of the machine and its settings: device, CPU capability, threads, libraries of kernels."""
    facts = {
        "device": (before.device, after.device),
        "CPU capability": (before.cpu_capability, after.cpu_capability),
        "threads": (before.num_threads, after.num_threads),
    }
    facts |= _told_by_both(before.settings, after.settings, sorted(before.settings))
    return tuple(_differing(facts))


def version_axes(before: Environment, after: Environment) -> tuple[str, ...]:
    """Return which versions differ, of PyTorch, Python and what models are made of."""
    facts: dict[str, tuple[object, object]] = {"torch": (_plain(before.torch), _plain(after.torch))}
    facts["Python"] = _minor(before.python), _minor(after.python)
    facts |= {name: (before.packages.get(name, ""), after.packages.get(name, "")) for name in LIBRARIES}
    kernels = ("CUDA",) if after.device == "cuda" else ("BLAS", "MKL")
    return tuple(_differing(facts | _told_by_both(before.packages, after.packages, kernels)))


def _told_by_both(
    before: dict[str, str], after: dict[str, str], names: Iterable[str]
) -> dict[str, tuple[object, object]]:
    """Return the facts that both sides have: one that only a later version of ours looks for has not changed."""
    return {name: (before[name], after[name]) for name in names if name in before and name in after}


def _differing(facts: dict[str, tuple[object, object]]) -> Iterator[str]:
    for name, (old, new) in facts.items():
        if old != new:
            yield f"{name} {old or 'none'} → {new or 'none'}"


def _plain(version: str) -> str:
    return version.partition("+")[0]


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


SERIOUS = (
    Change.STRUCTURE,
    Change.META_CHANGE,
    Change.INPUTS_DIFFER,
    Change.NAN_CHANGE,
    Change.REGRESSION,
    Change.DECISION_FLIP,
    Change.UNSTABLE,
    Change.LOCAL_CHANGE,
    Change.DRIFT,
    Change.LARGER,
    Change.SLOWER,
    Change.ENVIRONMENT,
    Change.IDENTICAL,
)
"""Classes, the most serious first."""
_MOST = 20
"""Findings that are kept; the counts have all."""
_GROWTH = 6


@dataclass(frozen=True)
class Suspects:
    """Operations to be run again by themselves on the baseline's inputs.

    Attributes
    ----------
    scales
        Their ids now; of each the least value to relate an error to.
    partners
        What each step, of those that both passes have, is called in the baseline.
    numbers
        The baseline's numbers.
    """

    scales: dict[str, float]
    partners: dict[str, str]
    numbers: dict[str, Numbers]


Repeat = Callable[[Suspects], Mapping[str, Alone]]


def compare(
    before: Snapshot,
    after: Snapshot,
    conditions: Conditions | None = None,
    *,
    baseline: str = "",
    repeat: Repeat | None = None,
    seconds: tuple[float, float] | None = None,
) -> Comparison:
    """Compare a forward pass with a stored one.

    Parameters
    ----------
    before
        The baseline.
    after
        What is now; its numbers of one environment are compared.
    conditions
        What may differ, and what fails; None for the defaults.
    baseline
        What the baseline is called in what is said of it.
    repeat
        Runs suspects by themselves, which tells their own error from what they inherit; without it that is told from
        where inputs are equal.
    seconds
        Of the fastest pass then and now; None where these are not of one machine.

    Returns
    -------
    Comparison
        The verdict, and each difference where it begins; what that leads to is counted alone.
    """
    conditions = conditions or Conditions()
    costs = grown(before, after, conditions, seconds)
    return _Comparing((before, after), conditions, costs, repeat).comparison(baseline)


class _Comparing:
    def __init__(
        self,
        snapshots: tuple[Snapshot, Snapshot],
        conditions: Conditions,
        costs: dict[str, Finding],
        repeat: Repeat | None,
    ) -> None:
        before, after = snapshots
        self._before = before
        self._after = after
        self._conditions = conditions
        self._costs = costs
        self._blocks = _blocks(before, after)
        environments = [block.environment for block in self._blocks or ()]
        self._axes = axes(*environments) if environments else ()
        self._machines_differ = bool(environments and machine_axes(*environments))
        self._aligned = Aligned(before, after)
        self._alone: Mapping[str, Alone] = {}
        self._found = self._judge(environments[1] if environments else Environment(), repeat)

    def _judge(self, environment: Environment, repeat: Repeat | None) -> list[Judgement]:
        tolerance = Tolerance(self._conditions, self._machines_differ, environment)
        numbers = (self._blocks[0].numbers, self._blocks[1].numbers) if self._blocks else None
        judge = Judge((self._before, self._after), numbers, tolerance, self._machines_differ)
        found = judge.judge(self._aligned)
        if repeat is None or not judge.suspects or numbers is None:
            return found
        self._alone = repeat(Suspects(judge.suspects, self._aligned.partners, numbers[0]))
        return judge.judge(self._aligned, self._alone)

    def comparison(self, baseline: str) -> Comparison:
        findings = sorted(self._findings(), key=lambda finding: SERIOUS.index(finding.change))
        verdict = findings[0].change if findings else Change.IDENTICAL
        if verdict is Change.IDENTICAL and any(not judgement.same for judgement in self._found):
            verdict = Change.DRIFT
        if verdict is Change.IDENTICAL and self._blocks is None:
            verdict = Change.ENVIRONMENT
        return Comparison(
            verdict=verdict,
            fails=self._fails(verdict, findings),
            baseline=baseline,
            axes=self._axes,
            counts=dict(sorted(Counter(map(self._word, self._found)).items())),
            findings=tuple(findings[:_MOST]),
            growth=tuple(self._growth(findings)),
            notes=tuple(self._notes(len(findings))),
        )

    def _word(self, judgement: Judgement) -> str:
        """Return the class of a step; without numbers none is known to compute the same."""
        unknown = judgement.change is Change.IDENTICAL and self._blocks is None
        return (Change.ENVIRONMENT if unknown else judgement.change).value

    def _fails(self, verdict: Change, findings: list[Finding]) -> bool:
        if any(self._conditions.cost(name) is not None for name in self._costs):
            return True
        steps = {step.id: step for side in (self._before, self._after) for step in side.steps}
        if any(self._conditions.fails(finding.change, steps.get(finding.operation)) for finding in findings):
            return True
        return not findings and self._conditions.fails(verdict)

    def _findings(self) -> Iterator[Finding]:
        yield from self._aligned.replaced()
        yield from self._aligned.renamed()
        for both, judgement in zip(self._aligned.steps, self._found, strict=True):
            if judgement.message:
                yield judgement.finding(both.step)
        yield from self._output()
        yield from self._answers()
        yield from self._unread()
        yield from self._costs.values()
        yield from weaker(*self._blocks) if self._blocks else ()

    def _answers(self) -> Iterator[Finding]:
        """Yield the first question about a tensor's value that was answered otherwise."""
        old, new = self._before.answers, self._after.answers
        different = next((pair for pair in zip(old, new, strict=False) if pair[0] != pair[1]), None)
        if different is None and len(old) != len(new):
            rest = max(old, new, key=len)[min(len(old), len(new))]
            different = (rest, "never asked") if len(old) > len(new) else ("never asked", rest)
        if different is not None:
            was, now = different
            operation = now.partition(" ")[0] if was.partition(" ")[0] == now.partition(" ")[0] else ""
            yield Finding(change=Change.STRUCTURE, operation=operation, message=f"other branch taken: {was} → {now}")

    def _output(self) -> Iterator[Finding]:
        """Yield the first place at which the returned object is another."""
        old, new = self._before.output, self._after.output
        path = next((path for path in [*new, *old] if old.get(path) != new.get(path)), None)
        if path is not None:
            where = f"the output's {path!r} is" if path else "the output is"
            message = f"{where} {new.get(path, 'gone')}, was {old.get(path, 'not there')}"
            yield Finding(change=Change.STRUCTURE, message=message)

    def _unread(self) -> Iterator[Finding]:
        """Yield parameters and buffers that no step reads, and that came, went or changed."""
        old = {self._renamed(name): weight for name, weight in _unread(self._before).items()}
        new = _unread(self._after)
        came = set(new) - {self._renamed(name) for name in self._before.state}
        for word, names in (("came", came), ("went", set(old) - set(self._after.state))):
            if names:
                yield Finding(change=Change.STRUCTURE, message=f"parameters that nothing reads {word}: {_few(names)}")
        if changed := {name for name in old if name in new and old[name] != new[name]}:
            yield Finding(change=Change.INPUTS_DIFFER, message=f"other weights, which nothing reads: {_few(changed)}")

    def _renamed(self, name: str) -> str:
        """Return a parameter's address as it is now if the module that has it is another."""
        for old, new in self._aligned.other_names:
            prefix = f"{old}." if old else ""
            if name.startswith(prefix):
                return f"{new}.{name[len(prefix) :]}".removeprefix(".")
        return name

    def _growth(self, findings: list[Finding]) -> Iterator[Growth]:
        """Yield the first difference in numbers and some steps that it leads to, the last one at last."""
        first = next((finding for finding in findings if finding.error is not None), None)
        if first is None:
            return
        places = [place for place, both in enumerate(self._aligned.steps) if both.step.id == first.operation]
        way = [place for place in self._reached(places[0]) if self._found[place].error is not None] if places else []
        gaps = max(len(way) - 1, 1)
        for place in dict.fromkeys(way[round(i * gaps / (_GROWTH - 1))] for i in range(_GROWTH) if len(way) > 1):
            error = self._found[place].error
            if error is not None:
                yield Growth(operation=self._aligned.steps[place].step.id, error=error.largest, nrms=error.nrms)

    def _reached(self, start: int) -> list[int]:
        reached = {start}
        for place, both in enumerate(self._aligned.steps):
            if reached & set(both.parents) and not self._found[place].same:
                reached.add(place)
        return sorted(reached)

    def _notes(self, count: int) -> Iterator[str]:
        if self._blocks is None:
            known = ", ".join(sorted(self._before.measured)) or "no environment"
            yield f"numbers were not compared: the baseline has those of {known}"
        if count > _MOST:
            yield f"{count - _MOST} further differences are not listed"
        yield from _of_repeated(self._alone)


def _blocks(before: Snapshot, after: Snapshot) -> tuple[Measured, Measured] | None:
    """Return the numbers to compare: those of one class, else of the nearest ones."""
    for name in sorted(after.measured):
        if name in before.measured:
            return before.measured[name], after.measured[name]
    for name in sorted(after.measured):
        if (nearest := nearest_class(name, before.measured)) is not None:
            return before.measured[nearest], after.measured[name]
    return None


def _of_repeated(alone: Mapping[str, Alone]) -> Iterator[str]:
    """Yield how many operations were run by themselves, which gave something else, and why others were not."""
    ran = {name: found for name, found in alone.items() if not found.reason}
    if ran:
        other = Counter(function_of(name) for name, found in ran.items() if not found.same)
        told = ", ".join(f"{count} {function}" for function, count in other.most_common()) or "none"
        size = f"{len(ran)} operation{'s' * (len(ran) != 1)}"
        yield f"run again on the baseline's inputs: {size}; with other results: {told}"
    for reason, count in Counter(found.reason for found in alone.values() if found.reason).most_common():
        yield f"not run again: {count} operation{'s' * (count != 1)}: {reason}"


def _unread(snapshot: Snapshot) -> dict[str, object]:
    read = {edge.parent for step in snapshot.steps for edge in step.reads}
    return {name: weight for name, weight in snapshot.state.items() if name not in read}


def _few(names: set[str]) -> str:
    first = sorted(names)[:3]
    return ", ".join(first) + (f" and {len(names) - len(first)} more" if len(names) > len(first) else "")
