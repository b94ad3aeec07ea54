"""YAML whose mappings know the file and line of each key."""

from __future__ import annotations

import re
import reprlib
from typing import TYPE_CHECKING
from typing import Any

import yaml
from yaml.reader import ReaderError

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
        return ZooError(message, f"{self.path}:{self.lines.get(key, self.line)}")


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
        data = _parsed(path.read_text(encoding="utf-8"), path)
    except (OSError, UnicodeDecodeError) as error:
        raise ZooError(str(error), str(path)) from None
    if not isinstance(data, LinedDict):
        raise ZooError("a zoo file is a mapping with the key 'provider'", f"{path}:1")
    return data


def to_yaml(data: Any) -> str:
    """Return text of which `read_yaml` makes the same data."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=110, default_flow_style=None)


def _parsed(text: str, path: Path) -> Any:
    try:
        loader = _Loader(text)
        loader.path = path
        return loader.get_single_data()
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ZooError(f"{chr(error.character)!r} is no character that YAML allows", f"{path}:{line}") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ZooError(", ".join(filter(None, (error.context, error.problem))), f"{path}:{line}") from None
    except RecursionError:
        raise ZooError("lists and mappings are nested too deep", str(path)) from None


class _Loader(yaml.SafeLoader):
    path: Path

    def error(self, node: yaml.Node, message: str) -> ZooError:
        """Return an error that points at a node."""
        return ZooError(message, f"{self.path}:{node.start_mark.line + 1}")

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Refuse what its tag does not fit, whatever PyYAML raises of it."""
        try:
            return super().construct_object(node, deep)
        except (yaml.YAMLError, ZooError, RecursionError):
            raise
        except Exception:  # noqa: BLE001 - PyYAML's constructors let through what Python's own raise
            what = reprlib.repr(node.value) if isinstance(node, yaml.ScalarNode) else "a list or mapping"
            raise self.error(node, f"{what} is no {node.tag.rpartition(':')[2]}") from None


class _Dumper(yaml.SafeDumper):
    pass


def _mapping(loader: _Loader, node: yaml.MappingNode) -> LinedDict:
    if not isinstance(node, yaml.MappingNode):
        raise TypeError("a tag '!!map' on something else")
    _refuse_twice(loader, node)
    loader.flatten_mapping(node)
    mapping = LinedDict()
    mapping.path, mapping.line, mapping.lines = loader.path, node.start_mark.line + 1, {}
    for key_node, value_node in node.value:
        key = _word(loader, key_node)
        mapping.lines[key] = key_node.start_mark.line + 1
        mapping[key] = loader.construct_object(value_node, deep=True)
    return mapping


def _word(loader: _Loader, node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        remedy = "if '{{ ... }}' is of a template, fill that in first; else put it in quotes"
        raise loader.error(node, f"a key is a word, not a mapping: {remedy}")
    key = loader.construct_object(node, deep=True)
    if not isinstance(key, str):
        raise loader.error(node, f"a key is a word, not {key!r}: put it in quotes")
    return key


def _refuse_twice(loader: _Loader, node: yaml.MappingNode) -> None:
    """Refuse a key that stands in the mapping twice; YAML would let the later one win in silence."""
    seen: set[str] = set()
    for key_node, _ in node.value:
        if isinstance(key_node, yaml.ScalarNode) and key_node.value in seen:
            raise loader.error(key_node, f"key {key_node.value!r} stands here a second time")
        seen.add(str(key_node.value))


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
_Dumper.add_representer(LinedDict, yaml.SafeDumper.represent_dict)

_TIMESTAMP, _FLOAT = "tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:float"
_WITH_EXPONENT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$")
"""A number to YAML 1.2; PyYAML follows 1.1, to which ``1e-3`` and ``1.5e3`` are words, and ``2026-11-01`` is none."""
for _class in (_Loader, _Dumper):
    _class.yaml_implicit_resolvers = {
        first: [(tag, form) for tag, form in forms if tag != _TIMESTAMP]
        for first, forms in _class.yaml_implicit_resolvers.items()
    }
    _class.add_implicit_resolver(_FLOAT, _WITH_EXPONENT, list("-+.0123456789"))
