"""Finds layers: which operations are passes of one layer, and which passes make a loop.

The rules are the paper's.  A model such as ::

    def forward(self, x):
        for _ in range(3):
            x = torch.relu(self.linear(x)) + 1
        return x

runs nine operations, which are three layers of three passes each.  They are found in these steps; each works on the
operations by number, in execution order (`signatures.Operations`), and joins sets of them (`signatures.Groups`).

1.  **Signatures** (`signatures`).  Each operation gets a *kind* (its function, and the module that it runs in or the
    parameters that it works on), a *site* (the chain of code positions below the module's forward) and a *key* (kind
    and site).  Operations that do not descend from an input count only in layers with one that does: a loop that
    fills a constant mask does not make a model recurrent.
2.  **Detours** (`detours.Detours`).  An operation that only some passes run, as a branch does that is not taken each
    time, would cut its loop in two.  So what lies on both sides of it is treated as adjacent.
3.  **The first rule** (`passes.group_passes`).  Operations on the same parameters are passes of one layer.  In the
    example: the three calls of ``linear``.  Two transforms (`vmap`) with other steps inside are two functions, unless
    one place in the code runs both.
4.  **The second rule** (`growth.LayerGrowth`).  Operations of one signature that are adjacent to the passes of a
    layer, pass by pass, in the same direction and at the same argument place, are one layer too.  The new layer
    grows in turn, until no neighbour is left.  In the example: the three ``relu``, then the three ``add``.
5.  **The third rule, by call site** (`repeats.repeats_by_site`).  A sequence without parameters that is run from one
    place in the code, back to back, is a loop: each pass reads what the previous pass made, and nothing new is made
    in between.  What layers outside the loop make for one pass must come from the same layers for the next: steps that
    networks of their own feed are no loop.  Scalars and shapes may change from pass to pass.  `growth.Visits` has the
    candidates, `repeats.Rounds` the pass that each operation ran in.
6.  **The third rule, written out** (`repeats.repeats_written_out`).  A block of two operations or more that is
    written out several times in a row, with the same arguments and shapes, is a loop as well.  A single operation is
    not: ``a + b + c`` is three additions.  The same block later in the model, not back to back, is another one.
7.  **What a loop carries** (`passes.CarriedValues`).  The condition that a loop evaluates in each
    pass on the value that it carries is one layer, also where that value leaves another branch in each pass.
8.  After each of the steps 5 to 7 the new layers grow again (step 4), now only between the previous pass and the
    next: what a loop computes belongs to it; later uses of its results do not.

Every step is near linear in the number of operations.
"""
