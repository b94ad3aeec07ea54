"""Finds which value decided which branch, and which value ended which loop.

PyTorch runs the model's Python code; only the values that Python reads can decide where that code goes.  The recording
has each such read as an *escape* (`capture.calls.Escape`): ``bool(tensor)``, ``item()``, ``tolist()`` and their like,
with the value and with the code position of each frame.  Take ::

    def forward(self, x):
        if x.sum() > 0:              # an escape: __bool__ of `gt_1_2`
            x = x * 2
        while int(x.max()) > 1:      # an escape in each pass: __int__ of `max_1_4`
            x = x / 2
        return x

The steps from an escape to what it decided:

1.  **The expression** (`syntax.node_at`).  The code position is an instruction; the `executing` library finds the
    node of the syntax tree that it belongs to.  Here: ``x.sum() > 0``, and ``int(x.max())``.
2.  **The value of the expression** (`expressions.expression_and_value`, then `expressions.carry`).  From the node
    outward: what ``int(x.max()) > 1`` is once ``int(x.max())`` is known.  Calls of ``int`` and the like, ``not``,
    arithmetic and comparisons with literals are computed.  If another operand of an ``and`` or ``or`` decides, the
    value is `Unknown.UNDECIDED` (branch ``"undecided"``); for anything else it is `Unknown.UNREAD` (branch ``""``).
3.  **The statement** (`conditions.decision`).  The ``if``, ``while``, ``assert``, conditional expression,
    comprehension filter or ``match`` whose condition the expression is; which branch it took; and the lines of the
    code that was and was not run.  If a function returns the expression, the search goes on in the caller's frame.
4.  **The records** (`conditions.escape_records`).  One `EscapeRecord` for each escape.
5.  **The marks** (`conditions.mark_conditions`).  The operation that was read is a condition (yellow in the picture);
    its ancestors that serve only the condition are its branch (the bold IF).
6.  **The lines** (`conditions.lines_by_branch`).  For each file the lines in branches that were taken, and in branches
    that never were; the innermost branch around a line decides.

And from the source's loops to what ended them:

7.  **Loops around a call** (`loop_endings.EnclosingLoops`).  Each frame of a call may be inside loops of its function.
    Calls of one layer (`history.layers`) show which of these loops ran it, and how often.
8.  **Where an escape's value goes** (`expressions.uses_of_value`, `loop_endings.loops_depending_on`).  It goes into
    names, attributes, arguments and results of functions (`callees.Callees` knows which function called which), until
    it reaches the condition of a ``while``, the bound of a ``range``, a ``break`` or the condition of a recursive call.
9.  **Sizes** (`loop_endings.sized_by_data`, `loop_endings.loops_over`).  How often ``for row in x[x > 0]`` runs depends
    on the data, without any escape.
10. **The records** (`loop_endings.loop_records`).  One `LoopRecord` for each loop, with all that decides when it ends.
"""
