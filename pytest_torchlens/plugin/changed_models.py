"""``--lens-changed-since``: which models must be audited, and which have neither code nor environment that changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_torchlens.baseline.environments import axes
from pytest_torchlens.baseline.environments import class_of
from pytest_torchlens.baseline.snapshot import ELSEWHERE
from pytest_torchlens.baseline.snapshot_file import BaselineError
from pytest_torchlens.baseline.source_files import INSTALLED
from pytest_torchlens.baseline.source_files import Imports
from pytest_torchlens.baseline.source_files import version_of
from pytest_torchlens.baseline.store import key_of
from pytest_torchlens.plugin.hooks import model_hook_files
from pytest_torchlens.records.git import GitError
from pytest_torchlens.records.git import Repository
from pytest_torchlens.records.model_names import ZOO_ENDINGS
from pytest_torchlens.zoo.catalog import shipped_folder

if TYPE_CHECKING:
    from pytest_torchlens.baseline.snapshot import Snapshot
    from pytest_torchlens.baseline.store import Store
    from pytest_torchlens.plugin.selection import Selection
    from pytest_torchlens.records import Environment
    from pytest_torchlens.zoo import ModelCase
    from pytest_torchlens.zoo import Zoo

OPTION = "--lens-changed-since"
_UNREAD = (".py", ".md", ".rst")
"""Files beside a model's code that it does not read, except by an import."""
_BYPRODUCTS = (".pyc", ".pyo", ".log")
"""Files that git often ignores and that no model reads, besides hidden ones such as ``.coverage``."""
_UNIMPORTANT = frozenset(("pytest",))
"""A package in each environment that changes no number."""
_MOST_NAMES = 6


@dataclass(frozen=True)
class ChangedModels:
    """Why each model is audited.

    Attributes
    ----------
    name
        The commit, as the user named it.
    reasons
        Why a model is audited, by node id; empty text for one that is left out.
    """

    name: str
    reasons: dict[str, str]

    @classmethod
    def of(cls, config: pytest.Config, name: str, selection: Selection, store: Store, device: str) -> ChangedModels:
        """Compare the checkout, the zoo files and this environment with a commit and the stored baselines.

        Raises
        ------
        pytest.UsageError
            If git does not know the commit, is missing, or has only a part of the commits.
        """
        try:
            changes = _Changes(config, Repository.of(config.rootpath), name, store)
            reasons = {
                f"{choice.nodeid}::{model}": changes.reason(choice.zoo, choice.zoo.case(model), device)
                for choice in selection.choices.values()
                for model in sorted(choice.names)
            }
        except GitError as error:
            raise pytest.UsageError(f"{OPTION}: {error}") from None
        return cls(name, reasons)

    @property
    def left_out(self) -> list[str]:
        """Node ids of the models that need not be audited."""
        return [nodeid for nodeid, reason in self.reasons.items() if not reason]

    def lines(self) -> Iterator[str]:
        """Yield how many models were left out, and why the others were not."""
        count = len(self.left_out)
        models = f"{count} of {len(self.reasons)} model{'s' * (len(self.reasons) != 1)}"
        why = ": neither code, zoo file, baseline nor environment changed" if count else ""
        yield f"{OPTION}={self.name}: {models} left out{why}"
        by_reason: dict[str, list[str]] = defaultdict(list)
        for nodeid, reason in self.reasons.items():
            if reason:
                by_reason[reason].append(nodeid.rpartition("::")[2])
        for reason, names in sorted(by_reason.items(), key=lambda item: -len(item[1])):
            more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
            yield f"  {reason}: {', '.join(names[:_MOST_NAMES])}{more}"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the lines."""
        for line in self.lines():
            terminalreporter.write_line(line)


class _Changes:
    """What changed since a commit."""

    def __init__(self, config: pytest.Config, repository: Repository, name: str, store: Store) -> None:
        if repository.is_shallow:
            raise GitError(
                "this clone is shallow, so that git does not know what changed: fetch all commits first "
                "(git fetch --unshallow; with actions/checkout, fetch-depth: 0)"
            )
        self._root, self._top = config.rootpath.resolve(), repository.top
        self._store = store
        self._changed = repository.changed_since(repository.commit(name))
        self._tracked = repository.tracked()
        self._imports = Imports(self._top, map(Path, _search_path()))
        self._of_all = self._reason_for_all(config)
        self._snapshots: dict[str, Snapshot | None] = {}
        self._code: dict[Path, dict[str, set[Path]]] = {}
        self._unattributed: dict[Path, str] = {}
        self._ignored: dict[Path, list[Path]] = {}

    def reason(self, zoo: Zoo, case: ModelCase, device: str) -> str:
        """Return why a model must be audited; empty if nothing of it changed."""
        reasons = chain(
            [self._of_all],
            self._of_zoo(zoo, case),
            self._of_baseline(key_of(zoo.name, case.name)),
            self._of_environment(key_of(zoo.name, case.name), device or case.settings.device),
            self._of_code(zoo, case),
        )
        return next(filter(None, reasons), "")

    def _reason_for_all(self, config: pytest.Config) -> str:
        """Return what changed of the files that concern all models: settings, and hooks that change models."""
        hooks = model_hook_files(config)
        if outside := [path for path in hooks if not path.is_relative_to(self._top)]:
            return f"{outside[0].name} has hooks on models, and is not in this repository"
        settings = [] if config.inipath is None else [config.inipath.resolve()]
        return self._first_change([*settings, *self._imports.closure(hooks)])

    def _of_zoo(self, zoo: Zoo, case: ModelCase) -> Iterator[str]:
        path = zoo.path.resolve()
        if path.parent != shipped_folder().resolve() or self._is_own(path):
            yield self._first_change([path])

    def _of_baseline(self, key: str) -> Iterator[str]:
        path = self._store.path(key)
        snapshot = self._snapshot(key)
        if snapshot is None:
            yield "its baseline cannot be read" if path.exists() else "it has no baseline"
        elif snapshot.sources is None:
            yield "its baseline does not name the files of its code"
        elif ELSEWHERE in snapshot.sources:
            yield "some of its code is in no repository and no installed package"
        else:
            yield "its baseline changed" if self._first_change([path.resolve()]) else ""

    def _of_environment(self, key: str, device: str) -> Iterator[str]:
        snapshot = self._snapshot(key)
        if snapshot is None:
            return
        now = replace(self._environment, device=device.partition(":")[0])
        block = snapshot.measured.get(class_of(now))
        if block is None:
            yield f"its baseline has no numbers of {class_of(now)}"
        else:
            yield "; ".join(_differences(block.environment, now))

    def _of_code(self, zoo: Zoo, case: ModelCase) -> Iterator[str]:
        yield self._first_change(self._code_of(zoo, case))
        yield self._change_beside(zoo, case)
        if case.entry_file is not None:
            if zoo.path not in self._unattributed:
                self._unattributed[zoo.path] = self._change_of_no_model(zoo, case.entry_file.resolve())
            yield self._unattributed[zoo.path]

    def _code_of(self, zoo: Zoo, case: ModelCase) -> set[Path]:
        """Return the files of a model's code, and all that they import.

        The file with the function that the zoo file names imports every model, so its imports are not followed, unless
        the model's code is in it.
        """
        if case.name in self._code.setdefault(zoo.path, {}):
            return self._code[zoo.path][case.name]
        entry = {case.entry_file.resolve()} if case.entry_file is not None else set()
        snapshot = self._snapshot(key_of(zoo.name, case.name))
        recorded = {(self._root / name).resolve() for name in snapshot.sources or ()} if snapshot else set()
        made = {file.resolve() for file in case.function_files()} - entry
        found = self._code[zoo.path][case.name] = entry | self._imports.closure(recorded | made)
        return found

    def _change_beside(self, zoo: Zoo, case: ModelCase) -> str:
        """Return a file beside the code or the zoo file that changed, or that git ignores: the model may read it."""
        folders = {path.parent for path in (zoo.path.resolve(), *self._code_of(zoo, case))}
        changed = (path for path in map(self._top.joinpath, sorted(self._changed)) if path.parent in folders)
        ignored = (path for folder in sorted(folders) for path in self._ignored_in(folder))
        return self._first_change(
            path for path in chain(changed, ignored) if path.suffix not in _UNREAD and not _is_zoo(path)
        )

    def _ignored_in(self, folder: Path) -> list[Path]:
        """Return the files in a folder of the repository that git ignores, without hidden ones and byproducts."""
        if folder not in self._ignored:
            files = sorted(path for path in folder.iterdir() if path.is_file()) if self._is_own(folder) else []
            self._ignored[folder] = [
                path
                for path in files
                if path.relative_to(self._top).as_posix() not in self._tracked
                and not path.name.startswith(".")
                and path.suffix not in _BYPRODUCTS
            ]
        return self._ignored[folder]

    def _is_own(self, path: Path) -> bool:
        """Return whether a path is in the repository, and no installed package is."""
        return path.is_relative_to(self._top) and not INSTALLED & set(path.parts)

    def _change_of_no_model(self, zoo: Zoo, entry: Path) -> str:
        """Return a changed file that the zoo's Python file imports, and that the code of no model is in.

        What it has may shape any model: widths of layers, a function that builds a part.
        """
        known: set[Path] = set()
        for name in zoo.names:
            if self._snapshot(key_of(zoo.name, name)) is not None:
                known |= self._code_of(zoo, zoo.case(name))
        return self._first_change(sorted(self._imports.closure([entry]) - known))

    def _first_change(self, paths: Iterable[Path]) -> str:
        """Return what changed of the first of some files that did, or why that is unknown; empty if none did."""
        for path in paths:
            name = path.relative_to(self._top).as_posix() if path.is_relative_to(self._top) else ""
            if not name:
                return f"{path.name} is not in this repository"
            if any(part in self._changed for part in (name, *(one.as_posix() for one in Path(name).parents))):
                return f"{name} changed"
            if not path.exists():
                return f"{name} is gone"
            if name not in self._tracked:
                return f"git ignores {name}"
            if path.suffix == ".py" and self._imports.is_unknown(path):
                return f"{name} cannot be parsed, so that its imports are unknown"
        return ""

    def _snapshot(self, key: str) -> Snapshot | None:
        if key not in self._snapshots:
            try:
                self._snapshots[key] = self._store.load(key)
            except BaselineError:
                self._snapshots[key] = None
        return self._snapshots[key]

    @cached_property
    def _environment(self) -> Environment:
        from pytest_torchlens.run import find_environment

        return find_environment()


def _search_path() -> list[str]:
    import sys

    return [path for path in sys.path if path]


def _differences(before: Environment, now: Environment) -> Iterator[str]:
    """Yield how this environment differs from that of a baseline, in any package that the baseline names."""
    compared = axes(before, now)
    yield from compared
    known = {text.partition(" ")[0] for text in compared}
    for name, version in before.packages.items():
        if name not in _UNIMPORTANT | known and (new := now.packages.get(name) or version_of(name)) != version:
            yield f"{name} {version or 'none'} → {new or 'none'}"


def _is_zoo(path: Path) -> bool:
    """Whether a file is a zoo's: it concerns that zoo alone."""
    if path.suffix not in ZOO_ENDINGS or not path.is_file():
        return False
    return any(line.startswith("provider:") for line in path.read_text(encoding="utf-8", errors="replace").splitlines())
