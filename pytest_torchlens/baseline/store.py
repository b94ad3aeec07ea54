"""Stores baselines as files, and the pending records of runs next to them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from pathlib import PurePath

from pytest_torchlens.baseline.checked import UNREADABLE
from pytest_torchlens.baseline.costs import StoredTimes
from pytest_torchlens.baseline.costs import read_times
from pytest_torchlens.baseline.costs import times_text
from pytest_torchlens.baseline.old_names import merge_notes
from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.baseline.snapshot_file import UnmergedError
from pytest_torchlens.baseline.snapshot_file import read
from pytest_torchlens.baseline.snapshot_file import to_text
from pytest_torchlens.records import file_name
from pytest_torchlens.records import write_atomically
from pytest_torchlens.records.files import remove
from pytest_torchlens.records.files import remove_folder
from pytest_torchlens.records.model_names import readings

FOLDER = "lens_baselines"
LOCAL = ".lens"
SET = "@"
"""First character of the folder of a named set."""


def key_of(zoo: str, name: str) -> str:
    """Return a model's key: ``"torchvision/resnet50"``; names that no file can have get a digest."""
    return "/".join(file_name(part) for part in [*filter(None, zoo.split("/")), name])


def key_named(text: str) -> str:
    """Return the key of the model that a text most likely names, in any spelling."""
    return next((key_of(*one) for one in _folders_and_names(text)), text)


def _folders_and_names(text: str) -> list[tuple[str, str]]:
    return [(PurePath(one.folder).as_posix(), one.name) for one in readings(text)]


def _named(keys: list[str], text: str) -> list[str]:
    """Return the keys that a text names; of several meanings the first that is the name of one."""
    meanings = [text, *(key for one in _folders_and_names(text) for key in (key_of(*one), "/".join(one)))]
    found = ([key for key in keys if key == meaning or fnmatchcase(key, meaning)] for meaning in meanings)
    return next(filter(None, found), [])


@dataclass(frozen=True)
class Store:
    """One set of baselines, and its pending records.

    Each model has its own file, written whole or not at all: processes that run other models do not interfere, and an
    interrupted run leaves the models that it finished.

    Parameters
    ----------
    folder
        The committed folder: ``lens_baselines`` in rootdir.
    pending
        Local folder of the pending records.
    activations
        Local folder of saved activations, with a folder for each model; None to save and look for none.
    times
        Local folder of the models' times on this machine; None to store none.
    """

    folder: Path
    pending: Path
    activations: Path | None = None
    times: Path | None = None

    @classmethod
    def of(cls, root: Path, folder: Path | None = None, name: str = "") -> Store:
        """Return the set `name` of a project; the default set has no name.

        A folder that is not the usual one has its own pending records, so that another does not accept them.
        """
        part = f"{SET}{name}" if name else "."
        given = os.path.relpath(folder or root / FOLDER, root)
        local, rest = root / LOCAL, Path("." if given == FOLDER else f"{SET * 2}{file_name(given)}", part)
        return cls(root / given / part, local / "pending" / rest, local / "activations" / rest, local / "times" / rest)

    def __bool__(self) -> bool:
        """Whether the project has stored this set."""
        return self.folder.is_dir()

    def path(self, key: str) -> Path:
        """Return the file of a model's baseline, which may not exist."""
        return self.folder / f"{key}.json"

    def pending_path(self, key: str) -> Path:
        """Return the file of a model's pending record, which may not exist."""
        return self.pending / f"{key}.json"

    def load(self, key: str) -> Snapshot | None:
        """Return a model's baseline; None if it has none.

        Raises
        ------
        BaselineError
            If its file cannot be used.
        """
        path = self.path(key)
        return read(path) if path.exists() else None

    def twin(self, snapshot: Snapshot, keys: Iterable[str]) -> str:
        """Return the one of `keys` whose baseline has the steps and weights of a snapshot: a model's earlier name.

        Empty if there is none, or the model has no weights to know it by.
        """
        digest = next((weight.digest for weight in snapshot.state.values()), "")
        for key in keys if digest else ():
            try:
                is_like = digest in self.path(key).read_text(encoding="utf-8")
                stored = self.load(key) if is_like else None
            except (OSError, ValueError):
                continue
            if stored is not None and (stored.steps, stored.state) == (snapshot.steps, snapshot.state):
                return key
        return ""

    def keep(self, key: str, snapshot: Snapshot) -> None:
        """Store a snapshot as pending."""
        ignore_in_git(self.pending)
        write_atomically(self.pending_path(key), to_text(snapshot))

    def forget(self, key: str) -> None:
        """Delete a model's pending record."""
        remove(self.pending_path(key))

    def accept(self, key: str, snapshot: Snapshot) -> None:
        """Store a snapshot as the baseline; keep the numbers of other environments if the steps are the same."""
        write_atomically(self.path(key), to_text(merge_snapshots(self._usable(key), replace(snapshot, code={}))))
        self.forget(key)
        if (times := self.times_of(key)) is not None:
            self._keep_times(key, times.as_baseline())

    def times_of(self, key: str) -> StoredTimes | None:
        """Return a model's stored times; None if there are none."""
        return read_times(path) if (path := self._times_path(key)) else None

    def note_time(self, key: str, machine: str, seconds: float) -> StoredTimes:
        """Store a model's time in this run; return it together with the baseline's."""
        before = self.times_of(key) or StoredTimes(machine=machine, baseline=seconds, last=seconds)
        self._keep_times(key, times := before.after(machine, seconds))
        return times

    def _keep_times(self, key: str, times: StoredTimes) -> None:
        if path := self._times_path(key):
            ignore_in_git(path.parent)
            write_atomically(path, times_text(times))

    def _times_path(self, key: str) -> Path | None:
        return self.times and self.times / f"{key}.json"

    def _usable(self, key: str) -> Snapshot | None:
        try:
            return self.load(key)
        except UnmergedError:
            raise
        except ValueError:
            return None

    def remove(self, key: str) -> None:
        """Delete a model's baseline, activations and times."""
        remove(self.path(key))
        if path := self._times_path(key):
            remove(path)
        if folder := self.activations_of(key):
            remove_folder(folder)

    def activations_of(self, key: str) -> Path | None:
        """Return the folder of a model's activations, which may not exist."""
        return self.activations and self.activations / f"{key}.tensors"

    def models(self, text: str = "*") -> list[str]:
        """Return the sorted keys of the baselines that a text, in any spelling, or a glob names."""
        return _named(sorted(_keys(self.folder)), text)

    def waiting(self, text: str = "*") -> list[str]:
        """Return the sorted keys of the pending records that a text, in any spelling, or a glob names."""
        return _named(sorted(_keys(self.pending)), text)


def merge_snapshots(old: Snapshot | None, new: Snapshot) -> Snapshot:
    """Return `new` with the numbers of `old` for other environments, if both ran the same steps."""
    if old is None or (old.steps, old.state) != (new.steps, new.state):
        return new
    return replace(new, measured={**old.measured, **new.measured}, old_names=merge_notes(old, new))


def _keys(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*.json") if folder.is_dir() else ():
        key = path.relative_to(folder).with_suffix("").as_posix()
        if not key.startswith(SET) and not UNREADABLE.search(
            key
        ):  # not one of our files, or a name that a terminal would interpret
            yield key


def ignore_in_git(folder: Path) -> None:
    """Put a ``.gitignore`` inside the local folder; the user's own stays unchanged."""
    local = next(parent for parent in (folder, *folder.parents) if parent.name in (LOCAL, ""))
    if not (mark := local / ".gitignore").exists():
        write_atomically(mark, "*\n")
