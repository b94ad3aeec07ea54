"""Reads what may differ, and what fails a model: one grammar for options, markers, zoo files and commands."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from pytest_torchlens.baseline.snapshot import Step
from pytest_torchlens.baseline.snapshot_file import module_of
from pytest_torchlens.records import Change
from pytest_torchlens.records import OutputsComparison
from pytest_torchlens.records import close

LIMITS = ("own", "graph", "output")
COSTS = ("peak", "flops", "operations", "parameters", "time")
"""Costs of a model: sizes are always compared, exactly; time only where a condition names it."""
VERDICTS = ("unproven", "unvalidated", "high")
"""What fails a model or test besides a difference: a verdict, calls that no verdict covers, a severe audit finding."""
OUTPUTS = "outputs"
"""What fails a model whose outputs are not those of the baseline, whatever else differs."""
DEFAULT = (
    *(Change.STRUCTURE, Change.META_CHANGE, Change.REFACTOR, Change.INPUTS_DIFFER),
    *(Change.NAN_CHANGE, Change.REGRESSION, Change.NEWLY_UNSTABLE),
)
"""Classes of change that fail a model unless conditions name others."""
_FAILING = tuple(change for change in Change if change not in (Change.IDENTICAL, Change.PROPAGATED, Change.SLOWER))
_CONDITION = re.compile(r"(?P<name>[a-z-]+)(?::(?P<value>[^@]*))?(?:@(?P<glob>.+))?")


class ConditionError(ValueError):
    """A text that is not a condition; the message lists what is."""


@dataclass(frozen=True)
class Condition:
    """One condition: ``structure``, ``own:1e-5@layer_norm``, ``peak:+10%``.

    Attributes
    ----------
    name
        A class of change, a limit (``own``, ``graph``, ``output``), a cost, one of `VERDICTS`, ``outputs`` or ``none``.
    value
        The limit, relative; NaN for a class.
    glob
        Matches the module calls, functions or ids that the condition is about.
    """

    name: str
    value: float = math.nan
    glob: str = "*"

    def fits(self, step: Step | None) -> bool:
        """Whether it is about an operation; about the model (None) if it has no glob."""
        if self.glob == "*" or step is None:
            return self.glob == "*"
        return any(fnmatchcase(name, self.glob) for name in (step.id, module_of(step.id), step.function, step.applied))


@dataclass(frozen=True)
class Conditions:
    """Several conditions; of two about the same, the later one wins."""

    items: tuple[Condition, ...] = ()

    @classmethod
    def of(cls, texts: Iterable[str]) -> Conditions:
        """Read conditions; each text may hold several, with commas between.

        Raises
        ------
        ConditionError
            If a text is not a condition.
        """
        parts = [part.strip() for text in texts for part in text.split(",")]
        return cls(tuple(_condition(part) for part in parts if part))

    def fails(self, change: Change, step: Step | None = None) -> bool:
        """Whether a class of change at an operation, or in the model (None), fails the model."""
        words = [condition for condition in self.items if _is_class(condition.name)]
        if not words:
            return change in DEFAULT
        return any(condition.name == change.value and condition.fits(step) for condition in words)

    def fails_outputs(self, outputs: OutputsComparison | None) -> bool:
        """Whether the outputs fail the model: beyond tolerance, where ``outputs`` or a limit on them is asked for."""
        return outputs is not None and not outputs.within and (self.has(OUTPUTS) or self.has("output"))

    def has(self, name: str) -> bool:
        """Return whether one of them has this name."""
        return any(condition.name == name for condition in self.items)

    def limit(self, name: str, step: Step) -> float | None:
        """Return the limit ``own``, ``graph`` or ``output`` of an operation; None if no condition sets it."""
        found = [condition.value for condition in self.items if condition.name == name and condition.fits(step)]
        return found[-1] if found else None

    def cost(self, name: str) -> float | None:
        """Return by how much a cost may grow, relative; None if no condition limits it."""
        found = [condition.value for condition in self.items if condition.name == name]
        return found[-1] if found else None


def _is_class(name: str) -> bool:
    return name in ("none", OUTPUTS) or any(change.value == name for change in _FAILING)


_NAMES = (*(change.value for change in _FAILING), *LIMITS, *COSTS, *VERDICTS, OUTPUTS, "none")
_OTHER_WORDS = {
    **dict.fromkeys(("rename", "renames", "renamed", "move", "moved"), Change.REFACTOR.value),
    **dict.fromkeys(("slow", "speed", "seconds"), "time:+20%"),
    **dict.fromkeys(("memory", "bytes", "peak-bytes"), "peak:+10%"),
    **dict.fromkeys(("numbers", "values", "numeric", "numerics"), Change.REGRESSION.value),
    **dict.fromkeys(("any", "all", "difference", "changed"), Change.DRIFT.value),
}
"""What people write for conditions that have another name."""


def _condition(text: str) -> Condition:
    found = _CONDITION.fullmatch(text)
    if found is not None and found["name"] == Change.SLOWER.value:
        raise ConditionError(f"expected by how much a pass may be slower, as in time:+20%, got {text!r}")
    if found is None or found["name"] not in _NAMES:
        raise ConditionError(f"expected a condition, got {text!r}; {_hint(text)}")
    name, value, glob = found["name"], found["value"], found["glob"] or "*"
    if name in (*COSTS, *VERDICTS, OUTPUTS) and found["glob"]:
        raise ConditionError(f"expected {name!r} without {'@' + glob!r}, as it is the whole model's, got {text!r}")
    if name in LIMITS + COSTS:
        return Condition(name, _number(text, name, value), glob)
    if value is not None:
        limit = f"output:{value}"
        instead = f"; did you mean {limit!r}, a limit?" if name == OUTPUTS and _is_readable(limit) else ""
        raise ConditionError(f"expected {name!r} without a value, got {text!r}{instead}")
    return Condition(name, glob=glob)


def _hint(text: str) -> str:
    """Return what a text that is no condition may have meant: several conditions, another sign, another word."""
    parts = [_CONDITION.fullmatch(part) for part in re.split(r"[;\s|+]+", text)]
    if len(parts) > 1 and all(part is not None and _is_readable(part[0]) for part in parts):
        return f"did you mean {','.join(part[0] for part in parts if part)!r}?"
    name = re.split(r"[^\w-]", text.lower().replace("_", "-"), maxsplit=1)[0]
    value = text[len(name) :].lstrip("=<>: ").rstrip("@ ")
    for meant in (f"{name}:{value}", f"{name}:+{value}%"):
        if name in LIMITS + COSTS and _is_readable(meant):
            return f"did you mean {meant!r}?"
    word = _example(name) if name in _NAMES else _OTHER_WORDS.get(name)
    if word:
        return f"did you mean {word!r}?"
    similar = re.sub(r"'([\w-]+)'", lambda found: repr(_example(found[1])), close(name, _NAMES))
    return similar or f"there are {', '.join(_NAMES)}"


def _example(name: str) -> str:
    """Return a condition of that name."""
    return f"{name}:+10%" if name in COSTS else f"{name}:1e-5" if name in LIMITS else name


def _is_readable(text: str) -> bool:
    try:
        return _condition(text) is not None
    except ConditionError:
        return False


def _number(text: str, name: str, value: str | None) -> float:
    example = _example(name)
    if value is None:
        more = f"; did you mean {OUTPUTS!r}, which fails each output beyond tolerance?" if name == "output" else ""
        raise ConditionError(f"expected a number from 0, as in {example}, got {text!r}{more}")
    try:
        number = float(value.strip().removeprefix("+").removesuffix("%")) / (100 if value.strip().endswith("%") else 1)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise ConditionError(f"expected a number from 0, as in {example}, got {text!r}")
    if name in COSTS and number >= 1 and "%" not in value:
        raise ConditionError(f"expected a percentage, got {text!r}: did you mean '{name}:+{number:g}%'?")
    return number
