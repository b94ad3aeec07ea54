"""What the audit found, for pages, lines and counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_torchlens.draw.text import counted
from pytest_torchlens.records import Severity
from pytest_torchlens.records import Stage
from pytest_torchlens.report.drawings import row_id

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_torchlens.records import AuditFinding
    from pytest_torchlens.records import AuditPlace
    from pytest_torchlens.records import ModelReport


@dataclass(frozen=True)
class Told:
    """A finding, and the rows of the table of layers that its places are in."""

    finding: AuditFinding
    places: tuple[tuple[AuditPlace, str], ...]
    """Each with the id of its row; empty where it has none."""

    @property
    def num_more(self) -> int:
        """Places that are not named."""
        return self.finding.num_places - len(self.places)


def was_audited(report: ModelReport) -> bool:
    """Whether the audit came to its end: it needs a record, and comes after all drawings."""
    return report.history is not None and report.stage is not Stage.DRAW


def told(report: ModelReport) -> list[Told]:
    """Return the findings of a model with their places' rows."""
    operations = report.history.operations if report.history else ()
    rows = {key: row_id(op) for op in operations for key in (op.layer_label_w_pass, op.label)}
    return [
        Told(finding, tuple((place, rows.get(place.operation, "")) for place in finding.places))
        for finding in report.findings
    ]


def severities(reports: Iterable[ModelReport]) -> str:
    """Return how many findings there are: ``"1 high, 2 medium"``; empty where there is none."""
    counts = Counter(finding.severity for report in reports for finding in report.findings)
    return ", ".join(f"{counts[severity]:,} {severity.value}" for severity in Severity if counts[severity])


def weight(report: ModelReport) -> int:
    """Return what puts the model with the gravest findings last when sorted."""
    counts = Counter(finding.severity for finding in report.findings)
    return sum(counts[severity] * 100**place for place, severity in enumerate(reversed(Severity)))


def line(finding: AuditFinding) -> str:
    """Return a finding in one line, with the first of its places where that is known."""
    first = next(iter(finding.places), None)
    parts = (first.operation or first.module, first.source_line, first.detail) if first else ()
    where = f": {', '.join(filter(None, parts))}" if first else ""
    return f"{finding.title}, at {counted(finding.num_places, 'place')}{where}"
