"""Runs all calls of a recording again, one by one, or for a `Listener` that looks at each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any
from typing import NamedTuple
from typing import Protocol
from typing import TypeVar

import torch
from torch._C import _len_torch_dispatch_stack
from torch._C import _len_torch_function_stack
from torch.overrides import _get_current_function_mode
from torch.utils._python_dispatch import _get_current_dispatch_mode

from pytest_torchlens.capture import Call
from pytest_torchlens.capture import Recording
from pytest_torchlens.capture.leaves import tensors
from pytest_torchlens.replay.player import Player

_L = TypeVar("_L")


class Listener(Protocol):
    """Looks at each call of a replay, which may serve several: it changes nothing.

    A listener may have a ``mode``: a context manager that is entered around each call, such as a dispatch mode.  A mode
    that it enters by itself is left again, and the listener is not notified any more: it would see the replay's work.
    """

    def before(self, player: Player, call: Call) -> None:
        """Look at the arguments of a call that is about to run."""

    def after(self, number: int, call: Call, outputs: tuple[torch.Tensor, ...]) -> None:
        """Look at the tensors for ``call.outputs`` when call `number` has run."""


def mode_of(listener: Listener | None) -> AbstractContextManager[object]:
    """Return what a listener enters around a call."""
    return getattr(listener, "mode", None) or contextlib.nullcontext()


class Listeners:
    """Listeners to one replay.

    Attributes
    ----------
    active
        Those that have not raised.
    """

    def __init__(self, *listeners: Listener) -> None:
        self.active = list(listeners)

    @property
    def mode(self) -> AbstractContextManager[object]:
        """Enters the modes of all."""
        return _all_entered([mode_of(listener) for listener in self.active])

    def before(self, player: Player, call: Call) -> None:
        """Let each look at the arguments of a call that is about to run."""
        self._notify(lambda listener: listener.before(player, call))

    def after(self, number: int, call: Call, outputs: tuple[torch.Tensor, ...]) -> None:
        """Let each look at the tensors for ``call.outputs`` when call `number` has run."""
        self._notify(lambda listener: listener.after(number, call, outputs))

    def of(self, kind: type[_L]) -> _L | None:
        """Return the listener of a class; None if there is none, or if it raised."""
        return next((listener for listener in self.active if isinstance(listener, kind)), None)

    def _notify(self, notify: Callable[[Listener], None]) -> None:
        self.active = [listener for listener in self.active if notifies(listener, notify)]


def notifies(listener: Listener, notify: Callable[[Listener], None]) -> bool:
    """Notify a listener; return whether it can go on: it did not raise, and left each mode that it had entered."""
    depths = _len_torch_dispatch_stack(), _len_torch_function_stack()
    try:
        notify(listener)
    except Exception:  # noqa: BLE001 - it works on tensors of any kind
        return False
    finally:
        is_balanced = depths == (_len_torch_dispatch_stack(), _len_torch_function_stack())
        while _len_torch_dispatch_stack() > depths[0]:
            _leave(_get_current_dispatch_mode())
        while _len_torch_function_stack() > depths[1]:
            _leave(_get_current_function_mode())  # type: ignore[no-untyped-call]
    return is_balanced


def _leave(mode: Any) -> None:
    """Exit a mode, as its block would: taken off the stack alone, PyTorch would still believe that it is in one."""
    mode.__exit__(None, None, None)


@contextlib.contextmanager
def _all_entered(contexts: Iterable[AbstractContextManager[object]]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


def replay_for(listener: Listener, recording: Recording) -> None:
    """Replay a recording for a listener alone.

    Raises
    ------
    NotReplayableError
        If a call raises, or returns other tensors than were recorded.
    """
    with Player(recording) as player:
        for number, call in enumerate(recording.calls):
            listener.before(player, call)
            with _as_not_replayable(number, call):
                arguments = player.arguments(call)
                with mode_of(listener):
                    returned, outputs = player.play(number, call, arguments)
            listener.after(number, call, outputs)
            del arguments, outputs
            with _as_not_replayable(number, call):
                player.store(number, call, returned)
            del returned


def replay_calls(recording: Recording, begin: Callable[[], object] = lambda: None) -> Iterator[ReplayedCall]:
    """Run the calls of a recording again and yield each; call `begin` just before each runs.

    Raises
    ------
    NotReplayableError
        If a call raises, or returns other tensors than were recorded.
    """
    with Player(recording) as player:
        for number, call in enumerate(recording.calls):
            with _as_not_replayable(number, call):
                arguments = player.arguments(call)
                begin()
                returned, outputs = player.play(number, call, arguments)
                yield ReplayedCall(number, call, tensors(arguments), outputs)
                del arguments, outputs
                player.store(number, call, returned)
            del returned


@contextlib.contextmanager
def _as_not_replayable(number: int, call: Call) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # an operator of another library may raise anything
        raise NotReplayableError(f"call {number} ({call.info.name}) cannot be run again: {error}") from error


class ReplayedCall(NamedTuple):
    """One call just after it ran.  Tensors that no later call uses are freed when the next one is requested."""

    number: int
    call: Call
    arguments: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]


class NotReplayableError(RuntimeError):
    """A recorded call cannot be run again; the message has its name and the reason."""
