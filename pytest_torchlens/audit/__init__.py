"""Audits a model by one recorded pass: nothing is run, and torch is not needed."""

from __future__ import annotations

from itertools import islice

from pytest_torchlens.audit.rules import RULES
from pytest_torchlens.audit.rules import AuditRule
from pytest_torchlens.audit.subject import ModelFacts
from pytest_torchlens.audit.subject import Subject
from pytest_torchlens.records import AuditFinding
from pytest_torchlens.records import Severity

__all__ = ["MOST_PLACES", "RULES", "ModelFacts", "AuditRule", "Subject", "audit"]

MOST_PLACES = 20
"""Places that one finding lists."""
_ORDER = list(Severity)


def audit(subject: Subject) -> tuple[AuditFinding, ...]:
    """Return a finding for each rule that a model breaks, the most severe first."""
    found = [finding for rule in RULES if (finding := _judge_rule(rule, subject))]
    return tuple(sorted(found, key=lambda finding: _ORDER.index(finding.severity)))


def _judge_rule(rule: AuditRule, subject: Subject) -> AuditFinding | None:
    """Return a rule's finding; if the rule itself raises, the finding says so, and the model does not fail."""
    try:
        return _finding(rule, subject)
    except Exception as error:  # noqa: BLE001
        return AuditFinding(
            rule=rule.name,
            severity=Severity.LOW,
            title=f"Not judged: {rule.title}",
            meaning=f"Judging this rule failed: {type(error).__name__}: {error}. Of the model it says nothing.",
            advice="Report it to pytest-torchlens, with the model if you can.",
        )


def _finding(rule: AuditRule, subject: Subject) -> AuditFinding | None:
    places = tuple(rule.find(subject))
    if not places:
        return None
    return AuditFinding(
        rule=rule.name,
        severity=rule.severity,
        title=rule.title,
        meaning=rule.meaning,
        advice=rule.advice,
        places=tuple(islice(places, MOST_PLACES)),
        num_places=len(places),
    )
