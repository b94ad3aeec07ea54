"""Ends a call or a pass that other values keep from coming to an end: a loop may wait for a condition."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_torchlens.capture import Recording
from pytest_torchlens.capture.calls import Escape

_TIMES, _MORE = 10, 1000


class EndlessError(BaseException):
    """Far more ran than with the recorded values.  The loop itself may catch each `Exception`."""


def bound_escapes(recording: Recording, usual: int) -> None:
    """Let a pass raise where Python asks for far more values than `usual`: a loop in Python asks whether it ends."""
    recording.escapes = _BoundedEscapes(_TIMES * usual + _MORE)


class _BoundedEscapes(list[Escape]):
    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def append(self, escape: Escape) -> None:
        if len(self) >= self._most:
            raise EndlessError(
                f"Python asked for more than {self._most} values: the pass may not end with these inputs"
            )
        super().append(escape)


class BoundedRun(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the dispatcher operations inside a call, and raises where they are too many.

    Parameters
    ----------
    usual
        How many the call ran with its recorded values: ten times as many and a thousand more are allowed.  None for
        any number.
    """

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False, as `DispatchWatch` does: PyTorch would import its compiler."""
        return False

    def __init__(self, usual: int | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._most = None if usual is None else _TIMES * usual + _MORE
        self.count = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        self.count += 1
        if self._most is not None and self.count > self._most:
            raise EndlessError(f"more than {self._most} operations ran: the call may never end")
        if not isinstance(func, torch._ops.HigherOrderOperator):
            return func(*args, **(kwargs or {}))
        with self:  # its functions run other operations
            return func.py_kernels[torch._C.DispatchKey.CompositeExplicitAutograd](*args, **(kwargs or {}))
