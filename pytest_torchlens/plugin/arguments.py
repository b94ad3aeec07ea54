"""Tells which command-line arguments name zoo files; pytest needs it in every run, so it imports nothing heavy."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


ZOO_FOLDER = "model_zoo_configs"
ENDINGS = (".yaml", ".yml")
ZOO_KEYS = {"provider", "defaults", "rules"}


def names_zoo(config: pytest.Config, arg: str) -> bool:
    """Whether an argument names a zoo file, one of its models, or a folder of zoo files."""
    path = argument_path(config, arg)
    if path.suffix not in ENDINGS:
        return is_zoo_folder(config, path)
    return is_zoo_folder(config, path.parent) or _is_zoo_file(path)


def is_zoo_folder(config: pytest.Config, path: Path) -> bool:
    """Whether a folder holds zoo files, by its name or by ``lens_zoo_paths``."""
    return path.name == ZOO_FOLDER or path in zoo_folders(config)


def _is_zoo_file(path: Path) -> bool:
    """Whether a YAML file that the user named is a zoo file, and not another plugin's file.

    A zoo file without a provider counts, so that an error can say what is missing.
    """
    if not path.is_file():
        return False
    text = path.read_text(encoding="utf-8", errors="replace")
    keys = set(re.findall(r"^[\"']?(\w+)[\"']?\s*:", text, re.MULTILINE))
    return "provider" in keys or (len(keys) <= len(ZOO_KEYS) and bool(keys & ZOO_KEYS))


def zoo_folders(config: pytest.Config) -> tuple[Path, ...]:
    """Return the project's folders of zoo files."""
    return tuple(config.getini("lens_zoo_paths") or [config.rootpath / ZOO_FOLDER])


def argument_path(config: pytest.Config, arg: str) -> Path:
    """Return the path of an argument as pytest makes the paths of nodes: absolute, links not followed."""
    path = config.invocation_params.dir / arg.partition("::")[0]
    return Path(os.path.abspath(path))  # noqa: PTH100 - Path.resolve would follow links


def explain_not_found(message: str, config: pytest.Config) -> str:
    """Add to pytest's message why a YAML file is no zoo file, or how a zoo's model is named."""
    missing = re.match(r"file or directory not found: (.+)", message)
    if missing is not None and (option := _as_option(missing[1], config)):
        return f"{message}\n(a zoo's models are named by an option: {option})"
    found = re.match(r"(?:not found: |found no collectors for )(.+\.ya?ml)(?:::.*)?$", message, re.MULTILINE)
    if found is None or not Path(found[1]).is_file():
        return message
    return f"{message}\n(it is not a zoo file of pytest-torchlens: it has no key 'provider')"


def _as_option(argument: str, config: pytest.Config) -> str:
    """Return the option that selects what an argument names, as in ``mine:net`` or ``mine/net``; ``""`` for others."""
    from pytest_torchlens.zoo import ZooError
    from pytest_torchlens.zoo.catalog import find_model
    from pytest_torchlens.zoo.catalog import registered_files

    registered = registered_files(config.hook.pytest_lens_register_zoo(config=config))
    try:
        path, name = find_model(argument, zoo_folders(config), registered)
    except ZooError:
        return ""
    return f"--lens-zoo={path.stem}{f':{name}' if name else ''}"
