"""Holds what a baseline stores of one forward pass; needs no torch.

From a snapshot one can tell later, on another machine, what changed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field

from pytest_torchlens.records import Edge
from pytest_torchlens.records import Environment
from pytest_torchlens.records import Operation
from pytest_torchlens.records import SourcePlace
from pytest_torchlens.records import Status

BUCKETS = 16
"""Sums of a sketch."""
_ANSWER = re.compile(r"(?P<operation>.+?) (?P<function>\S+) (?P<value>True|False|)(?: (?P<branch>.*))?")


@dataclass(frozen=True, kw_only=True)
class Step:
    """One operation, input, output or constant, without its numbers.

    Attributes
    ----------
    id
        Module call, function, and number of that function in that call: ``"layer1.0.conv1/conv2d"``,
        ``"encoder:2/add.3"`` for the third ``add`` of the second call.
    function, applied
        As `Operation.layer_type` and `Operation.func_applied_name`.
    module
        Module calls around it, outermost first.
    parents
        Tensor arguments: the id of the step that made each, and the argument.
    reads
        Parameters and buffers among the arguments: address and argument.
    arguments
        All other arguments as text: ``"3=(1, 1)"``, ``"eps=1e-05"``.
    shape, dtype, device
        Those of the tensor.
    stride
        In elements; None if the tensor is contiguous.
    alias
        The argument whose memory the tensor shares; ``""`` if it has its own.
    in_place
        Whether the call overwrote that argument.
    index
        The tensor's place among those that the call returned; None if it returned one.
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
        """Whether it is a view: its values are those of another step."""
        return bool(self.alias) and not self.in_place

    @property
    def size(self) -> int:
        """Number of elements; 0 if that is not known."""
        size = 1
        for length in self.shape:
            size *= length
        return max(size, 0)

    def operation(self, state: dict[str, Weight]) -> Operation:
        """Return the step as an operation, which `align` takes."""
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
    """A parameter or buffer before the forward pass."""

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
    """A summary of the values of one tensor, as `precision.rounded` leaves them.

    Attributes
    ----------
    digest
        Exact fingerprint; ``""`` if there is none, or if the memory is uninitialised.
    mean, rms, low, high
        Statistics of the finite values.
    nan, inf
        How many values are NaN or infinite.
    holes
        Digest of the places of these values; ``""`` without any.
    sketch
        For each of `BUCKETS` the sum of its values with random signs; empty for views and tensors without numbers.
    unstable
        Whether the call gave other values when it was repeated.
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
    unstable: bool = False

    @property
    def largest(self) -> float:
        """Largest finite magnitude."""
        return max(abs(self.low), abs(self.high))


@dataclass(frozen=True, kw_only=True)
class EnvironmentNumbers:
    """The numbers of one environment.

    Attributes
    ----------
    environment
        The environment.
    numbers
        By id of the step.
    proof
        Status of each part of the validation that was run: ``{"replay": "passed", ...}``.
    """

    environment: Environment
    numbers: dict[str, Numbers]
    proof: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class OldNames:
    """What a pass with renamed weights computes if they hold the values of their old names; a zoo's follow the names.

    What is as in the baseline that the pass was compared with is left out.

    Attributes
    ----------
    baseline
        Fingerprint of that baseline.
    names
        The old names by the new ones.
    weights
        Digests of those of them that are not the baseline's, by the new names.
    classes
        The classes of environment in which it was measured.
    measured
        Numbers that are not the baseline's, by class of environment; none of a class that computes the same.
    """

    baseline: str
    names: dict[str, str]
    weights: dict[str, str] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    measured: dict[str, EnvironmentNumbers] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """A tensor's value that Python read, and the branch it took; its text is ``"gate/gt __bool__ True body"``.

    Attributes
    ----------
    operation
        Id of the step that made the tensor; ``"?"`` if it is not a step.
    function
        As `EscapeRecord.function`.
    value
        The result of a truth test; None for any other function.
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
        The tensors' values that Python read, and the branches it took.
    output
        The returned object: by path, the kind of each tensor and container, ``{"": "tuple of 2", ...}``.
    measured
        Numbers by class of environment.
    sources
        The project's files that the model's classes and the code of its pass are in, relative to the project;
        `ELSEWHERE` if some code is neither in its repository nor in an installed package.  None if they are not known.
    code
        Of a result that waits to be accepted: digests of the project's files that its pass ran, by path.
    old_names
        What it computes with the values of old names; None if it was compared with no baseline that has others.
    """

    model: str
    totals: dict[str, int] = field(default_factory=dict)
    calls: dict[str, ModuleCallRecord] = field(default_factory=dict)
    state: dict[str, Weight] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    answers: tuple[Answer, ...] = ()
    output: dict[str, str] = field(default_factory=dict)
    measured: dict[str, EnvironmentNumbers] = field(default_factory=dict)
    sources: tuple[str, ...] | None = None
    code: dict[str, str] = field(default_factory=dict)
    old_names: OldNames | None = None


ELSEWHERE = "?"
"""In place of files outside of the repository, whose paths differ between machines."""
STATUSES = (Status.PASSED.value, Status.PASSED_WITH_TOLERANCE.value, Status.NOT_APPLICABLE.value)
"""Statuses of a part of a validation that did not fail, the best first."""


def stable_ids(operations: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield the id of each operation, ``"layer1.0.conv1/conv2d"``, from its readable module call and its kind.

    The second of one kind in a call ends with ``.2``.
    """
    counts: Counter[str] = Counter()
    for call, kind in operations:
        name = f"{call}/{kind}"
        counts[name] += 1
        yield name if counts[name] == 1 else f"{name}.{counts[name]}"
