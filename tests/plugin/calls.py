"""A module that calls a function, as text of a zoo's file."""

from __future__ import annotations

CALLS = """
from torch import nn

class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
    def forward(self, x):
        return self.function(x)
"""
