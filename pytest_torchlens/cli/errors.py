"""The error that a command reports, and the exit status of an incomplete one."""

from __future__ import annotations

INCOMPLETE = 1
"""Exit status where some of what was asked for could not be done, and that was said."""


class CommandError(Exception):
    """Something that the user can mend; the message names the thing, the reason and the fix."""
