"""The error that a command reports, and the exit status of an incomplete command."""

from __future__ import annotations

INCOMPLETE = 1
"""Exit status of a command that could not do everything, and printed what is missing."""


class CommandError(Exception):
    """An error that the user can fix; the message names the reason and the fix."""
