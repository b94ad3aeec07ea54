"""Runs models in another environment's interpreter, to compare this environment's results with (``--lens-against``).

`OtherPython` checks the interpreter and starts it.  `Against` has it store baselines in a temporary folder.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

from pytest_torchlens.baseline.policy import NOT_SAVED
from pytest_torchlens.baseline.policy import Policy
from pytest_torchlens.baseline.store import Store
from pytest_torchlens.baseline.store import key_of
from pytest_torchlens.records import ErrorRecord
from pytest_torchlens.records import Stage
from pytest_torchlens.records.files import temporary_folder
from pytest_torchlens.run.run_options import RunOptions
from pytest_torchlens.run.worker import Isolation

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_torchlens.records import ModelReport
    from pytest_torchlens.run.worker import JobLimits
    from pytest_torchlens.zoo import ModelCase


_PROBE = """
import importlib.metadata, importlib.util, json, sys
lacks = [name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]
torch = "" if "torch" in lacks else importlib.metadata.version("torch")
print(json.dumps({"python": sys.version_info[:2], "lacks": lacks, "torch": torch}))
"""
_NEEDED = ("torch", "executing", "graphviz", "jinja2", "numpy", "psutil", "safetensors", "tabulate", "xxhash", "yaml")
_OLDEST = (3, 10)
_SECONDS = 120
# The worker loads this very package, whether or not the other environment has one: both must write the same records.
# The package's folder is not added to its path, because this environment's PyTorch may be in the same folder.
_START = """
import importlib.util, json, sys
package, modules = sys.argv[1], json.loads(sys.argv[2])
sys.path[:] = [*(path for path in sys.path if path), *modules]
spec = importlib.util.spec_from_file_location(
    "pytest_torchlens", package + "/__init__.py", submodule_search_locations=[package]
)
sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[spec.name])
from pytest_torchlens.run.child import main
main()
"""


class OtherPythonError(ValueError):
    """The interpreter cannot run models; the message says why, and what to do."""


@dataclass(frozen=True)
class OtherPython:
    """An interpreter that can run models.

    Attributes
    ----------
    executable
        Its path.  Links are not followed, because a virtual environment is recognized by them.
    torch
        Version of its PyTorch.
    """

    executable: str
    torch: str

    @classmethod
    def find(cls, name: str, folder: Path) -> OtherPython:
        """Find and check an interpreter, without importing its PyTorch.

        Parameters
        ----------
        name
            A path, relative to `folder`, or the name of a command.

        Raises
        ------
        OtherPythonError
            If it does not exist, or lacks a package.
        """
        executable = _path(name, folder)
        facts = _facts(executable)
        if tuple(facts["python"]) < _OLDEST:
            version = ".".join(map(str, facts["python"]))
            raise OtherPythonError(f"{executable} is Python {version}; pytest-torchlens needs 3.10 or later")
        if not facts["torch"]:
            install = f"{executable} -m pip install pytest-torchlens torch==VERSION"
            raise OtherPythonError(f"{executable} has no torch; install it there ({install})")
        if facts["lacks"]:
            lacks = ", ".join(facts["lacks"])
            install = f"{executable} -m pip install pytest-torchlens"
            raise OtherPythonError(f"{executable} lacks {lacks}, which pytest-torchlens needs; install it ({install})")
        return cls(executable, facts["torch"])

    def __str__(self) -> str:
        """Return its name for messages."""
        return f"{self.executable} (torch {self.torch.partition('+')[0]})"

    def worker(self) -> list[str]:
        """Return the command of a worker process: `run.child` of this package, with the user's modules on its path."""
        package = Path(__file__).parents[1]
        modules = json.dumps([path for path in sys.path if _is_users(path)])
        return [self.executable, "-c", _START, str(package), modules]


def _path(name: str, folder: Path) -> str:
    path = folder / name
    if path.is_dir():
        inside = next((path / part for part in ("bin/python", "Scripts/python.exe") if (path / part).exists()), None)
        raise OtherPythonError(
            f"expected a Python interpreter, got the folder {path}{f'; did you mean {inside}?' if inside else ''}"
        )
    found = str(path) if path.exists() else shutil.which(name)
    if found is None:
        raise OtherPythonError(f"expected a Python interpreter such as ../other/.venv/bin/python, got {name!r}")
    return found


def _facts(executable: str) -> dict[str, Any]:
    command = [executable, "-c", _PROBE, *_NEEDED]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        why = getattr(error, "strerror", None) or f"it did not answer within {_SECONDS} s"
        raise OtherPythonError(f"expected a Python interpreter, got {executable}: {why}") from None
    try:
        return dict(json.loads(_last_line(run.stdout)))  # its sitecustomize may print first
    except (TypeError, ValueError):
        why = _last_line(run.stderr) or "it does not answer as an interpreter does"
        raise OtherPythonError(f"expected a Python interpreter, got {executable}: {why}") from None


def _last_line(text: str) -> str:
    return next(reversed(text.strip().splitlines()), "")


def _is_users(path: str) -> bool:
    """Whether a folder on `sys.path` holds the user's modules, not installed packages or the standard library."""
    parts = Path(path).parts
    return bool(path) and not {"site-packages", "dist-packages"} & set(parts) and not _is_pythons(Path(path))


def _is_pythons(path: Path) -> bool:
    own = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    own |= {f"{prefix}/lib" for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix)}
    return any(path.is_relative_to(folder) for folder in own) or path.suffix == ".zip"


class Against:
    """Has another interpreter store baselines, with all activations, in a temporary folder.

    Parameters
    ----------
    python
        The interpreter; one worker process runs all models.
    options
        What this process does with each model.
    limits
        What a model may use in the other process.

    Attributes
    ----------
    policy
        How this process compares with the stored baselines.
    notes
        Why operations of the last model cannot be run again on its inputs; empty if they can.
    """

    def __init__(self, python: OtherPython, options: RunOptions, limits: JobLimits) -> None:
        self.notes: tuple[str, ...] = ()
        self._python = python
        self._folder = temporary_folder("pytest-lens-against-")
        root = Path(self._folder.name)
        self._store = Store.of(root)
        folder, pending, activations = map(str, (self._store.folder, self._store.pending, self._store.activations))
        plain = Policy(folder=folder, pending=pending, activations=activations)
        theirs = replace(plain, update=("new", "changed"), keep=("activations",))
        ours = options.baseline or plain
        self.policy = replace(plain, root=ours.root, fail_on=ours.fail_on, against=str(python))
        there = RunOptions(validate=True, parts=("replay",), baseline=theirs, device=options.device)
        self._isolation = Isolation(there, limits, python.worker())

    def run(self, case: ModelCase, progress: Callable[[Stage], None]) -> ErrorRecord | None:
        """Run a model there; return why there is no baseline to compare with, or None."""
        try:
            result = self._isolation.run(case, progress)
        except ValueError as error:  # another process cannot build the model
            return self._error("ValueError", str(error))
        if self._store.path(_key(case)).exists():
            unsaved = result.report.comparison.unsaved if result.report.comparison else ""
            self.notes = (f"{self._python}: {NOT_SAVED}: {unsaved}",) if unsaved else ()
            return None
        if result.skipped is not None:
            return self._error("Skipped", result.skipped)
        return self._error(*_why(result.report))

    def forget(self, case: ModelCase) -> None:
        """Delete the baseline of a model."""
        self._store.remove(_key(case))

    def close(self) -> None:
        """End the other process and delete the folder."""
        self._isolation.close()
        self._folder.cleanup()

    def _error(self, kind: str, why: str) -> ErrorRecord:
        return ErrorRecord(stage=Stage.COMPARE, type=kind, message=f"not run by {self._python}: {why}")


def _key(case: ModelCase) -> str:
    return key_of(case.zoo, case.name)


def _why(report: ModelReport) -> tuple[str, str]:
    """Return kind and message of the error in a run that stored nothing."""
    if report.error is not None:
        return report.error.type, f"{report.error.message} (in stage {report.error.stage.value!r})"
    failed = [part.failures[0].message for part in report.verdict.parts if part.failures] if report.verdict else []
    return "Unproven", "; ".join([*failed, *report.notes]) or "its record does not hold"
