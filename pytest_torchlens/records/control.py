"""What Python was told about tensors' values, and what it decided by that."""

from __future__ import annotations

from dataclasses import dataclass

TRUTH_TESTS = ("__bool__", "is_nonzero")
"""Functions that ask a tensor whether it is true."""


@dataclass(frozen=True, kw_only=True)
class EscapeRecord:
    """A value handed over to Python: a truth test, ``item()``, ``numpy()``.

    Attributes
    ----------
    function
        ``"__bool__"``, ``"item"``, ``"tolist"`` and so on.
    operation
        Label of what was read; ``""`` for a tensor that is no layer.
    value
        What Python was given, for numbers and truth values; else None.
    before_call
        Number of the next function call, which tells when it happened.
    source_line
        ``file:line, in function`` of the model's line.
    statement
        What asked: ``"if"``, ``"while"``, ``"assert"``, ``"conditional expression"``, ``"comprehension filter"``,
        ``"match"``, ``"case"``, ``"and"``, ``"or"``, ``"not"``; ``"expression"`` where nothing of the kind is found.  A
        number (``x.item() > 0``), what a function returns to its caller, and a name that a number was given
        (``n = int(x)``) are followed to the condition that they are part of, as far as plain arithmetic,
        comparisons and conversions lead.
    condition
        Source text of the whole condition; ``""`` where the source could not be read.
    branch
        What it did: ``"body"`` or ``"else"``, ``"goes on"`` or ``"ends"``, ``"holds"`` or ``"fails"``, ``"keeps"`` or
        ``"drops"``; ``"undecided"`` where another operand decides, ``""`` where more goes into the condition than this
        value and literals, or it has gone by a name.
    lines_taken, lines_not_taken
        First and last line of the code that was, and was not, gone into; empty where there is none.  A ``match`` leaves
        out one piece for each other case: first, last, first, last.
    """

    function: str
    operation: str = ""
    value: bool | int | float | None = None
    before_call: int = 0
    source_line: str = ""
    statement: str = "expression"
    condition: str = ""
    branch: str = ""
    lines_taken: tuple[int, ...] = ()
    lines_not_taken: tuple[int, ...] = ()

    @property
    def is_truth_test(self) -> bool:
        """Whether the tensor itself was asked whether it is true."""
        return self.function in TRUTH_TESTS

    @property
    def is_condition(self) -> bool:
        """Whether a condition of the model's code hangs on it, or a function that was given the tensor to decide."""
        return self.is_truth_test or self.statement != "expression"

    @property
    def is_branching(self) -> bool:
        """Whether other code may run with another value; an assertion that fails runs none."""
        return self.is_condition and self.statement != "assert"


@dataclass(frozen=True, kw_only=True)
class LoopRecord:
    """A loop in the source that ran some layers several times; a function that calls itself is one.

    Attributes
    ----------
    source_line
        ``file:line, in function`` of the ``for``, ``while``, comprehension or function.
    layers
        Labels of the layers that it is the innermost loop around, in some passes at least.
    num_passes
        How often its body ran: the most often that one place in it made a call.  A loop that runs several times, being
        inside another or in a function called twice, counts all runs.
    decided_by
        The values that decide when it ends, each as ``"gt_1_3, asked by while: file:line, in function"``, and those of
        which it goes over as many rows as data chose: ``"nonzero_1_3, by its size: file:line, in function"``; empty
        where the number of passes does not depend on data.
    """

    source_line: str
    layers: tuple[str, ...] = ()
    num_passes: int = 0
    decided_by: tuple[str, ...] = ()

    @property
    def depends_on_data(self) -> bool:
        """Whether another input may run it more or less often."""
        return bool(self.decided_by)
