"""The changes that tests must notice, by part of the package."""

from __future__ import annotations

from tests.mutants.catalogue import baseline
from tests.mutants.catalogue import capture
from tests.mutants.catalogue import recorder
from tests.mutants.catalogue import results
from tests.mutants.catalogue import validate
from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *capture.MUTANTS,
    *validate.MUTANTS,
    *baseline.MUTANTS,
    *recorder.MUTANTS,
    *results.MUTANTS,
)
