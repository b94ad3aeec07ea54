"""Nothing that the dispatcher computed may be missing from the record."""

from __future__ import annotations

from pytest_torchlens.capture import Recording
from pytest_torchlens.history.source_lines import first_model_line
from pytest_torchlens.records import Failure
from pytest_torchlens.records import PartVerdict
from pytest_torchlens.records import Status
from pytest_torchlens.validate.score import Score
from pytest_torchlens.validate.score import Where


def check_completeness(recording: Recording, where: Where) -> PartVerdict:
    """Return the verdict on a recording that was watched; not run for any other."""
    score = Score("completeness", "dispatcher operations")
    if recording.dispatched is None:
        return PartVerdict(name=score.name, status=Status.NOT_RUN, reason="the dispatcher was not watched")
    score.checked = recording.dispatched
    for missed in recording.missed:
        after = f"after {where.label(missed.call - 1)}" if missed.call else "before the first operation"
        inside = f", in {missed.where}" if missed.where else ""
        score.fail(
            Failure(
                operation=missed.name,
                message=f"{missed.name} ran {after}{inside}, but no recorded operation did it",
                cause="it was called past torch's Python functions: by compiled code, autograd, or another thread",
                advice="call the code in eager mode, or leave completeness out with a reason",
                source_line=first_model_line(missed.frames),
            )
        )
    return score.verdict()
