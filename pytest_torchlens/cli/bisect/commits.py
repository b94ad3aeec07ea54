"""Takes a search through commits: ``git bisect run`` in a worktree of its own, which is removed at the end."""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_torchlens.baseline.source_files import INSTALLED
from pytest_torchlens.cli.bisect import step as step_module
from pytest_torchlens.cli.bisect.processes import run
from pytest_torchlens.cli.bisect.processes import started
from pytest_torchlens.cli.bisect.releases import not_bad
from pytest_torchlens.cli.bisect.search import most_trials
from pytest_torchlens.cli.bisect.step import FAULT
from pytest_torchlens.cli.bisect.step import MARK
from pytest_torchlens.cli.bisect.trial import Comparer
from pytest_torchlens.cli.bisect.trial import Trial
from pytest_torchlens.cli.bisect.trial import Verdict
from pytest_torchlens.cli.errors import INCOMPLETE
from pytest_torchlens.cli.errors import CommandError
from pytest_torchlens.records import from_json
from pytest_torchlens.records import to_json
from pytest_torchlens.records import write_atomically
from pytest_torchlens.records.files import remove_folder
from pytest_torchlens.records.files import temporary_folder
from pytest_torchlens.records.git import GitError
from pytest_torchlens.records.git import Repository
from pytest_torchlens.records.git import git_command
from pytest_torchlens.records.git import git_environment


def bisect_commits(options: argparse.Namespace, model: tuple[str, ...]) -> int:
    """Search the commits between the two that ``--git`` names."""
    try:
        repository = Repository.of(Path.cwd())
        good, bad = _ends(repository, options.git)
        between = int(repository.run("rev-list", "--count", f"{good}..{bad}")) - 1
        print(_plan(options.git, between), flush=True)
        if options.dry_run:
            return 0
        with _worktree(repository, good) as tree:
            search = CommitSearch(repository, tree, _comparer(options, model, repository, tree))
            search.run(good, bad)
            return report(search, repository)
    except GitError as error:
        raise CommandError(str(error)) from None


def _ends(repository: Repository, text: str) -> tuple[str, str]:
    first, dots, last = text.partition("..")
    if not (dots and first and last) or last.startswith("."):
        raise CommandError(f"--git: expected GOOD..BAD such as v1.0..HEAD, got {text!r}")
    try:
        good, bad = repository.commit(first), repository.commit(last)
    except GitError as error:
        raise CommandError(f"--git: {error}") from None
    if good == bad:
        raise CommandError(f"--git: {first} and {last} are one commit")
    try:
        repository.run("merge-base", "--is-ancestor", good, bad)
    except GitError:
        raise CommandError(f"--git: {first} is not an ancestor of {last}: name an earlier good commit") from None
    return good, bad


def _plan(text: str, between: int) -> str:
    most = 2 + most_trials(between)
    return (
        f"{between} commit{'s' * (between != 1)} between {text.replace('..', ' and ')}\n"
        f"at most {most} runs, more if commits must be skipped; in a worktree, with this environment: no downloads"
    )


@contextlib.contextmanager
def _worktree(repository: Repository, commit: str) -> Iterator[Path]:
    """Check a commit out in a temporary folder; a worktree has its own index, HEAD and state of ``git bisect``."""
    with temporary_folder("pytest-lens-bisect-") as folder:
        tree = Path(os.path.realpath(folder)) / "tree"
        try:
            _add(repository, tree, commit)
            yield tree
        finally:
            # Without the folder git removes half-made and locked ones too; `prune` would forget some of the user's.
            remove_folder(tree)
            with contextlib.suppress(GitError):
                repository.run("worktree", "remove", "--force", "--force", str(tree))


def _add(repository: Repository, tree: Path, commit: str) -> None:
    """Add the worktree; if this process is interrupted, git and its filters end first."""
    command = git_command(repository.folder, "worktree", "add", "--quiet", "--detach", str(tree), commit)
    ended = run(command, variables=git_environment())
    if ended.returncode:
        raise GitError(f"git worktree add: {' '.join(ended.stderr.split())}")


def _comparer(options: argparse.Namespace, model: tuple[str, ...], repository: Repository, tree: Path) -> Comparer:
    def moved(path: str) -> str:
        """Return the place in the worktree of a path in the user's checkout; another path unchanged."""
        real = Path(os.path.realpath(path))
        is_own = real.is_relative_to(repository.top) and not INSTALLED & set(real.parts)
        return str(tree / real.relative_to(repository.top)) if is_own else path

    if moved(__file__) != __file__:
        raise CommandError("pytest-torchlens runs from this repository: install it elsewhere to search these commits")
    first, *_ = model
    own = moved(first) if "::" in first and Path(first).is_absolute() else first
    paths = [moved(path) for path in sys.path if path and moved(path) != path]
    inherited = [moved(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    variables = {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys([*paths, *inherited])),
        # Bytecode counts as that of any file of that size, written in that second: checkouts follow each other fast.
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    folder = tree / repository.folder.relative_to(repository.top)
    return Comparer(
        model=(own,), folder=str(folder), fail=tuple(options.fail), timeout=options.timeout, variables=variables
    )


@dataclass(frozen=True, kw_only=True)
class Step:
    """What each step of ``git bisect run`` does; plain data, which goes to it as JSON.

    Attributes
    ----------
    comparer
        How it compares.
    options
        Options that name the baseline.
    tree
        The worktree.
    """

    comparer: Comparer
    options: tuple[str, ...]
    tree: str

    def run(self) -> StepResult:
        """Compare the commit that is checked out."""
        commit = Repository.of(Path(self.tree)).commit("HEAD")
        if not Path(self.comparer.folder).is_dir():
            return StepResult(commit=commit, trial=Trial(verdict=Verdict.SKIPPED, words="it lacks this folder"))
        return StepResult(commit=commit, trial=self.comparer.run(*self.options))


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """The trial of one commit."""

    commit: str
    trial: Trial


class CommitSearch:
    """Finds the first bad commit in a worktree.

    Parameters
    ----------
    repository
        The user's repository, which only names commits.
    tree
        The worktree.
    comparer
        Runs a comparison in it.

    Attributes
    ----------
    trials
        By digest of the commit.
    """

    def __init__(self, repository: Repository, tree: Path, comparer: Comparer) -> None:
        self.trials: dict[str, Trial] = {}
        self._repository = repository
        self._tree = tree
        self._comparer = comparer
        self._options = ("-o", f"lens_baseline_dir={tree.parent / 'baselines'}", "--lens-update-in-ci")

    def name(self, commit: str) -> str:
        """Return a commit's short digest and subject."""
        return self._repository.run("show", "--no-patch", "--format=%h %s", commit).strip()

    def run(self, good: str, bad: str) -> None:
        """Try commits until one is left, or none that can be tried.

        Raises
        ------
        CommandError
            If the good commit cannot be run, or the bad one is not bad.
        """
        self._store(good)
        self._git("checkout", "--quiet", "--detach", bad)
        step = Step(comparer=self._comparer, options=self._options, tree=str(self._tree))
        self._note(step.run())
        if self.trials[bad].verdict is not Verdict.BAD:
            raise CommandError(not_bad(self.name(bad), self.trials[bad]))
        self._git("bisect", "start", bad, good)
        if len(self.suspects) > 1:
            self._search(step)

    @property
    def suspects(self) -> list[str]:
        """The commits of which one is the first bad one, the bad one first."""
        return self._git("rev-list", "refs/bisect/bad", "--not", "--glob=refs/bisect/good-*").split()

    def _store(self, good: str) -> None:
        """Store the good commit's baseline, with activations, outside of the project."""
        stored = self._comparer.run(*self._options, "--lens-update=all", "--lens-keep=activations")
        if stored.verdict is Verdict.SKIPPED:
            raise CommandError(f"the model does not run at {self.name(good)}, which should be good: {stored.words}")
        print(f"{self.name(good)}: good by definition", flush=True)

    def _search(self, step: Step) -> None:
        """Let git run the steps, and note what each prints."""
        plan = self._tree.parent / "step.json"
        write_atomically(plan, to_json(step))
        # By its path: with -m the worktree's own files would come first among the modules.
        command = git_command(self._tree, "bisect", "run", sys.executable, step_module.__file__, str(plan))
        others, fault = [], ""
        with started(command, variables=git_environment(), errors=subprocess.STDOUT) as running:
            for line in running.stdout or ():
                if line.startswith(MARK):
                    self._note(from_json(line.removeprefix(MARK), StepResult))
                elif line.startswith(FAULT):
                    fault = line.removeprefix(FAULT).strip()
                else:
                    others.append(line.strip())
        if fault:
            raise CommandError(f"git bisect run: a step ended with {fault}")
        if running.returncode not in _ENDED:
            raise CommandError(f"git bisect run: {' '.join(others[-2:])}")

    def _note(self, result: StepResult) -> None:
        trial = result.trial.relative_to(str(self._tree))
        self.trials[result.commit] = trial
        print(f"{self.name(result.commit)}: {trial.verdict.value}: {trial.words}", flush=True)

    def _git(self, *arguments: str) -> str:
        return Repository(self._tree, self._tree).run(*arguments)


_ENDED = (0, 2)
"""Exit statuses of ``git bisect run``: a commit was found, or only skipped ones are left."""
_UNTRIED = Trial(verdict=Verdict.SKIPPED, words="it was not tried")


def report(search: CommitSearch, repository: Repository) -> int:
    """Print what is left of a search; return the exit status."""
    suspects = search.suspects
    if len(suspects) == 1:
        (found,) = suspects
        about = repository.run("show", "--stat", "--format=%an, %ad", "--date=iso", found).strip()
        trial = search.trials.get(found, _UNTRIED)
        print(f"\n{search.name(found)} is the first bad commit:\n{about}\n\n{trial.details or trial.words}")
        return 0
    print("\nthe first bad commit is one of these:")
    for commit in reversed(suspects):
        trial = search.trials.get(commit, _UNTRIED)
        print(f"  {search.name(commit)}: {trial.verdict.value}: {trial.words}")
    return INCOMPLETE
