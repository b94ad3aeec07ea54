"""Holds one operation of a forward pass (one output tensor of one function call), its edges, escapes and loops."""

from __future__ import annotations

import re
from dataclasses import dataclass
from dataclasses import field

TRUTH_TESTS = ("__bool__", "is_nonzero")
"""Functions that read a tensor's truth value."""

_PLACE = re.compile(r"(?P<file>.+):(?P<line>\d+)(?:, in (?P<function>.*))?", re.DOTALL)


@dataclass(frozen=True)
class SourcePlace:
    """A line of code; its text is ``file:line, in function``."""

    file: str
    line: int
    function: str = ""

    @classmethod
    def of_text(cls, text: str) -> SourcePlace | None:
        """Return the place that `str` of it gave; for records of older versions, which have the text alone."""
        found = _PLACE.fullmatch(text)
        return cls(found["file"], int(found["line"]), found["function"] or "") if found else None

    def __str__(self) -> str:
        """Return ``file:line, in function``."""
        return f"{self.file}:{self.line}" + (f", in {self.function}" if self.function else "")


class WithSourcePlace:
    """A record with ``source_place`` and its text ``source_line``; whoever makes one gives the place."""

    source_line: str
    source_place: SourcePlace | None

    def __post_init__(self) -> None:
        """Fill in the text, or the place where a record of an older version has the text alone."""
        if self.source_place is None:
            object.__setattr__(self, "source_place", SourcePlace.of_text(self.source_line))
        elif not self.source_line:
            object.__setattr__(self, "source_line", str(self.source_place))


@dataclass(frozen=True, kw_only=True)
class Operation(WithSourcePlace):
    """The metadata of one operation, under the names of the paper's Supplementary Table 1.

    Labels (``parent_layers`` and the like) are ``layer_label_w_pass`` where the layer has several passes,
    else ``layer_label``.  Sizes are bytes, times are seconds.
    """

    # identity
    layer_label: str
    """Type, number among its type, number among all layers: ``"conv2d_3_7"``; all passes of a layer share it."""
    layer_label_w_pass: str
    """Label and number of the pass: ``"conv2d_3_7:1"``."""
    layer_label_short: str
    """Label without the number among all layers: ``"conv2d_3"``."""
    operation_num: int
    """Place in execution order, counting inputs (from 0); -1 for buffers, constants and parameters."""
    layer_type: str
    """The function's name without underscores: ``"conv2d"``; or input, output, buffer, constant."""
    layer_type_num: int
    """Number of the layer among those of its type, from 1."""
    layer_total_num: int
    """Number of the layer among all, counting inputs (from 0); -1 for buffers and constants."""
    pass_num: int = 1
    """Number of the pass of its layer, from 1."""
    layer_passes_total: int = 1
    """Number of passes of its layer."""
    lookup_keys: tuple[str | int, ...] = ()
    """Keys that find it in its history: places among the saved layers, labels, module addresses."""
    call_id: int = -1
    """Number of the function call that made this tensor (an LSTM is one call and three operations)."""

    # the tensor
    tensor_shape: tuple[int, ...] = ()
    """Shape of the tensor as the operation returned it."""
    tensor_dtype: str = ""
    """As torch prints it: ``"torch.float32"``."""
    tensor_device: str = "cpu"
    """As torch prints it: ``"cpu"``, ``"cuda:0"``."""
    tensor_stride: tuple[int, ...] | None = None
    """Strides in elements; None for tensors that have none (sparse, nested)."""
    tensor_fsize: int = 0
    """Bytes of the tensor's elements."""
    fingerprint: str = ""
    """Hexadecimal digest of the values when they were made; empty if there is none."""
    has_saved_activations: bool = False
    """Whether the tensor was saved."""

    # the call
    func_applied_name: str = ""
    """Name of the function, as in the model's code: ``"__add__"``, ``"conv2d"``."""
    func_time_elapsed: float = 0.0
    """Seconds that the function took."""
    func_position_args_non_tensor: tuple[str, ...] = ()
    """Each non-tensor positional argument as text, with its position: ``"1=2"``."""
    func_keyword_args_non_tensor: tuple[str, ...] = ()
    """Each non-tensor keyword argument as text, with its name: ``"stride=2"``."""
    function_is_inplace: bool = False
    """Whether this tensor is an argument that the function overwrote."""
    function_is_random: bool = False
    """Whether the function drew random numbers."""
    gradfunc_name: str = ""
    """Class of the autograd node: ``"ConvolutionBackward0"``; empty without one."""
    is_part_of_iterable_output: bool = False
    """Whether the function returned several tensors."""
    iterable_output_index: int | None = None
    """Place among the returned tensors, from 0; None if the function returned one."""
    composite: str = ""
    """Dotted names of the Python functions that were expanded to reach this call, outermost first."""
    steps: tuple[str, ...] = ()
    """Layer types of what ran inside it, in order: of `vmap`, `grad`, `torch.cond` and others that call functions."""
    source_line: str = ""
    """``file:line, in function`` of the innermost frame that is not PyTorch's own."""
    source_place: SourcePlace | None = field(default=None, compare=False)
    """That line as file, line and function; None where it is not known."""

    # parameters
    computed_with_params: bool = False
    """Whether parameters are among the arguments."""
    num_param_tensors: int = 0
    """Number of distinct parameters among the arguments."""
    parent_param_addresses: tuple[str, ...] = ()
    """Addresses of these parameters: ``"features.0.weight"``."""
    parent_param_shapes: tuple[tuple[int, ...], ...] = ()
    """Their shapes."""
    num_params_total: int = 0
    """Total number of their elements."""
    num_params_trainable: int = 0
    """Number of their trainable elements; the others are frozen."""
    parent_params_fsize: int = 0
    """Total number of their bytes."""

    # the graph
    edges: tuple[Edge, ...] = ()
    """Its tensor arguments: the parent and the argument of each."""
    parent_layers: tuple[str, ...] = ()
    """Layers whose tensors it reads, buffers and constants included, each once."""
    child_layers: tuple[str, ...] = ()
    """Layers that read its tensor."""
    is_input_layer: bool = False
    """Whether it is an input of the model."""
    has_input_ancestor: bool = False
    """Whether it depends on an input of the model, or is one."""
    is_output_layer: bool = False
    """Whether it is an output of the model."""
    is_output_ancestor: bool = False
    """Whether an output of the model depends on it, or it is one."""
    is_buffer_layer: bool = False
    """Whether it is a buffer of the model."""
    buffer_address: str | None = None
    """Address of the buffer; None if it is not a buffer."""
    is_constant: bool = False
    """A tensor of unknown origin: not a parameter, buffer or input, and no recorded call made it."""
    constant_origin: str = ""
    """The object that holds the constant, or the line that first read it."""
    initialized_inside_model: bool = False
    """Whether the operation reads no tensor, as `torch.rand`."""
    terminated_inside_model: bool = False
    """Whether no operation reads its tensor, and it is not an output."""
    is_terminal_bool_layer: bool = False
    """Whether its tensor is a single truth value that no operation reads, as in an ``if``."""
    is_condition: bool = False
    """Whether a condition of the model's code read its value."""
    in_cond_branch: bool = False
    """Whether only conditions depend on it, and no output does."""

    # modules, each as "address" or "address:pass"
    containing_module_origin: str | None = None
    """Module call that it ran in; None for the model itself."""
    containing_module_origin_nested: tuple[str, ...] = ()
    """All module calls that it ran in, outermost first, without the model itself."""
    modules_entered: tuple[str, ...] = ()
    """Module calls that its tensor is an input of."""
    modules_exited: tuple[str, ...] = ()
    """Module calls that its tensor is an output of, innermost first."""
    is_submodule_output: bool = False
    """Whether its tensor is an output of a submodule."""
    is_bottom_level_submodule_output: bool = False
    """Whether it is the only operation of a submodule, and its output."""
    bottom_level_submodule_exited: str | None = None
    """The call of that submodule; None if there is none."""

    @property
    def label(self) -> str:
        """Its label; with the pass if its layer has several."""
        return self.layer_label_w_pass if self.layer_passes_total > 1 else self.layer_label

    @property
    def same_layer_operations(self) -> tuple[str, ...]:
        """Labels of the other passes of its layer."""
        others = (number for number in range(1, self.layer_passes_total + 1) if number != self.pass_num)
        return tuple(f"{self.layer_label}:{number}" for number in others)

    @property
    def is_computed_inside_submodule(self) -> bool:
        """Whether it ran inside a submodule of the model."""
        return self.containing_module_origin is not None


@dataclass(frozen=True)
class Edge:
    """One tensor argument of an operation.

    Attributes
    ----------
    parent
        Label of the operation (or source) that the value comes from, with its pass if its layer has several.
    argument
        The argument: ``"0"`` for the first positional argument, ``"weight"`` for a keyword,
        ``"0.2"`` for the third tensor of a list that is the first argument.
    through_write
        Whether the parent wrote to the same memory in place, and did not make the tensor.
    """

    parent: str
    argument: str
    through_write: bool = False


@dataclass(frozen=True, kw_only=True)
class EscapeRecord(WithSourcePlace):
    """A value that Python read from a tensor: a truth test, ``item()``, ``numpy()``.

    Attributes
    ----------
    function
        ``"__bool__"``, ``"item"``, ``"tolist"`` and so on.
    operation
        Label of the operation whose tensor was read; ``""`` for a tensor without a label.
    value
        The value, for numbers and truth values; else None.
    before_call
        Number of the next function call.
    source_line
        ``file:line, in function`` of the model's line.
    source_place
        That line as file, line and function.
    statement
        The statement that read it: ``"if"``, ``"while"``, ``"assert"``, ``"conditional expression"``,
        ``"comprehension filter"``, ``"match"``, ``"case"``, ``"and"``, ``"or"``, ``"not"``; ``"expression"`` for
        anything else.
        A number (``x.item() > 0``), a returned value and a variable (``n = int(x)``) are followed to the condition that
        contains them, through plain arithmetic, comparisons and conversions.
    condition
        Source text of the whole condition; ``""`` if the source cannot be read.
    branch
        The branch taken: ``"body"`` or ``"else"``, ``"goes on"`` or ``"ends"``, ``"holds"`` or ``"fails"``,
        ``"keeps"`` or ``"drops"``; ``"undecided"`` if another operand decides, ``""`` if the condition depends on
        more than this value and literals, or reads it through a variable.
    lines_taken, lines_not_taken
        First and last line of the code that ran, and of the code that did not; empty if there is none.  After a
        ``match`` the latter has a pair of lines for each other case: first, last, first, last.
    """

    function: str
    operation: str = ""
    value: bool | int | float | None = None
    before_call: int = 0
    source_line: str = ""
    source_place: SourcePlace | None = field(default=None, compare=False)
    statement: str = "expression"
    condition: str = ""
    branch: str = ""
    lines_taken: tuple[int, ...] = ()
    lines_not_taken: tuple[int, ...] = ()

    @property
    def is_truth_test(self) -> bool:
        """Whether it is the truth value of the tensor itself."""
        return self.function in TRUTH_TESTS

    @property
    def is_condition(self) -> bool:
        """Whether a condition of the model's code depends on it, or a function that tests the tensor."""
        return self.is_truth_test or self.statement != "expression"

    @property
    def is_branching(self) -> bool:
        """Whether another value may run other code; an assertion does not count."""
        return self.is_condition and self.statement != "assert"


@dataclass(frozen=True, kw_only=True)
class LoopRecord:
    """A loop in the source that ran some layers several times; a recursive function counts as a loop.

    Attributes
    ----------
    source_line
        ``file:line, in function`` of the ``for``, ``while``, comprehension or function.
    layers
        Labels of the layers whose innermost loop it is, at least in some passes.
    num_passes
        How often its body ran: the largest number of calls from one place in it.  If the loop runs several times,
        inside another loop or in a function that is called twice, all runs count.
    decided_by
        The values that decide when it ends, each as ``"gt_1_3, asked by while: file:line, in function"``, and the
        tensors over whose rows it loops if data decide their number: ``"nonzero_1_3, by its size: file:line, in
        function"``; empty if the number of passes does not depend on data.
    """

    source_line: str
    layers: tuple[str, ...] = ()
    num_passes: int = 0
    decided_by: tuple[str, ...] = ()

    @property
    def depends_on_data(self) -> bool:
        """Whether another input may change the number of passes."""
        return bool(self.decided_by)
