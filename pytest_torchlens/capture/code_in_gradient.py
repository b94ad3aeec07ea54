"""Finds the Python code that autograd runs while forward takes a gradient, and the tensors that it changes.

Such code is a hook, the ``backward`` of a custom function, or the recomputation of a checkpoint.  It belongs to the
autograd graph of the recorded pass: a replay, whose graph is made of the recorded steps, may give another gradient.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import CodeType
from types import FrameType
from typing import Any

import torch

from pytest_torchlens.capture.dispatch_watch import dispatch_modes_removed
from pytest_torchlens.capture.fingerprint import fingerprint
from pytest_torchlens.capture.leaves import is_lazy
from pytest_torchlens.capture.opaque import WriteDetector
from pytest_torchlens.capture.origins import tensors_reached
from pytest_torchlens.capture.tensor_table import TensorTable
from pytest_torchlens.capture.tensor_table import torch_function_disabled
from pytest_torchlens.capture.values import version_of
from pytest_torchlens.capture.warning_places import is_ours

_LIBRARIES = frozenset(["torch", *sys.stdlib_module_names])
"""Packages whose code is named only if no other code ran."""
_DISPATCHER = ("torch._library", "torch._ops", "torch._compile", "torch._dynamo", "torch.compiler")
"""Modules whose code PyTorch runs at each operation under a dispatch mode, ours included."""


@dataclass(frozen=True)
class CodeInGradient:
    """Python code that autograd ran inside a recorded call, and the results of that call, for a replay to take.

    Attributes
    ----------
    name
        Function, file and line of the code, the model's own if there is any; or of the code in an earlier gradient,
        if this one may go through the graph of that.
    outputs
        Copies of the tensors that the call returned.
    written
        Slot and copy of each tensor that the code changed.
    at_unknown_edge
        Whether the gradient begins or ends at an edge of the graph whose tensor is not known: no code need have run.
    """

    name: str
    outputs: tuple[torch.Tensor, ...]
    written: tuple[tuple[int, torch.Tensor], ...]
    at_unknown_edge: bool = False

    @property
    def reason(self) -> str:
        """Why a replay takes the recorded results."""
        if self.at_unknown_edge:
            return "begins or ends at an edge of the autograd graph whose tensor is not known: its results were taken"
        return f"ran {self.name} inside autograd, which no replay can run: its results were taken"


class GradientWatch(WriteDetector):
    """Watches one call of autograd from the moment when it is asked what the call may write.

    It is a profile function of Python.  Where the user has one, it does nothing.

    Parameters
    ----------
    model
        The model: batch normalisation changes its buffers without a new version.
    table
        The tensors of the recording.  Copies the saved ones before any code of the model runs.
    lock
        Held while our own code uses the table.
    on_fault
        Called with an error of our own code.
    """

    def __init__(
        self,
        model: torch.nn.Module | None,
        table: TensorTable,
        lock: AbstractContextManager[Any],
        on_fault: Callable[[Exception], None],
    ) -> None:
        super().__init__()
        self._model, self._table, self._lock, self._on_fault = model, table, lock, on_fault
        self._digests: dict[int, str] = {}
        self._versions: list[tuple[torch.Tensor, int]] = []
        self._outer_task = -1
        self._code: CodeType | None = None
        self._is_of_library = True
        self.has_unknown_edge = False

    @property
    def code(self) -> str:
        """Function, file and line of the code that ran; ``""`` if none did."""
        code = self._code
        place = "" if code is None else f"{os.path.basename(code.co_filename)}, line {code.co_firstlineno}"  # noqa: PTH119
        return "" if code is None else f"{code.co_name} ({place})"

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        """Begin; `changed_tensors` returns what the call wrote."""
        if sys.getprofile() is None:
            self._outer_task = torch._C._current_graph_task_id()
            sys.setprofile(self._note)
        return ()

    def changed_tensors(self) -> tuple[torch.Tensor, ...]:
        """Return the tensors that changed, all over the same memory if one did, and end the watch."""
        self.stop()
        before, self._versions = self._versions, []
        with torch_function_disabled():
            return tuple([tensor for tensor, version in before if self._has_changed(tensor, version)])

    def _has_changed(self, tensor: torch.Tensor, version: int) -> bool:
        digest = self._digests.get(id(tensor))
        return version_of(tensor) != version or (digest is not None and fingerprint(tensor) != digest)

    def stop(self) -> None:
        """End the watch, unless the model has set another profile function."""
        if sys.getprofile() == self._note:
            sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not self._is_of_library or torch._C._current_graph_task_id() == self._outer_task:
            return
        module = str(frame.f_globals.get("__name__", ""))
        package = module.partition(".")[0]
        if is_ours(frame) or module.startswith(_DISPATCHER):
            return
        if self._code is None:
            self._before_code()
        if self._code is None or package not in _LIBRARIES:
            self._code, self._is_of_library = frame.f_code, package in _LIBRARIES

    def _before_code(self) -> None:
        """Note what the code that is about to run may change; the user's modes see none of it."""
        try:
            with self._lock, torch_function_disabled(), dispatch_modes_removed():
                for tensor in self._tensors_of_model():
                    self._table.read(tensor)
                    if self._table.parameters_too or not isinstance(tensor, torch.nn.Parameter):
                        self._digests[id(tensor)] = fingerprint(tensor)
                known = self._table.live()
                self._versions = [(tensor, version_of(tensor)) for tensor in known]
                self._table.before_write(known)
        except Exception as error:  # noqa: BLE001 - the model's code is still to run
            self._on_fault(error)

    def _tensors_of_model(self) -> list[torch.Tensor]:
        """Return the tensors in attributes of the model, registered or not, and in globals that its forwards use."""
        every = [] if self._model is None else tensors_reached(self._model)
        return [tensor for tensor in every if not is_lazy(tensor)]
