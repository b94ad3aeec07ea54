"""YAML whose mappings know the file and line of each key."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from typing import Any

import yaml

from pytest_torchlens.records import nearest
from pytest_torchlens.zoo.errors import ZooError

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path


class LinedDict(dict[str, Any]):
    """A mapping of a YAML file that can say where a key stands."""

    path: Path
    line: int
    lines: dict[str, int]

    def error(self, key: str, message: str) -> ZooError:
        """Return an error that points at `key`, or at the mapping where it has no such key."""
        return ZooError(f"{self.path}:{self.lines.get(key, self.line)}: {message}")


def check_keys(raw: LinedDict, known: Collection[str]) -> None:
    """Refuse a key that is not known, naming the nearest that is."""
    for key in raw:
        if key not in known:
            raise raw.error(key, f"unknown key {key!r}: {nearest(str(key), known)}")


def read_yaml(path: Path) -> LinedDict:
    """Return the mapping that the file holds.

    Raises
    ------
    ZooError
        If the file cannot be read, is no YAML, is no mapping, or names a key twice.
    """
    try:
        loader = _Loader(path.read_text(encoding="utf-8"))
        loader.path = path
        data = loader.get_single_data()
    except (OSError, UnicodeDecodeError) as error:
        raise ZooError(f"{path}: {error}") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ZooError(f"{path}:{line}: {error.problem}") from None
    except yaml.YAMLError as error:
        raise ZooError(f"{path}: {error}") from None
    if not isinstance(data, LinedDict):
        raise ZooError(f"{path}:1: a zoo file is a mapping with the key 'provider'")
    return data


def to_yaml(data: Any) -> str:
    """Return text of which `read_yaml` makes the same data."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=110, default_flow_style=None)


class _Loader(yaml.SafeLoader):
    path: Path


class _Dumper(yaml.SafeDumper):
    pass


def _mapping(loader: _Loader, node: yaml.MappingNode) -> LinedDict:
    _refuse_twice(loader, node)
    loader.flatten_mapping(node)
    mapping = LinedDict()
    mapping.path, mapping.line, mapping.lines = loader.path, node.start_mark.line + 1, {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        mapping.lines[key] = key_node.start_mark.line + 1
        mapping[key] = loader.construct_object(value_node, deep=True)
        if not isinstance(key, str):
            raise mapping.error(key, f"a key is a word, not {key!r}: put it in quotes")
    return mapping


def _refuse_twice(loader: _Loader, node: yaml.MappingNode) -> None:
    """Refuse a key that stands in the mapping twice; YAML would let the later one win in silence."""
    seen: set[str] = set()
    for key_node, _ in node.value:
        if isinstance(key_node, yaml.ScalarNode) and key_node.value in seen:
            line = key_node.start_mark.line + 1
            raise ZooError(f"{loader.path}:{line}: key {key_node.value!r} stands here a second time")
        seen.add(str(key_node.value))


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
_Dumper.add_representer(LinedDict, yaml.SafeDumper.represent_dict)

_WITH_EXPONENT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$")
"""A number to YAML 1.2; PyYAML follows 1.1, to which ``1e-3`` and ``1.5e3`` are words."""
for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver("tag:yaml.org,2002:float", _WITH_EXPONENT, list("-+.0123456789"))
