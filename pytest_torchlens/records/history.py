"""Holds the plain data of one forward pass: the model, its modules and operations, statistics of its activations."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_torchlens.records.edits import AppliedEdit
from pytest_torchlens.records.operation import EscapeRecord
from pytest_torchlens.records.operation import LoopRecord
from pytest_torchlens.records.operation import Operation


@dataclass(frozen=True, kw_only=True)
class HistoryRecord:
    """Model side of Supplementary Table 1, and the operations."""

    model_name: str
    """Class name of the model."""
    random_seed_used: int | None = None
    """The seed set before the pass; None if none was."""
    model_is_recurrent: bool = False
    """Whether some layer has several passes."""
    model_max_recurrent_loops: int = 1
    """The largest number of passes of any layer."""
    model_is_branching: bool = False
    """Whether some operation has more than one child."""
    model_has_conditional_branching: bool = False
    """Whether a condition of the model's code read a tensor's value."""
    num_operations: int = 0
    """Function calls recorded, those without part in the result included."""
    num_layers: int = 0
    """Inputs, layers of one or more passes, and outputs."""
    num_tensors_total: int = 0
    """Tensors in the graph: inputs, operations, outputs, buffers and constants."""
    tensor_fsize_total: int = 0
    """Their bytes."""
    num_tensors_saved: int = 0
    """Tensors whose values were saved."""
    tensor_fsize_saved: int = 0
    """Bytes of the saved tensors, as the model made them."""
    total_param_tensors: int = 0
    """Distinct parameters of the model."""
    total_param_layers: int = 0
    """Layers that compute with parameters."""
    total_params: int = 0
    """Elements of all distinct parameters of the model, used or not."""
    total_params_trainable: int = 0
    """Those of these elements that are trained; the others are frozen."""
    total_params_fsize: int = 0
    """Bytes of all distinct parameters of the model."""
    pass_start_time: float = 0.0
    """When the forward pass began, in seconds since the epoch."""
    pass_end_time: float = 0.0
    """When the forward pass ended, in seconds since the epoch."""
    elapsed_time_total: float = 0.0
    """Seconds of the forward pass, recording included."""
    elapsed_time_function_calls: float = 0.0
    """Seconds spent in the recorded functions."""
    elapsed_time_torchlens_logging: float = 0.0
    """Seconds of the forward pass spent outside recorded functions: on recording, and in the model's own Python."""
    layer_list: tuple[str, ...] = ()
    """Labels of inputs, operations and outputs in execution order (no buffers, no constants), each with its pass
    where its layer has several."""
    top_level_module_passes: tuple[str, ...] = ()
    """Module calls that the model itself made, as ``address:pass``, in order."""
    operations: tuple[Operation, ...] = ()
    """In execution order; buffers and constants stand before their first use."""
    escapes: tuple[EscapeRecord, ...] = ()
    """Values that Python read, in order: truth tests of tensors, ``item()`` and the like."""
    loops: tuple[LoopRecord, ...] = ()
    """Loops of the source that ran layers several times."""
    modules: tuple[ModuleRecord, ...] = ()
    """The modules, the model itself first."""
    edits: tuple[AppliedEdit, ...] = ()
    """The edits that `edit` made in this pass; empty for a pass as the model makes it."""
    changed_by: dict[str, float] | None = None
    """How much each tensor behind an edit differs from the pass without edits, by label: the norm of the difference,
    relative to the norm; infinite if the change cannot be measured.  None without edits."""


@dataclass(frozen=True, kw_only=True)
class ModuleRecord:
    """One module of the model and how it was used.

    Attributes
    ----------
    address
        First name in ``named_modules()``; ``""`` for the model itself.
    module_type
        Class name.
    num_passes
        How often it was called.
    children
        Addresses of its direct submodules in the order of their first calls, those never called last.
    num_params
        Elements of the parameters directly its own, each tensor once in the model.
    pass_children
        For each of its calls the module calls that it made, as ``address:pass``, in order.
    """

    address: str
    module_type: str
    num_passes: int = 0
    children: tuple[str, ...] = ()
    num_params: int = 0
    pass_children: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, kw_only=True)
class ActivationStatistics:
    """Statistics of the tensors of a forward pass.

    The lists have one entry for each tensor of real numbers that has elements, in execution order.  Means, standard
    deviations and extremes are those of the finite elements, ``nan`` if there are none.
    """

    operations: tuple[str, ...] = ()
    """Label of each tensor's operation."""
    mean: tuple[float, ...] = ()
    """Mean of each."""
    std: tuple[float, ...] = ()
    """Standard deviation of each."""
    minimum: tuple[float, ...] = ()
    """Smallest element of each."""
    maximum: tuple[float, ...] = ()
    """Largest element of each."""
    zeros: tuple[float, ...] = ()
    """Share of the elements of each that are zero, from 0 to 1."""
    not_finite: tuple[float, ...] = ()
    """Share of the elements of each that are infinite or NaN, from 0 to 1."""
    nan: tuple[float, ...] = ()
    """Share of the elements of each that are NaN, from 0 to 1; empty if the run did not ask for it."""
    histograms: tuple[tuple[int, ...], ...] = ()
    """Number of finite elements of each in equal steps from its minimum to its maximum."""
    pictures: tuple[str, ...] = ()
    """Picture of each, ``"17x35:…"``: height, width, and in base64 a byte a pixel, 0 for its minimum and 255 for its
    maximum.  Empty if the run did not ask for them."""
