"""How Sphinx builds the site; see CONTRIBUTING.md for the command."""

from __future__ import annotations

import os
from typing import Any

import pytest_torchlens

project = "pytest-torchlens"
author = "The pytest-torchlens maintainers"
copyright = author  # noqa: A001 - Sphinx's name
version = release = pytest_torchlens.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
smartquotes = False  # "--lens-zoo" keeps both of its dashes

html_theme = "furo"
html_title = project
html_static_path = ["_static"]
html_css_files = ["site.css"]

myst_heading_anchors = 3  # links to headings work as they do on GitHub
myst_links_external_new_tab = False
for variable in ("CI", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
    os.environ.pop(variable, None)  # notebooks show what pytest prints for a person
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 300

default_role = "py:obj"  # a name in a docstring leads to its page, where it has one
toc_object_entries_show_parents = "hide"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "description"
napoleon_google_docstring = False
autosummary_generate = False

# A reference to this package must lead somewhere; other projects' names are not on this site.
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!pytest_torchlens\.).*"), ("py:class", r".*\.(HistoryView|LazyFields|Listener)")]


def setup(app: Any) -> None:
    """Register what Sphinx calls."""
    app.connect("source-read", _lead_to_index)


def _lead_to_index(_app: Any, _name: str, source: list[str]) -> None:
    """Let links to README.md lead to the page that shows it."""
    source[0] = source[0].replace("](../README.md)", "](index.md)")
