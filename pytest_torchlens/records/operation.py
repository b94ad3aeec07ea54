"""One operation of a forward pass: one output tensor of one function call."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Edge:
    """One tensor argument of an operation.

    Attributes
    ----------
    parent
        Label of the operation (or source) the value came from, with its pass where its layer has several.
    argument
        Where it went in: ``"0"`` for the first positional argument, ``"weight"`` for a keyword,
        ``"0.2"`` for the third tensor of a list that is the first argument.
    through_write
        True where the parent is an in-place write to the same memory and not the maker of the tensor.
    """

    parent: str
    argument: str
    through_write: bool = False


@dataclass(frozen=True, kw_only=True)
class Operation:
    """The metadata of one operation, under the names of the paper's Supplementary Table 1.

    Labels (``parent_layers`` and the like) are ``layer_label_w_pass`` where the layer has several passes,
    else ``layer_label``.  Sizes are bytes, times are seconds.
    """

    # identity
    layer_label: str
    layer_label_w_pass: str
    layer_label_short: str
    operation_num: int
    """Place in execution order, counting inputs (from 0); -1 for buffers, constants and parameters."""
    layer_type: str
    layer_type_num: int
    layer_total_num: int
    pass_num: int = 1
    layer_passes_total: int = 1
    lookup_keys: tuple[str | int, ...] = ()
    call_id: int = -1
    """Number of the function call that made this tensor (an LSTM is one call and three operations)."""

    # the tensor
    tensor_shape: tuple[int, ...] = ()
    tensor_dtype: str = ""
    """As torch prints it: ``"torch.float32"``."""
    tensor_device: str = "cpu"
    tensor_stride: tuple[int, ...] | None = None
    """Strides in elements; None for tensors that have none (sparse, nested)."""
    tensor_fsize: int = 0
    fingerprint: str = ""
    """Hexadecimal digest of the values as they were when made; empty where none could be had."""
    has_saved_activations: bool = False

    # the call
    func_applied_name: str = ""
    func_time_elapsed: float = 0.0
    func_args_non_tensor: tuple[str, ...] = ()
    """Each non-tensor positional argument as text, with its position: ``"1=2"``."""
    func_kwargs_non_tensor: tuple[str, ...] = ()
    function_is_inplace: bool = False
    function_is_random: bool = False
    gradfunc_name: str = ""
    is_part_of_iterable_output: bool = False
    iterable_output_index: int | None = None
    composite: str = ""
    """Dotted names of the Python functions that were expanded to reach this call, outermost first."""
    source_line: str = ""
    """``file:line, in function`` of the innermost frame that is not PyTorch's own."""

    # parameters
    computed_with_params: bool = False
    parent_param_addresses: tuple[str, ...] = ()
    parent_param_shapes: tuple[tuple[int, ...], ...] = ()
    num_params_total: int = 0
    parent_params_fsize: int = 0

    # the graph
    edges: tuple[Edge, ...] = ()
    parent_layers: tuple[str, ...] = ()
    child_layers: tuple[str, ...] = ()
    is_input_layer: bool = False
    has_input_ancestor: bool = False
    is_output_layer: bool = False
    is_output_ancestor: bool = False
    is_buffer_layer: bool = False
    buffer_address: str | None = None
    is_constant: bool = False
    """A tensor of unknown origin: not a parameter, buffer or input, and no recorded call made it."""
    constant_origin: str = ""
    initialized_inside_model: bool = False
    terminated_inside_model: bool = False
    is_terminal_bool_layer: bool = False
    is_condition: bool = False
    """Whether a condition of the model's code asked for its value."""
    in_cond_branch: bool = False
    """Whether it serves conditions alone: no output is made from it."""

    # modules, each as "address" or "address:pass"
    containing_module_origin: str | None = None
    containing_modules_origin_nested: tuple[str, ...] = ()
    modules_entered: tuple[str, ...] = ()
    modules_exited: tuple[str, ...] = ()
    is_submodule_output: bool = False
    is_bottom_level_submodule_output: bool = False
    bottom_level_submodule_exited: str | None = None

    @property
    def same_layer_operations(self) -> tuple[str, ...]:
        """Labels of the other passes of its layer."""
        others = (number for number in range(1, self.layer_passes_total + 1) if number != self.pass_num)
        return tuple(f"{self.layer_label}:{number}" for number in others)

    @property
    def is_computed_inside_submodule(self) -> bool:
        """Whether it ran inside a submodule of the model."""
        return self.containing_module_origin is not None
