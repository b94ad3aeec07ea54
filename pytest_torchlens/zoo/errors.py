"""What a user may get wrong about a zoo."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from pytest_torchlens.zoo.forks import forks_end

if TYPE_CHECKING:
    from collections.abc import Iterator


class ZooError(ValueError):
    """A zoo, a model or a zoo file that is not as it should be; the message says what to do."""


@contextmanager
def told(what: str) -> Iterator[None]:
    """Turn what code of the user's raises into a `ZooError`: an exit or a skip in it too, which would end the run."""
    try:
        with forks_end():
            yield
    except (ZooError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise ZooError(f"{what} {type(error).__name__}: {error}") from error
