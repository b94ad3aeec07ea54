"""What a command cannot do."""

from __future__ import annotations


class CommandError(Exception):
    """Something that the user can mend; the message names the thing, the reason and the fix."""
