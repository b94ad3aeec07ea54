"""The check ``onnx``: what onnxruntime computes of the model's ONNX program is the same, but for rounding.

`torch.export` captures the model and `torch.onnx.export` translates the program.  It runs on the inputs that it was
exported with, and on others.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import re
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.export import ExportedProgram

from pytest_torchlens.checks import results
from pytest_torchlens.checks.compare import Compared
from pytest_torchlens.checks.compare import compare_outputs
from pytest_torchlens.checks.compare import words_of
from pytest_torchlens.checks.dynamo import chain_of
from pytest_torchlens.checks.dynamo import first_sentence
from pytest_torchlens.checks.export import NotExportedError
from pytest_torchlens.checks.export import TensorsOf
from pytest_torchlens.checks.export import export_failed
from pytest_torchlens.checks.export import export_program
from pytest_torchlens.checks.export import inputs_to_export
from pytest_torchlens.checks.inputs import Examples
from pytest_torchlens.checks.inputs import inputs_of
from pytest_torchlens.checks.nodes import Values
from pytest_torchlens.checks.nodes import first_differing
from pytest_torchlens.checks.subject import ModelRaisedError
from pytest_torchlens.checks.subject import NotApplicableError
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.tolerance import Judgement
from pytest_torchlens.checks.vacuity import dependent
from pytest_torchlens.history.source import is_model_file
from pytest_torchlens.records import CheckResult
from pytest_torchlens.records import Failure
from pytest_torchlens.records import SourcePlace
from pytest_torchlens.records import output_name

NAME = "onnx"
_WAY = "as ONNX in onnxruntime"
_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_ADVICE = (
    "look whether the program of torch.export differs, too (check 'export'); and for code "
    "that asks for torch.onnx.is_in_onnx_export; else try another opset or optimize=False, and report the operation "
    "to PyTorch, or to onnxruntime"
)
_ADVICE_RAISES = "write the operation with others that ONNX has, or give torch.onnx.export a custom_translation_table"


def run(subject: Subject, dynamic: bool = False, dim: int = 0) -> CheckResult:
    """Export the model to ONNX, and run it in onnxruntime; with `dynamic` also on another batch along `dim`."""
    lacking = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if lacking:
        raise NotApplicableError(f"{', '.join(lacking)} not installed: pip install 'pytest-torchlens[onnx]'")
    if any(not tensor.is_cpu for tensor in inputs_of(subject).values()):
        raise NotApplicableError("the model does not run on the CPU, where onnxruntime is compared")
    subject = dependent(subject)
    if subject.draws:
        raise NotApplicableError(f"the model draws random numbers ({subject.draws}), and onnxruntime others")
    examples = Examples(subject, dim) if dynamic else None
    given, other = inputs_to_export(subject, examples)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            exported = _as_for_onnx(export_program)(subject.model, given, examples, TensorsOf)
        except NotExportedError as error:
            return export_failed(subject, error.error, NAME)
        subject.check_time()
        try:
            program = _Program(exported)
        except Exception as error:  # noqa: BLE001 - the translation may raise anything
            return _not_translated(subject, exported, error)
        return _compare(program, [subject.with_inputs(*given), other])


def _as_for_onnx(export: Callable[..., ExportedProgram]) -> Callable[..., ExportedProgram]:
    """Return a function that exports while `torch.onnx.is_in_onnx_export` is true, as in `torch.onnx.export`."""
    try:
        flags = importlib.import_module("torch.onnx._internal.exporter._flags")
        flagged: Callable[..., ExportedProgram] = flags.set_onnx_exporting_flag(export)
    except (ImportError, AttributeError):  # another version of PyTorch
        return export
    return flagged


class _Program:
    """A program in ONNX, which onnxruntime runs with as many threads as PyTorch has."""

    def __init__(self, exported: ExportedProgram) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            program: Any = torch.onnx.export(exported, dynamo=True, verbose=False)
        self._program = program
        self._spec = exported.call_spec.out_spec

    @property
    def size(self) -> int:
        """Number of its nodes."""
        return len(list(self._program.model.graph))

    def paths(self) -> list[str]:
        """Return the paths of its outputs."""
        names = range(self._spec.num_leaves)
        return [*pytree.tree_unflatten([*names], self._spec)]

    def run(self, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
        """Return the outputs."""
        if self._program._inference_session is None:
            self._program.initialize_inference_session(_session)
        return [*self._program(*args, **kwargs)]

    def watched(self, values: Values) -> Any:
        """Return a function that adds what all nodes compute to `values`."""
        names = [output.name for node in self._program.model.graph for output in node.outputs if output.name]

        def run(*args: Any, **kwargs: Any) -> None:
            for value in self._program.compute_values(names, args, kwargs):
                values.add(value)

        return run


def _session(model: Any) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


# -- results ---------------------------------------------------------------------------------------------------------


def _compare(program: _Program, subjects: list[Subject]) -> CheckResult:
    """Compare the program with the model, on the inputs of each subject."""
    worst, compared, unseen = None, 0, []
    for subject in subjects:
        subject.check_time()
        found = _outputs(program, subject)
        compared += found.count
        unseen += found.unseen
        if found.worst is not None and not found.agrees:
            return _differs(program, subject, found, *found.worst)
        if found.worst is not None and (worst is None or found.worst[1].excess > worst.excess):
            worst = found.worst[1]
    if not compared:
        raise NotApplicableError("; ".join(unseen) or "its output holds no tensor to compare")
    numbers = {"error": worst.error, "reference_error": worst.reference_error, "limit": worst.limit} if worst else {}
    fields: dict[str, Any] = {**numbers, "redrawn": subjects[0].redrawn, "notes": (f"{program.size:,} ONNX nodes",)}
    return results.passed(NAME, compared, unseen=tuple(dict.fromkeys(unseen)), **fields)


def _outputs(program: _Program, subject: Subject) -> Compared:
    """Return the comparison with the outputs of onnxruntime.

    Raises
    ------
    NotApplicableError
        If onnxruntime has no kernel for a node.
    """
    made: list[torch.Tensor] = []
    try:
        with subject.runs(way=_WAY, function=lambda *args, **kwargs: made.extend(program.run(*args, **kwargs))) as call:
            call()
    except ModelRaisedError as error:
        if type(error.error).__name__ == "NotImplemented":
            raise NotApplicableError(f"onnxruntime has no kernel: {first_sentence(str(error.error))}") from error
        raise
    return compare_outputs(subject, dict(zip(program.paths(), made, strict=True)))


def _differs(program: _Program, subject: Subject, found: Compared, path: str, worst: Judgement) -> CheckResult:
    what = f"{output_name(path)} differs {_WAY}: {words_of(worst)}"
    number, values, unseen = _place(program, subject, path)
    failure = results.failure_at(subject.history, number, what, _ADVICE, values=values or found.values)
    numbers = {"error": worst.error, "reference_error": worst.reference_error, "limit": worst.limit}
    fields: dict[str, Any] = {**numbers, "compared": found.count, "redrawn": subject.redrawn}
    return results.failed(NAME, failure, unseen=(*found.unseen, *unseen), **fields)


def _place(program: _Program, subject: Subject, path: str) -> tuple[int | None, str, tuple[str, ...]]:
    """Return the first operation whose value no node computes, both values, and why it is not known."""
    store = Values()
    try:
        number, values = first_differing(subject, store, program.watched(store), path)
    except Exception as error:  # noqa: BLE001 - any call may raise when it is run again
        return None, "", (f"the operation: {type(error).__name__}: {first_sentence(str(error))}",)
    return number, values, () if number is not None else ("the operation: the nodes compute the value of each",)


def _not_translated(subject: Subject, exported: ExportedProgram, error: Exception) -> CheckResult:
    """Return the failure of a translation that raised, at the line of the node that it was at."""
    texts = [str(link) for link in chain_of(error)]
    node = next((match[1] for text in texts if (match := _NODE.search(text))), "")
    what = f"torch.onnx.export raised {type(error).__name__}: {first_sentence(texts[-1])}"
    place = _line_of_node(exported, node)
    failure: Failure = results.failure_at_line(subject.history, place, what, _ADVICE_RAISES)
    unseen = () if place else ("the line: torch.onnx.export does not say it",)
    return results.failed(NAME, failure, unseen=unseen, redrawn=subject.redrawn)


def _name_of(node: Any) -> str:
    """Return the name of a node's operator, after which translation may name its own node."""
    return str(node.target).partition(".")[2].partition(".")[0].removeprefix("special_")


_NODE = re.compile(r"translating node %(\w+)")
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def _line_of_node(exported: ExportedProgram, name: str) -> SourcePlace | None:
    """Return the innermost line of the model that made a node of a program."""
    nodes = [*exported.graph.nodes]
    with contextlib.suppress(Exception):  # what the translation raised may be raised again
        nodes += exported.run_decompositions().graph.nodes
    traces = [str(node.meta.get("stack_trace", "")) for node in nodes if name in (node.name, _name_of(node))]
    frames = [match for trace in traces for match in _FRAME.finditer(trace) if is_model_file(match[1])]
    return SourcePlace(frames[-1][1], int(frames[-1][2]), frames[-1][3]) if frames else None
