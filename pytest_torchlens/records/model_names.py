"""Reads how people write a model's name: one grammar for pytest's options and all commands.

``mine:net``, as ``--lens-zoo`` takes it; ``mine/net``, the key of its baseline; ``zoo/mine.yaml::net``, its item in
pytest; and of a history that a test checks ``tests/test_net.py::test_net`` or ``tests/test_net.py/test_net``.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import NamedTuple

ZOO_ENDINGS = (".yaml", ".yml")
"""Endings of a zoo file."""
_TEST = ".py"


class ModelName(NamedTuple):
    """A zoo, its file, or a test's file; and the name of a model in it, or of the test."""

    zoo: str
    name: str

    @property
    def is_test(self) -> bool:
        """Whether the file is a test's."""
        return self.zoo.endswith(_TEST)

    @property
    def folder(self) -> str:
        """The folder of its baselines: the name of the zoo, or the path of the test's file."""
        return PurePath(self.zoo).stem if self.zoo.endswith(ZOO_ENDINGS) else self.zoo


def readings(text: str) -> list[ModelName]:
    """Return what a text can mean, the most likely first.

    Examples
    --------
    >>> readings("zoo/mine.yaml::net")[0]
    ModelName(zoo='zoo/mine.yaml', name='net')
    >>> [tuple(one) for one in readings("mine/net:v2")]
    [('mine/net', 'v2'), ('mine', 'net:v2')]
    """
    found = [_split(text, "::"), _split(text, f"{_TEST}/", keep=_TEST), _split(text, ":"), _split(text, "/")]
    return list(dict.fromkeys(one for one in found if one.zoo and one.name and not one.name.startswith(":")))


def _split(text: str, separator: str, *, keep: str = "") -> ModelName:
    zoo, _, name = text.partition(separator)
    return ModelName(f"{zoo.strip()}{keep}", name.strip())
