"""Hooks that other plugins and conftest files can implement."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pytest


def pytest_lens_register_zoo(config: pytest.Config) -> Path | Iterable[Path] | None:
    """Name zoo files besides those of the project and those that ship with pytest-torchlens.

    Called once a run, when models are first asked for.  A file ``birds.yaml`` is then found by ``--lens-zoo birds``
    and ``@pytest.mark.lens_zoo("birds")``; the project's own file of that name wins.

    Parameters
    ----------
    config
        pytest's configuration.

    Returns
    -------
    Path or iterable of Path
        Zoo files.  Their ``provider`` may be ``python:package.module:FUNCTION``, whose function returns a mapping of
        names to builders, or a `pytest_torchlens.zoo.Provider`: worker processes read the file anew, so it must be
        complete in itself.

    Examples
    --------
    In the module that a package names in its entry point ``pytest11``::

        from pathlib import Path

        def pytest_lens_register_zoo(config):
            return Path(__file__).with_name("birds.yaml")
    """
