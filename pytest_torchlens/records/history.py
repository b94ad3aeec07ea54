"""Everything plain about one forward pass."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_torchlens.records.control import EscapeRecord
from pytest_torchlens.records.control import LoopRecord
from pytest_torchlens.records.operation import Operation


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
    """

    address: str
    module_type: str
    num_passes: int = 0
    children: tuple[str, ...] = ()
    num_params: int = 0


@dataclass(frozen=True, kw_only=True)
class HistoryRecord:
    """Model side of Supplementary Table 1, and the operations."""

    model_name: str
    random_seed_used: int | None = None
    model_is_recurrent: bool = False
    model_max_recurrent_loops: int = 1
    model_is_branching: bool = False
    model_has_conditional_branching: bool = False
    num_operations: int = 0
    """Function calls recorded, those without part in the result included."""
    num_layers: int = 0
    """Inputs, layers of one or more passes, and outputs."""
    num_tensors_total: int = 0
    tensor_fsize_total: int = 0
    num_tensors_saved: int = 0
    tensor_fsize_saved: int = 0
    total_param_tensors: int = 0
    total_param_layers: int = 0
    total_params: int = 0
    """Elements of all distinct parameters of the model, used or not."""
    total_params_fsize: int = 0
    elapsed_time_total: float = 0.0
    elapsed_time_function_calls: float = 0.0
    elapsed_time_logging: float = 0.0
    layer_list: tuple[str, ...] = ()
    """Labels of inputs, operations and outputs in execution order (no buffers, no constants), each with its pass
    where its layer has several."""
    operations: tuple[Operation, ...] = ()
    """In execution order; buffers and constants stand before their first use."""
    escapes: tuple[EscapeRecord, ...] = ()
    """Values handed over to Python, in order: truth tests of tensors, ``item()`` and the like."""
    loops: tuple[LoopRecord, ...] = ()
    """Loops of the source that ran layers several times."""
    modules: tuple[ModuleRecord, ...] = ()
