"""Checks that a model computes the same when it is run another way, and finds the first operation that does not.

`catalog` lists the checks; `frame` runs them.  Each check is a module of its name with a function ``run``.
"""
