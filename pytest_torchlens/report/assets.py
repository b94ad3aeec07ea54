"""Styles and scripts of the pages, and the policy that allows them and nothing else."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

from markupsafe import Markup

_TABLES = ("vendor/sortable.min.js", "templates/page.js")
_GRAPH = ("vendor/panzoom.min.js", "vendor/uPlot.iife.min.js", "templates/graph.js", "templates/plots.js")
_STYLES = ("vendor/uPlot.min.css", "templates/page.css")


def assets() -> dict[str, object]:
    """Return what the templates put into the pages: one style, one script for each kind of page, and the policy."""
    style, tables, everything = _joined(_STYLES), _joined(_TABLES), _joined(_TABLES + _GRAPH)
    return {
        "style": Markup(style),  # noqa: S704 - our own files
        "table_script": Markup(tables),  # noqa: S704
        "model_script": Markup(everything),  # noqa: S704
        "policy": f"default-src 'none'; style-src {_allowed(style)}; "
        f"script-src {_allowed(tables)} {_allowed(everything)}; base-uri 'none'; form-action 'none'",
    }


def _joined(names: tuple[str, ...]) -> str:
    folder = files("pytest_torchlens.report")
    return "\n".join(folder.joinpath(name).read_text(encoding="utf-8").strip() for name in names)


def _allowed(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
