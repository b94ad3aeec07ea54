"""Reads YAML into mappings that know the file and line of each key."""

from __future__ import annotations

import re
import reprlib
from typing import TYPE_CHECKING
from typing import Any

import yaml
from yaml.reader import ReaderError

from pytest_torchlens.records import close
from pytest_torchlens.records import nearest
from pytest_torchlens.zoo.errors import ZooError

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path


class LinedDict(dict[str, Any]):
    """A mapping of a YAML file with the line of each key."""

    path: Path
    line: int
    lines: dict[str, int]

    def error(self, key: str, message: str) -> ZooError:
        """Return an error that points at `key`, or at the mapping where it has no such key."""
        return ZooError(message, f"{self.path}:{self.lines.get(key, self.line)}")


def check_keys(raw: LinedDict, known: Collection[str]) -> None:
    """Reject an unknown key; the message suggests the nearest."""
    for key in raw:
        if key not in known:
            raise raw.error(key, f"unknown key {key!r}: {nearest(str(key), known)}")


def one_of(raw: LinedDict, key: str, words: Collection[str]) -> str:
    """Return the value of `key`, which must be one of `words`; the message suggests the nearest."""
    if raw[key] not in words:
        hint = close(str(raw[key]), words)
        raise raw.error(key, f"{key}: expected {', '.join(words)}, got {raw[key]!r}{hint and f' ({hint})'}")
    return str(raw[key])


def read_yaml(path: Path) -> LinedDict:
    """Return the mapping in the file.

    Raises
    ------
    ZooError
        If the file cannot be read, is not YAML, is not a mapping, or has a key twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # it is not UTF-8, or the path has a null character
        raise ZooError(str(error), str(path)) from None
    data = _parse(text, path)
    if not isinstance(data, LinedDict):
        raise ZooError(f"expected a mapping with the key 'provider', got {reprlib.repr(data)}", f"{path}:1")
    return data


def to_yaml(data: Any) -> str:
    """Return text that `read_yaml` reads as the same data."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=110, default_flow_style=None)


def _parse(text: str, path: Path) -> Any:
    try:
        loader = _Loader(text)
        loader.path = path
        return loader.get_single_data()
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ZooError(
            f"YAML does not allow the character {chr(error.character)!r}: remove it", f"{path}:{line}"
        ) from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ZooError(", ".join(filter(None, (error.context, error.problem))), f"{path}:{line}") from None
    except RecursionError:
        raise ZooError("lists and mappings are nested too deeply", str(path)) from None


class _Loader(yaml.SafeLoader):
    path: Path

    def error(self, node: yaml.Node, message: str) -> ZooError:
        """Return an error that points at a node."""
        return ZooError(message, f"{self.path}:{node.start_mark.line + 1}")

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Reject a value that does not match its tag, whatever PyYAML raises for it."""
        try:
            return super().construct_object(node, deep)
        except (yaml.YAMLError, ZooError, RecursionError):
            raise
        except Exception:  # noqa: BLE001 - PyYAML passes on what Python's constructors raise
            what = reprlib.repr(node.value) if isinstance(node, yaml.ScalarNode) else "a list or mapping"
            raise self.error(node, f"expected {node.tag.rpartition(':')[2]}, got {what}") from None


class _Dumper(yaml.SafeDumper):
    pass


def _mapping(loader: _Loader, node: yaml.MappingNode) -> LinedDict:
    if not isinstance(node, yaml.MappingNode):
        raise TypeError("the tag '!!map' on a value that is not a mapping")
    _check_duplicate_keys(loader, node)
    loader.flatten_mapping(node)
    mapping = LinedDict()
    mapping.path, mapping.line, mapping.lines = loader.path, node.start_mark.line + 1, {}
    for key_node, value_node in node.value:
        key = _key(loader, key_node)
        mapping.lines[key] = key_node.start_mark.line + 1
        mapping[key] = loader.construct_object(value_node, deep=True)
    return mapping


def _key(loader: _Loader, node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        remedy = "if '{{ ... }}' belongs to a template, fill that in first; else put the key in quotes"
        raise loader.error(node, f"expected text as a key, got a mapping: {remedy}")
    key = loader.construct_object(node, deep=True)
    if not isinstance(key, str):
        raise loader.error(node, f"expected text as a key, got {key!r}: put it in quotes")
    return key


def _check_duplicate_keys(loader: _Loader, node: yaml.MappingNode) -> None:
    """Reject a key that the mapping has twice; YAML would silently use the later one."""
    keys: set[str] = set()
    for key_node, _ in node.value:
        if isinstance(key_node, yaml.ScalarNode) and key_node.value in keys:
            raise loader.error(key_node, f"the key {key_node.value!r} appears twice: remove one")
        keys.add(str(key_node.value))


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
_Dumper.add_representer(LinedDict, yaml.SafeDumper.represent_dict)

_TIMESTAMP, _FLOAT = "tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:float"
_WITH_EXPONENT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$")
"""A number in YAML 1.2.

PyYAML follows YAML 1.1, which reads ``1e-3`` and ``1.5e3`` as text, and ``2026-11-01`` as a date.
"""
for _class in (_Loader, _Dumper):
    _class.yaml_implicit_resolvers = {
        first: [(tag, form) for tag, form in forms if tag != _TIMESTAMP]
        for first, forms in _class.yaml_implicit_resolvers.items()
    }
    _class.add_implicit_resolver(_FLOAT, _WITH_EXPONENT, list("-+.0123456789"))
