"""How Sphinx builds the site; see CONTRIBUTING.md for the command."""

from __future__ import annotations

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
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 300

autodoc_member_order = "bysource"
autodoc_typehints = "description"
napoleon_google_docstring = False
autosummary_generate = False
