"""``pytest-lens bisect``: finds the release of PyTorch, or the commit, that changed what a model computes.

`trial` runs one comparison.  `releases` searches environments, which `environments` makes, in the order of `search`;
`commits` lets git search, in a worktree.  `command` declares the options.
"""
