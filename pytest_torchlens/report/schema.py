"""Path of the JSON Schema of reports."""

from __future__ import annotations

from pathlib import Path
from typing import Final

SCHEMA_FILE: Final = Path(__file__).with_name("report.schema.json")
"""docs/generate_schema.py writes it; each report folder gets a copy."""
