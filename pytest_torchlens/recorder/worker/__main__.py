"""Entry point of the recorder process."""

from __future__ import annotations

import os
import signal
import sys

from pytest_torchlens.recorder.worker.sink import Messages
from pytest_torchlens.recorder.worker.sink import Sink
from pytest_torchlens.records.files import UnwritableError


def main() -> int:
    """Read messages until they end; return the exit status."""
    if hasattr(os, "nice"):
        os.nice(5)  # training goes first
    messages = Messages(sys.stdin.fileno())
    signal.signal(signal.SIGTERM, lambda *_: messages.stop())
    sink: Sink | None = None
    try:
        for message in messages:
            if sink is None:
                sink = Sink(message)
            else:
                sink.take(message)
    except UnwritableError as error:
        _say(str(error))
        _finish(sink, str(error))
        return 1
    except BaseException:
        _finish(sink, "an error")
        raise
    if messages.is_stopped:
        return _finish(sink, "it was stopped before all was written")
    if messages.last is None:
        return _finish(sink, "the process that records ended without closing")
    return _finish(sink, "closed", messages.last["counts"])


def _finish(sink: Sink | None, reason: str, counts: dict[str, tuple[int, int]] | None = None) -> int:
    if sink is None:
        return 0
    errors = sink.close(reason, counts or {})
    for error in errors:
        _say(str(error) if isinstance(error, UnwritableError) else f"{type(error).__name__}: {error}")
    return 1 if errors else 0


def _say(text: str) -> None:
    print(text, file=sys.stderr)  # noqa: T201 - what this process says ends up in an error of the other


if __name__ == "__main__":
    sys.exit(main())
