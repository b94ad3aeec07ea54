"""Failed models as annotations of a GitHub job: lines that its runner reads from the output."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Final

from pytest_torchlens.report.summary import failed_how
from pytest_torchlens.report.summary import is_bad
from pytest_torchlens.report.summary import trouble

if TYPE_CHECKING:
    from pytest_torchlens.records import ModelReport

MOST: Final = 10
"""GitHub shows ten errors of a step."""
_TEXT: Final = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_PROPERTY: Final = _TEXT | {":": "%3A", ",": "%2C"}


def github_annotations(models: Iterable[ModelReport], root: Path) -> Iterator[str]:
    """Yield a line for each failed model, the first ten.

    Parameters
    ----------
    models
        Of the run.
    root
        The repository; lines of code outside it are told in words alone.
    """
    bad = [model for model in models if is_bad(model)]
    for model in bad[:MOST]:
        found = trouble(model)
        if found is None:
            continue
        place = _place(found.where, root) or {"file": model.nodeid.partition("::")[0]}
        title = f"lens: {model.zoo}:{model.name} failed {failed_how(model)}"
        said = "\n".join(filter(None, (found.what, found.where, found.cause, found.advice)))
        properties = ",".join(f"{key}={_escaped(value, _PROPERTY)}" for key, value in {**place, "title": title}.items())
        yield f"::error {properties}::{_escaped(said, _TEXT)}"


def _place(where: str, root: Path) -> dict[str, str]:
    """Return file and line of ``conv_1, net.py:48, in forward`` if the file is in the repository."""
    for part in where.split(", "):
        file, colon, line = part.rpartition(":")
        if colon and line.isdecimal() and (root / file).is_file() and (root / file).resolve().is_relative_to(root):
            return {"file": str((root / file).resolve().relative_to(root)), "line": line}
    return {}


def _escaped(text: str, table: dict[str, str]) -> str:
    for char, escape in table.items():
        text = text.replace(char, escape)
    return text
