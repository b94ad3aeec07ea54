"""Frozen records of plain data, which go to JSON and back without torch."""

from __future__ import annotations

from pytest_torchlens.records.alignment import AlignedEdge
from pytest_torchlens.records.alignment import Alignment
from pytest_torchlens.records.alignment import Pair
from pytest_torchlens.records.alignment import align
from pytest_torchlens.records.checks import CheckResult
from pytest_torchlens.records.checks import CheckStatus
from pytest_torchlens.records.checks import checks_text
from pytest_torchlens.records.checks import count_checks
from pytest_torchlens.records.comparison import UNRESOLVED
from pytest_torchlens.records.comparison import Change
from pytest_torchlens.records.comparison import Comparison
from pytest_torchlens.records.comparison import Exactness
from pytest_torchlens.records.comparison import Finding
from pytest_torchlens.records.comparison import Growth
from pytest_torchlens.records.comparison import OutputsComparison
from pytest_torchlens.records.comparison import RerunResult
from pytest_torchlens.records.comparison import size_text
from pytest_torchlens.records.edits import AppliedEdit
from pytest_torchlens.records.edits import EditsByOperation
from pytest_torchlens.records.edits import changed_text
from pytest_torchlens.records.edits import edits_lines
from pytest_torchlens.records.edits import percent
from pytest_torchlens.records.files import file_name
from pytest_torchlens.records.files import replacing
from pytest_torchlens.records.files import write_atomically
from pytest_torchlens.records.history import ActivationStatistics
from pytest_torchlens.records.history import HistoryRecord
from pytest_torchlens.records.history import ModuleRecord
from pytest_torchlens.records.json import from_json
from pytest_torchlens.records.json import to_json
from pytest_torchlens.records.measurements import Measurements
from pytest_torchlens.records.measurements import ModuleMeasurements
from pytest_torchlens.records.measurements import byte_size
from pytest_torchlens.records.measurements import count_text
from pytest_torchlens.records.merged import MergedGraph
from pytest_torchlens.records.merged import MergedOperation
from pytest_torchlens.records.merged import RolledEdge
from pytest_torchlens.records.merged import merge
from pytest_torchlens.records.merged import pass_label
from pytest_torchlens.records.merged import roll_edges
from pytest_torchlens.records.names import address_of
from pytest_torchlens.records.names import close
from pytest_torchlens.records.names import nearest
from pytest_torchlens.records.names import output_name
from pytest_torchlens.records.names import pass_of
from pytest_torchlens.records.operation import Edge
from pytest_torchlens.records.operation import EscapeRecord
from pytest_torchlens.records.operation import LoopRecord
from pytest_torchlens.records.operation import Operation
from pytest_torchlens.records.operation import SourcePlace
from pytest_torchlens.records.report import SCHEMA
from pytest_torchlens.records.report import TESTS_ZOO
from pytest_torchlens.records.report import Environment
from pytest_torchlens.records.report import ErrorRecord
from pytest_torchlens.records.report import LeftOutCalls
from pytest_torchlens.records.report import ModelReport
from pytest_torchlens.records.report import Outcome
from pytest_torchlens.records.report import RunPart
from pytest_torchlens.records.report import RunReport
from pytest_torchlens.records.report import Stage
from pytest_torchlens.records.report import TracedCall
from pytest_torchlens.records.report import TracedTest
from pytest_torchlens.records.report import left_out_calls
from pytest_torchlens.records.verdict import AuditFinding
from pytest_torchlens.records.verdict import AuditPlace
from pytest_torchlens.records.verdict import Failure
from pytest_torchlens.records.verdict import PartVerdict
from pytest_torchlens.records.verdict import Severity
from pytest_torchlens.records.verdict import Status
from pytest_torchlens.records.verdict import Unproven
from pytest_torchlens.records.verdict import Verdict

__all__ = [
    "UNRESOLVED",
    "ActivationStatistics",
    "AlignedEdge",
    "Alignment",
    "AppliedEdit",
    "RerunResult",
    "AuditFinding",
    "AuditPlace",
    "Change",
    "CheckResult",
    "CheckStatus",
    "Comparison",
    "Edge",
    "EditsByOperation",
    "Environment",
    "ErrorRecord",
    "EscapeRecord",
    "Exactness",
    "Failure",
    "Finding",
    "Growth",
    "LeftOutCalls",
    "left_out_calls",
    "HistoryRecord",
    "LoopRecord",
    "Measurements",
    "MergedGraph",
    "MergedOperation",
    "ModelReport",
    "ModuleMeasurements",
    "ModuleRecord",
    "Operation",
    "OutputsComparison",
    "Outcome",
    "Pair",
    "PartVerdict",
    "RolledEdge",
    "RunPart",
    "RunReport",
    "SCHEMA",
    "TESTS_ZOO",
    "Severity",
    "SourcePlace",
    "Stage",
    "Status",
    "TracedCall",
    "TracedTest",
    "Unproven",
    "Verdict",
    "address_of",
    "align",
    "byte_size",
    "changed_text",
    "checks_text",
    "count_checks",
    "count_text",
    "close",
    "edits_lines",
    "file_name",
    "from_json",
    "merge",
    "nearest",
    "output_name",
    "pass_label",
    "pass_of",
    "percent",
    "replacing",
    "roll_edges",
    "size_text",
    "to_json",
    "write_atomically",
]
