"""Finds the Python code that autograd runs while forward takes a gradient, and the buffers that it changes.

Such code is a hook, the ``backward`` of a custom function, or the recomputation of a checkpoint.  It belongs to the
autograd graph of the recorded pass: a replay, whose graph is made of the recorded steps, may give another gradient.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from collections.abc import Iterable
from dataclasses import dataclass
from types import CodeType
from types import FrameType
from typing import Any

import torch

from pytest_torchlens.capture.fingerprint import fingerprint
from pytest_torchlens.capture.opaque import WriteDetector

_OURS = __name__.partition(".")[0]
_ABOUT_IT = frozenset(["torch", *sys.stdlib_module_names])
"""Packages whose code is named only if no other ran."""


@dataclass(frozen=True)
class CodeInGradient:
    """Python code that autograd ran inside a recorded call, and what the call left, to be taken in a replay.

    Attributes
    ----------
    name
        Function, file and line of the code, the model's own if there is any.
    outputs
        Copies of the tensors that the call returned.
    written
        Slot and copy of each tensor that the code changed.
    """

    name: str
    outputs: tuple[torch.Tensor, ...]
    written: tuple[tuple[int, torch.Tensor], ...]


class GradientWatch(WriteDetector):
    """Watches one call of autograd from the moment when it is asked what the call may write.

    Parameters
    ----------
    buffers
        Returns the buffers of the model: batch normalisation changes some without a new version.
    known
        Returns all tensors that the recording knows then.
    before_write
        Is given these tensors before any code of the model runs.
    """

    def __init__(
        self,
        buffers: Callable[[], list[torch.Tensor]],
        known: Callable[[], list[torch.Tensor]],
        before_write: Callable[[Iterable[torch.Tensor]], None],
    ) -> None:
        super().__init__()
        self._of_model, self._known, self._before_write = buffers, known, before_write
        self._buffers: list[torch.Tensor] = []
        self._digests: dict[int, str] = {}
        self._versions: list[tuple[torch.Tensor, int]] = []
        self._code: CodeType | None = None
        self._is_about_it = True
        self._watches = False

    @property
    def code(self) -> str:
        """Function, file and line of the code that ran; ``""`` if none did."""
        code = self._code
        place = "" if code is None else f"{os.path.basename(code.co_filename)}, line {code.co_firstlineno}"  # noqa: PTH119
        return "" if code is None else f"{code.co_name} ({place})"

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        """Begin; what will be written shows at the end."""
        if sys.getprofile() is None:  # a profiler of the user's is left alone
            self._buffers = self._of_model()
            self._versions = [(tensor, tensor._version) for tensor in self._known() if not tensor.is_inference()]
            self._watches = True
            sys.setprofile(self._note)
        return ()

    def changed_tensors(self) -> tuple[torch.Tensor, ...]:
        """Return the tensors that changed, all over the same memory if one did, and end the watch."""
        self.stop()
        before, self._versions = self._versions, []
        return tuple([tensor for tensor, version in before if tensor._version != version or self._is_other(tensor)])

    def _is_other(self, tensor: torch.Tensor) -> bool:
        digest = self._digests.get(id(tensor))
        return digest is not None and fingerprint(tensor) != digest

    def stop(self) -> None:
        """End the watch, if it has begun."""
        if self._watches:
            sys.setprofile(None)
            self._watches = False

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not self._is_about_it or torch._C._current_graph_task_id() == -1:
            return
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package != _OURS and self._code is None:
            self._digests = {id(buffer): fingerprint(buffer) for buffer in self._buffers}
            self._before_write([tensor for tensor, _ in self._versions])
        if package != _OURS and (self._code is None or package not in _ABOUT_IT):
            self._code, self._is_about_it = frame.f_code, package in _ABOUT_IT
