"""Makes programs of an operation that is not steady, or whose backward gives no useful gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace

import torch

from pytest_torchlens.capture import Call
from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.checks.evidence import BadGradient
from pytest_torchlens.checks.evidence import Unsteady
from pytest_torchlens.run.repro.gap import Form
from pytest_torchlens.run.repro.gap import Gap
from pytest_torchlens.run.repro.program import Program
from pytest_torchlens.run.repro.program import Read
from pytest_torchlens.run.repro.program import program_of
from pytest_torchlens.run.repro.program import why_unprintable
from pytest_torchlens.run.repro.script import TENSORS_TEXT
from pytest_torchlens.run.repro.script import definition_text
from pytest_torchlens.run.repro.script import layout_lines
from pytest_torchlens.run.repro.statements import UnprintableError


def repeated_program(evidence: Unsteady) -> tuple[Program, Gap]:
    """Return the program of an operation that gives other values each time that it runs.

    Raises
    ------
    UnprintableError
        If it has no form as code, or reads other values in the second pass: then it is not at fault.
    """
    one, other = evidence.history.recording, evidence.other.recording
    call, again = one.calls[evidence.number], other.calls[evidence.other_number]
    for (path, read), (_, second) in zip(edges_in(call), edges_in(again), strict=False):
        if value_of(read).fingerprint != value_of(second).fingerprint:
            raise UnprintableError(
                f"it gives something else as it reads something else: {_source(evidence, read, path)}"
            )
    _check_printable(evidence.history.recording, evidence.number)
    program = program_of(one, [evidence.number], _saved)
    if evidence.reseeded:  # each run draws anew
        statements = tuple(replace(statement, before="") for statement in program.statements)
        inputs = {name: tensor for name, tensor in program.inputs.items() if not name.startswith("rng_state")}
        program = replace(program, statements=statements, inputs=inputs)
    return program.with_result(0), Gap(Form.REPEATS, 1.0)


def _source(evidence: Unsteady, read: Read, path: str) -> str:
    value, recording = value_of(read), evidence.history.recording
    source = recording.sources[value.position] if value.call < 0 else None
    what = f"the {source.kind} {source.name!r}" if source is not None and source.name else f"its argument {path}"
    return f"{what} has changed between the passes, which is the work of the module that keeps it"


def _saved(call: Call, path: str, read: Read) -> torch.Tensor | None:
    return value_of(read).tensor


def _check_printable(recording: Recording, number: int) -> None:
    if reason := why_unprintable(recording, number):
        raise UnprintableError(f"it cannot be written as code of torch alone: {reason}")


def backward_program(evidence: BadGradient) -> tuple[Program, Gap]:
    """Return the program of an operation and its backward.

    Raises
    ------
    UnprintableError
        If it has no form as code.
    """
    recording, number = evidence.history.recording, evidence.number
    _check_printable(recording, number)
    program = program_of(recording, [number], _saved)
    if not program.leaves:
        raise UnprintableError("it overwrites its input, so that it cannot run alone with gradients")
    call, way = recording.calls[number], Backward(evidence.state)
    if evidence.state == "missing":
        place = next((at for at, value in enumerate(call.outputs) if not value.requires_grad), 0)
        return replace(program.with_result(place), way=way), Gap(Form.GRADIENTS, 1.0)
    came = {f"gradient{at or ''}": (at, one) for at, one in enumerate(evidence.gradients) if one is not None}
    gradients = {name: one.detach() for name, (_, one) in came.items()}
    results = tuple(program.results[at] for at, _ in came.values())
    inputs = {**program.inputs, **gradients}
    return replace(program, results=results, inputs=inputs, way=Backward(evidence.state, tuple(gradients))), Gap(
        Form.GRADIENTS, 1.0
    )


@dataclass(frozen=True)
class Backward:
    """The backward of the calls, from a gradient of each of their results."""

    together = False
    state: str
    gradients: tuple[str, ...] = ()
    """Names of the inputs that are gradients of results."""

    def settings(self, program: Program) -> Mapping[str, str]:
        """Return the settings of the process."""
        return program.settings

    def functions(self, program: Program) -> str:
        """Return the function."""
        layouts = [*layout_lines(replace(program, leaves=()), program.inputs)]
        layouts += [f"{name}.requires_grad_()" for name in program.leaves]
        if not self.gradients:
            return definition_text(program, "compute", layouts=layouts)
        lists = [", ".join(names) for names in (program.results, program.leaves, self.gradients)]
        result = f"torch.autograd.grad([{lists[0]}], [{lists[1]}], [{lists[2]}], allow_unused=True)"
        return definition_text(replace(program, results=(result,)), "compute", layouts=layouts)

    def ending(self, program: Program, *, is_complex: bool) -> str:
        """Return the code that runs it."""
        return ENDINGS[self.state]

    def with_result(self, place: int) -> Backward:
        """Return itself."""
        return self


_GRADIENTS = f"""if __name__ == "__main__":
    tensors = {TENSORS_TEXT}
    gradients = [one for one in compute(**tensors) if one is not None]
"""
ENDINGS = {
    "missing": f"""if __name__ == "__main__":
    result = compute(**{TENSORS_TEXT})
    print(f"torch {{torch.__version__}}: requires_grad of the result is {{result.requires_grad}}, of its input True")
    sys.exit(int(not result.requires_grad))
""",
    "not finite": f"""{_GRADIENTS}    wrong = sum(int((~one.isfinite()).sum()) for one in gradients)
    total = sum(one.numel() for one in gradients)
    print(f"torch {{torch.__version__}}: {{wrong}} of {{total}} elements of the gradients are not finite")
    sys.exit(int(wrong > 0))
""",
    "zero": f"""{_GRADIENTS}    values = sum(int((one != 0).sum()) for one in gradients)
    total = sum(one.numel() for one in gradients)
    print(f"torch {{torch.__version__}}: {{values}} of {{total}} elements of the gradients are not zero")
    sys.exit(int(values == 0))
""",
}
