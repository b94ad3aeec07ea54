"""One edit of a model's file, and what a comparison is to report of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """An edit, and what is expected of it.

    Attributes
    ----------
    name
        What was done.
    changes
        Texts of the model's file and what stands in their place.
    word
        The class of change.
    operation
        Where it is first told; empty if it is the model's, or nothing.
    default, outputs
        Whether the model passes without an option, and with ``--lens-fail-on=outputs``.
    """

    name: str
    changes: tuple[tuple[str, str], ...]
    word: str
    operation: str
    default: str
    outputs: str

    def applied(self, text: str) -> str:
        """Return the model's file as it is after the edit."""
        for old, new in self.changes:
            assert old in text, f"{self.name}: the model has no {old!r}"
            text = text.replace(old, new)
        return text


def same(name: str, *changes: tuple[str, str], word: str = "identical", operation: str = "") -> Edit:
    """Return an edit that is none to the pass, or only in its rounding."""
    return Edit(name, changes, word, operation, "passed", "passed")


def refactor(name: str, operation: str, *changes: tuple[str, str]) -> Edit:
    """Return an edit that computes the same by other calls or under other names."""
    return Edit(name, changes, "refactor", operation, "failed", "passed")


def unseen(name: str, operation: str, *changes: tuple[str, str], word: str = "structure") -> Edit:
    """Return a change that the outputs of this pass do not show."""
    return Edit(name, changes, word, operation, "failed", "passed")


def change(name: str, operation: str, *changes: tuple[str, str], word: str = "structure") -> Edit:
    """Return a change of what the model returns."""
    return Edit(name, changes, word, operation, "failed", "failed")
