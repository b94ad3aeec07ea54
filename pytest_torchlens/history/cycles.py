"""Cycles of a directed graph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Iterator


def in_cycles(edges: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Return for each node that lies on a cycle the number of its strongly connected component.

    Tarjan's algorithm (SIAM Journal on Computing 1, 1972), without recursion.
    """
    after: dict[int, dict[int, None]] = defaultdict(dict)
    for tail, head in edges:
        after[tail][head] = None
    search = _Search(after)
    for node in list(after):
        if node not in search.index:
            search.start(node)
    return search.component


class _Search:
    def __init__(self, after: dict[int, dict[int, None]]) -> None:
        self._after = after
        self.index: dict[int, int] = {}
        self.component: dict[int, int] = {}
        self._low: dict[int, int] = {}
        self._open: list[int] = []
        self._is_open: set[int] = set()
        self._path: list[tuple[int, Iterator[int]]] = []

    def start(self, node: int) -> None:
        self._enter(node)
        while self._path:
            tail, heads = self._path[-1]
            head = next(heads, None)
            if head is None:
                self._leave(tail)
            elif head not in self.index:
                self._enter(head)
            elif head in self._is_open:
                self._low[tail] = min(self._low[tail], self.index[head])

    def _enter(self, node: int) -> None:
        self.index[node] = self._low[node] = len(self.index)
        self._open.append(node)
        self._is_open.add(node)
        self._path.append((node, iter(self._after.get(node, ()))))

    def _leave(self, node: int) -> None:
        self._path.pop()
        if self._path:
            above = self._path[-1][0]
            self._low[above] = min(self._low[above], self._low[node])
        if self._low[node] == self.index[node]:
            self._close(node)

    def _close(self, first: int) -> None:
        part = [self._open.pop()]
        while part[-1] != first:
            part.append(self._open.pop())
        self._is_open.difference_update(part)
        if len(part) > 1 or first in self._after.get(first, ()):
            self.component.update(dict.fromkeys(part, self.index[first]))
