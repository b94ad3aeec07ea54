"""Takes a search through releases of PyTorch: which there are, what they need, and which is the first bad one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion
from packaging.version import Version

from pytest_torchlens.cli.bisect.environments import GIGABYTES
from pytest_torchlens.cli.bisect.environments import EnvironmentFailure
from pytest_torchlens.cli.bisect.environments import Environments
from pytest_torchlens.cli.bisect.environments import free_gigabytes
from pytest_torchlens.cli.bisect.runner import PYTHON
from pytest_torchlens.cli.bisect.search import Search
from pytest_torchlens.cli.bisect.search import most_trials
from pytest_torchlens.cli.bisect.trial import Trial
from pytest_torchlens.cli.bisect.trial import Verdict
from pytest_torchlens.cli.errors import CommandError

if TYPE_CHECKING:
    from pytest_torchlens.cli.bisect.trial import Comparer

PACKAGES_OF_PROVIDER = {
    "torchvision": ("torchvision",),
    "timm": ("timm", "torchvision"),
    "transformers": ("transformers",),
    "transformers_generate": ("transformers",),
    "diffusers": ("diffusers", "scipy", "torchsde", "transformers"),
    "peft": ("peft", "scikit-learn", "transformers"),
    "torchaudio": ("torchaudio",),
    "torch_geometric": ("torch-geometric",),
    "segmentation_models_pytorch": ("segmentation-models-pytorch", "timm", "torchvision"),
}
"""What the models of each provider of zoos are made of."""
PARTNERS = ("torchaudio", "torchvision")
"""Each of their releases needs exactly one release of PyTorch, so the installer must choose it."""
NEEDED = "executing filelock graphviz jinja2 numpy psutil PyYAML safetensors tabulate xxhash".split()
"""What pytest-torchlens needs beside PyTorch, and pytest apart, which runs here."""


def requirements(packages: Iterable[str]) -> tuple[str, ...]:
    """Return packages as requirements: each in the version that is installed here, so that PyTorch alone differs."""
    return tuple(dict.fromkeys(_requirement(name) for name in (*NEEDED, *packages)))


def _requirement(name: str) -> str:
    try:
        return name if name in PARTNERS else f"{name}=={metadata.version(name)}"
    except metadata.PackageNotFoundError:
        return name


def running_release() -> str:
    """Return the release of this environment's PyTorch; empty if it has none, or a build before a release."""
    try:
        found = Version(metadata.version("torch"))
    except (metadata.PackageNotFoundError, InvalidVersion):
        return ""
    return "" if found.is_prerelease else found.public


def version_of(text: str, option: str) -> Version:
    """Return a version.

    Raises
    ------
    CommandError
        If the text is none.
    """
    try:
        return Version(text)
    except InvalidVersion:
        raise CommandError(f"{option}: expected a release of PyTorch such as 2.9.1, got {text!r}") from None


def path_between(good: str, bad: str, known: Iterable[str]) -> list[str]:
    """Return the releases from the good to the bad one, in order; a good one may be the newer."""
    first, last = version_of(good, "--good"), version_of(bad, "--bad")
    if first == last:
        raise CommandError(f"--good and --bad are both {good}: expected two releases")
    low, high = sorted((first, last))
    between = {Version(name).public: name for name in sorted(known, key=len, reverse=True)}
    inside = [name for public, name in between.items() if low < Version(public) < high]
    return [good, *sorted(inside, key=Version, reverse=first > last), bad]


def released(index: str, *, nightlies: bool) -> list[str]:
    """Return the releases of PyTorch that an installer can get for this Python.

    Raises
    ------
    CommandError
        If pip is missing, or the index has none.
    """
    pip = _pip()
    options = [*([f"--extra-index-url={index}"] if index else []), *(["--pre"] if nightlies else [])]
    run = subprocess.run(  # noqa: S603 - the user's pip
        [*pip, "index", "versions", "torch", "--disable-pip-version-check", *options],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    found = [line.partition(":")[2] for line in run.stdout.splitlines() if line.startswith("Available versions:")]
    if not found:
        why = next(reversed(run.stderr.strip().splitlines()), f"pip ended with {run.returncode}")
        raise CommandError(f"the releases of PyTorch are not known: {why}; name them with --releases=2.10.0,2.11.0")
    return [name.strip() for name in found[0].split(",")]


def _pip() -> list[str]:
    import importlib.util

    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    if found := shutil.which("pip"):
        return [found]
    if uv := shutil.which("uv"):
        return [uv, "tool", "run", "pip"]
    raise CommandError("no pip and no uv to ask for the releases of PyTorch: name them with --releases=2.10.0,2.11.0")


class ReleaseSearch:
    """Finds the first bad release of a list whose first is good and whose last is bad.

    Parameters
    ----------
    releases
        At least two, in order.
    environments
        The interpreter of each.
    comparer
        Runs a comparison.
    """

    def __init__(self, releases: Sequence[str], environments: Environments, comparer: Comparer) -> None:
        self.search = Search(releases)
        self.trials: dict[str, Trial] = {}
        self._good, self._bad = releases[0], releases[-1]
        self._environments = environments
        self._comparer = comparer

    def run(self) -> None:
        """Try releases until one is left, or none that can be tried.

        Raises
        ------
        CommandError
            If the good release cannot be run, or the bad one is not bad.
        """
        against = self._reference()
        bad = self._try(self._bad, against)
        if bad.verdict is not Verdict.BAD:
            raise CommandError(not_bad(self._bad, bad))
        while (release := self.search.next) is not None:
            verdict = self._try(release, against).verdict
            {Verdict.GOOD: self.search.good, Verdict.BAD: self.search.bad, Verdict.SKIPPED: self.search.skip}[verdict](
                release
            )

    def _reference(self) -> str:
        try:
            against = self._environments.python(self._good)
        except EnvironmentFailure as error:
            raise CommandError(f"--good={self._good}: {error}") from None
        print(f"{self._good}: good by definition ({against})", flush=True)
        return against

    def _try(self, release: str, against: str) -> Trial:
        try:
            python = self._environments.python(release)
        except EnvironmentFailure as error:
            trial = Trial(verdict=Verdict.SKIPPED, words=str(error))
        else:
            options = ("-p", "pytest_torchlens.cli.bisect.runner", f"--lens-against={against}")
            trial = self._comparer.run(*options, **{PYTHON: python})
        finally:
            self._environments.drop(release)
        self.trials[release] = trial
        print(f"{release}: {trial.verdict.value}: {trial.words}", flush=True)
        return trial


def not_bad(name: str, trial: Trial) -> str:
    """Return the message for a last release or commit that is not bad."""
    if trial.verdict is Verdict.SKIPPED:
        return f"nothing can be said of {name}, which should be bad: {trial.words}"
    if trial.differs:
        return f"{name} does not fail ({trial.words}): to find where this came in, add --fail={trial.change}"
    return f"{name} is not bad: it computes the same as the good one"


def plan(releases: Sequence[str], environments: Environments, tool: str) -> str:
    """Return what a search will do: how many runs it takes at most, and what it downloads."""
    between = releases[1:-1]
    most = 1 + most_trials(len(between))
    names = f": {', '.join(between)}" if between else ""
    lines = [f"{len(between)} release{'s' * (len(between) != 1)} between {releases[0]} and {releases[-1]}{names}"]
    runs = f"{most} comparison{'s' * (most != 1)}"
    if here := next((release for release, python in environments.existing.items() if python == sys.executable), ""):
        lines.append(f"{here} is this environment, {sys.executable}")
    lines.append(f"at most {runs}, more if some must be skipped; each runs the model under {releases[0]} and another")
    new = min(most + 1, sum(release not in environments.existing for release in releases))
    if environments.recipe is not None and new:
        low, high = (size * new for size in GIGABYTES)
        kept = "all are kept" if environments.keep else "two are on disk at a time, and removed at the end"
        free = free_gigabytes(environments.folder)
        lines.append(
            f"environments to make with {tool}: {new} at most, about {low} to {high} GB of downloads; {kept} "
            f"({free:.0f} GB are free in {environments.folder.parent})"
        )
    return "\n".join(lines)


def provider_packages(zoo_file: Path) -> tuple[str, ...]:
    """Return the packages that the models of a zoo file are made of, as far as its provider tells."""
    from pytest_torchlens.zoo import ZooError
    from pytest_torchlens.zoo.yaml_lines import read_yaml

    try:
        provider = str(read_yaml(zoo_file).get("provider", ""))
    except ZooError as error:
        raise CommandError(str(error)) from None
    if provider.startswith("python:"):
        return _imported(provider, zoo_file)
    return PACKAGES_OF_PROVIDER.get(provider, ())


def _imported(provider: str, zoo_file: Path) -> tuple[str, ...]:
    """Return the installed packages that a project's own models import."""
    from pytest_torchlens.baseline.source_files import Imports

    file = zoo_file.parent / provider.removeprefix("python:").rpartition(":")[0]
    if not file.is_file():
        return ()
    found = Imports(Path.cwd()).packages([file])
    return tuple(sorted(name for name in found - {"torch", "pytest", "pytest-torchlens"} if not _is_local(name)))


def _is_local(package: str) -> bool:
    """Return whether a package was installed from a folder: no index has it, and the models find it where it is."""
    origin = metadata.distribution(package).read_text("direct_url.json")
    return origin is not None and json.loads(origin).get("url", "").startswith("file:")
