"""Runs generated programs by seed, and keeps the figures: what was generated, what came of it, and what is wrong."""

from __future__ import annotations

import dataclasses
import re
import time
from collections import Counter
from collections.abc import Iterator

from tests.validate.generated import steps_of_models
from tests.validate.generated import steps_of_tensors
from tests.validate.generated.faults import ACCEPTED
from tests.validate.generated.faults import Seeded
from tests.validate.generated.faults import seed_fault
from tests.validate.generated.model import build
from tests.validate.generated.program import STEPS
from tests.validate.generated.program import Program
from tests.validate.generated.program import generate
from tests.validate.generated.program import in_words
from tests.validate.generated.program import refused
from tests.validate.generated.program import smallest
from tests.validate.generated.verdicts import check
from tests.validate.generated.verdicts import names_in

__all__ = ["Figures", "steps_of_models", "steps_of_tensors"]
ONE_IN = 5  # of so many programs one gets a fault


@dataclasses.dataclass
class Figures:
    """Counts over programs, and a text for each that is not as it should be."""

    programs: int = 0
    operations: int = 0
    seconds: float = 0.0
    kinds: Counter[str] = dataclasses.field(default_factory=Counter)
    statuses: Counter[str] = dataclasses.field(default_factory=Counter)
    faults: Counter[str] = dataclasses.field(default_factory=Counter)
    wrong: list[str] = dataclasses.field(default_factory=list)

    def run(self, seed: int, *, shrink: bool = False) -> None:
        """Generate the program of a seed and check it, or seed a fault into it; `shrink` what is wrong."""
        start = time.perf_counter()
        program = generate(seed, build)
        self.programs += 1
        self.kinds.update({STEPS[name].name for name in names_in(program)})
        if seed % ONE_IN == ONE_IN - 1:
            self._with_fault(program, seed)
        else:
            self._without_fault(program, seed, shrink)
        self.seconds += time.perf_counter() - start

    def _without_fault(self, program: Program, seed: int, shrink: bool) -> None:
        try:
            checked = check(program)
        except Exception as error:  # noqa: BLE001 - a crash is reported as one
            wrong = f"{type(error).__name__}: {error}"
        else:
            self.operations += checked.operations
            self.statuses[checked.status.value] += 1
            wrong = checked.wrong[0] if checked.wrong else ""
        if wrong:
            least = smallest(program, lambda one: _is_wrong_alike(one, wrong)) if shrink else program
            self.wrong.append(f"seed {seed}: {wrong}\n{in_words(least, build)}")

    def _with_fault(self, program: Program, seed: int) -> None:
        try:
            seeded = seed_fault(program, seed)
        except Exception as error:  # noqa: BLE001 - as above
            self.wrong.append(f"seed {seed}, with a fault: {type(error).__name__}: {error}\n{in_words(program, build)}")
            return
        if seeded is None:
            self.faults["not possible"] += 1
            return
        self.faults["seeded"] += 1
        self.faults["behaviour" if seeded.kind in ACCEPTED else "record"] += 1
        self.faults["found"] += seeded.found
        self.faults["named"] += seeded.named
        self.faults["without effect"] += seeded.without_effect
        if not seeded.found and not seeded.without_effect:
            self.wrong.append(f"seed {seed}: {_in_words(seeded)}\n{in_words(program, build)}")

    def sentences(self) -> Iterator[str]:
        """Yield the figures in words."""
        yield f"{self.programs} programs, {self.operations} operations, {self.seconds:.0f} s"
        yield "programs with: " + ", ".join(f"{kind} {count}" for kind, count in sorted(self.kinds.items()))
        yield ", ".join(f"{status} {count}" for status, count in sorted(self.statuses.items()))
        yield "faults: " + ", ".join(f"{what} {count}" for what, count in sorted(self.faults.items()))
        yield f"{len(self.wrong)} wrong"


def _in_words(seeded: Seeded) -> str:
    return f"a fault was not found: {seeded.kind} at {seeded.where}, the verdict is {seeded.status.value}"


def _is_wrong_alike(program: Program, wrong: str) -> bool:
    if refused(program, build) is not None:
        return False
    try:
        found = check(program).wrong
    except Exception as error:  # noqa: BLE001 - as above
        found = (f"{type(error).__name__}: {error}",)
    return bool(found) and _without_names(found[0]) == _without_names(wrong)


def _without_names(wrong: str) -> str:
    """Return the beginning of a message without labels, digests and numbers."""
    return re.sub(r"\w*_\d+_\d+(:\d+)?|[0-9a-f]{16}|'[^']*'|\d+", "#", wrong)[:60]
