"""What a baseline stores of one forward pass; needs no torch.

A snapshot holds enough to say, later and on another machine, what changed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from dataclasses import field

from pytest_torchlens.records import Edge
from pytest_torchlens.records import Environment
from pytest_torchlens.records import Operation
from pytest_torchlens.records import SourcePlace
from pytest_torchlens.records import Status

BUCKETS = 31
"""Buckets of the sign sketch: a prime, for widths of tensors are no multiples of one."""
SAMPLES = 16
_ANSWER = re.compile(r"(?P<operation>.+?) (?P<function>\S+) (?P<value>True|False|)(?: (?P<branch>.*))?")


@dataclass(frozen=True, kw_only=True)
class Step:
    """One operation, input, output or constant: all of it but its numbers.

    Attributes
    ----------
    id
        Module call, function, and which of that function in that call: ``"layer1.0.conv1/conv2d"``,
        ``"encoder:2/add.3"`` for the third ``add`` of the second call.
    function, applied
        As `Operation.layer_type` and `Operation.func_applied_name`.
    module
        Module calls around it, outermost first.
    parents
        Tensors that go in: id of the step that made each, and the argument.
    reads
        Parameters and buffers that go in: address and argument.
    arguments
        All other arguments as text: ``"3=(1, 1)"``, ``"eps=1e-05"``.
    shape, dtype, device
        Of the tensor.
    stride
        In elements; None where it is dense in the order of its elements.
    alias
        Argument whose memory the tensor shares; ``""`` where it has its own.
    in_place
        Whether it overwrote that argument.
    index
        Which of the tensors that one call returned; None where it returned one.
    source_place
        The model's line; known in the run itself, not stored.
    """

    id: str
    function: str
    applied: str = ""
    module: tuple[str, ...] = ()
    parents: tuple[Edge, ...] = ()
    reads: tuple[Edge, ...] = ()
    arguments: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    dtype: str = ""
    device: str = "cpu"
    stride: tuple[int, ...] | None = None
    alias: str = ""
    in_place: bool = False
    index: int | None = None
    source_place: SourcePlace | None = field(default=None, compare=False)

    @property
    def is_view(self) -> bool:
        """Whether its values are those of another step, in other order."""
        return bool(self.alias) and not self.in_place

    @property
    def size(self) -> int:
        """Number of elements; 0 where that cannot be told."""
        size = 1
        for length in self.shape:
            size *= length
        return max(size, 0)

    def operation(self, state: dict[str, Weight]) -> Operation:
        """Return it as an operation that can be aligned with others."""
        return Operation(
            layer_label=self.id,
            layer_label_w_pass=self.id,
            layer_label_short=self.id,
            operation_num=-1,
            layer_type=self.function,
            layer_type_num=0,
            layer_total_num=-1,
            tensor_shape=self.shape,
            tensor_dtype=self.dtype,
            tensor_device=self.device,
            func_applied_name=self.applied,
            func_keyword_args_non_tensor=self.arguments,
            function_is_inplace=self.in_place,
            iterable_output_index=self.index,
            parent_param_addresses=tuple(edge.parent for edge in self.reads),
            parent_param_shapes=tuple(state[edge.parent].shape for edge in self.reads if edge.parent in state),
            containing_module_origin=self.module[-1] if self.module else None,
            containing_module_origin_nested=self.module,
            edges=self.parents,
        )


@dataclass(frozen=True, kw_only=True)
class Weight:
    """A parameter or buffer as forward found it."""

    dtype: str
    shape: tuple[int, ...]
    digest: str


@dataclass(frozen=True, kw_only=True)
class ModuleCallRecord:
    """A module call: the call that it was made in (``""`` for the model's own), and the module's class."""

    parent: str
    kind: str


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """The values of one tensor, in short.

    Attributes
    ----------
    digest
        Exact fingerprint; ``""`` where there is none, or the values are nobody's choice (uninitialised memory).
    mean, rms, low, high
        Of the finite values.
    nan, inf
        How many there are.
    holes
        Digest of where they are; ``""`` without any.
    sketch
        In each of `BUCKETS` the sum of its values with random signs; empty for views and for what has no numbers.
    samples
        `SAMPLES` values at hashed positions.
    unstable
        Whether the call, repeated, gave other values.
    """

    digest: str = ""
    mean: float = 0.0
    rms: float = 0.0
    low: float = 0.0
    high: float = 0.0
    nan: int = 0
    inf: int = 0
    holes: str = ""
    sketch: tuple[float, ...] = ()
    samples: tuple[float, ...] = ()
    unstable: bool = False

    @property
    def largest(self) -> float:
        """Largest finite magnitude."""
        return max(abs(self.low), abs(self.high))


@dataclass(frozen=True, kw_only=True)
class EnvironmentNumbers:
    """What was found in one environment.

    Attributes
    ----------
    environment
        Where.
    numbers
        By id of the step.
    proof
        Status of each part of the validation that was run: ``{"replay": "passed", ...}``.
    """

    environment: Environment
    numbers: dict[str, Numbers]
    proof: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """What Python was told of a tensor's value, and did; its text is ``"gate/gt __bool__ True body"``.

    Attributes
    ----------
    operation
        Id of the step that made the tensor; ``"?"`` where none did.
    function
        As `EscapeRecord.function`.
    value
        What a truth test gave; None for all else.
    branch
        As `EscapeRecord.branch`.
    """

    operation: str
    function: str
    value: bool | None = None
    branch: str = ""

    @classmethod
    def of_text(cls, text: str) -> Answer | None:
        """Return the answer that `str` of it gave; for baselines of older versions, which have the text alone."""
        found = _ANSWER.fullmatch(text)
        value = {"True": True, "False": False}.get(found["value"]) if found else None
        return cls(found["operation"], found["function"], value, found["branch"] or "") if found else None

    def __str__(self) -> str:
        """Return the answer in words."""
        value = "" if self.value is None else self.value
        return f"{self.operation} {self.function} {value} {self.branch}".strip()


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """One forward pass of one model.

    Attributes
    ----------
    model
        Class name.
    totals
        Exact sizes: ``"operations"``, ``"parameters"``, ``"peak_bytes"``, ``"flops"``.
    calls
        Module calls by name, ``"layer1.0"`` or ``"cell:2"``.
    state
        Parameters and buffers by address.
    steps
        In execution order.
    answers
        What Python was told of tensors' values, and did.
    output
        What was returned: kind by path of each tensor and of each container around one, ``{"": "tuple of 2", ...}``.
    measured
        Numbers by class of environment.
    """

    model: str
    totals: dict[str, int] = field(default_factory=dict)
    calls: dict[str, ModuleCallRecord] = field(default_factory=dict)
    state: dict[str, Weight] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    answers: tuple[Answer, ...] = ()
    output: dict[str, str] = field(default_factory=dict)
    measured: dict[str, EnvironmentNumbers] = field(default_factory=dict)


STATUSES = (Status.PASSED.value, Status.PASSED_WITH_TOLERANCE.value, Status.NOT_APPLICABLE.value)
"""Of a part of a validation that did not fail, the best first."""
