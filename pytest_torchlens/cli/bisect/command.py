"""``pytest-lens bisect``: declares the options, says what will be done, and what was found."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_torchlens.cli.errors import INCOMPLETE
from pytest_torchlens.cli.errors import CommandError
from pytest_torchlens.cli.project import Project
from pytest_torchlens.cli.project import name_of
from pytest_torchlens.cli.project import test_of
from pytest_torchlens.records.model_names import ModelName

_DESCRIPTION = """Finds the release of PyTorch, or the commit, from which on a model fails against what it computed
before, and names the operation and the error in each that was tried. A release that cannot be installed is skipped, and
so is one, or a commit, where the model does not run. The comparison is that of pytest --lens-against, with the
project's settings; nothing in the project, its baselines and its checkout is changed. Ends with 0 if one release or
commit is found, with 1 if a few are left."""
INTERRUPTED = 130


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "bisect", help="find the release or commit that changed what a model computes", description=_DESCRIPTION
    )
    parser.add_argument(
        "model", metavar="MODEL", help="torchvision:resnet18, torchvision/resnet18 or zoo/net.yaml::net"
    )
    parser.add_argument("--good", metavar="RELEASE", help="a release of PyTorch under which the model is right: 2.9.1")
    parser.add_argument("--bad", metavar="RELEASE", help="a release under which it is wrong: 2.14.1")
    parser.add_argument("--git", metavar="GOOD..BAD", help="search commits of this repository, with this environment")
    parser.add_argument(
        "--fail", metavar="CONDITION", action="append", default=[], help="what is bad, as --lens-fail-on of pytest"
    )
    parser.add_argument("--timeout", metavar="SECONDS", default="", help="time limit of the model in each run")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be run and downloaded")
    _add_release_options(parser.add_argument_group("releases"))
    parser.set_defaults(run_command=run)


def _add_release_options(group: Any) -> None:
    group.add_argument(
        "--environment",
        metavar="RELEASE=PYTHON",
        action="append",
        default=[],
        help="an interpreter that has this release, such as 2.11.0=envs/torch211/bin/python; may be repeated",
    )
    group.add_argument(
        "--releases",
        metavar="RELEASE,RELEASE",
        help="those to try between (default: all for this Python)",
    )
    group.add_argument("--no-install", action="store_true", help="try only releases with an --environment")
    group.add_argument("--index", metavar="URL", default="", help="one more package index, such as PyTorch's for CPUs")
    group.add_argument("--nightlies", action="store_true", help="try nightly builds too; needs their --index")
    group.add_argument(
        "--with",
        metavar="PACKAGE",
        action="append",
        default=[],
        dest="packages",
        help="one more package to install, such as einops or 'timm==1.0.15'; may be repeated (default: what the zoo's "
        "models import, in the versions that are installed here, and the torchvision and torchaudio that fit)",
    )
    group.add_argument("--python", metavar="PYTHON", default="", help="interpreter of all environments (default: this)")
    group.add_argument(
        "--keep", metavar="DIR", type=Path, help="keep the environments in this folder, and use those that are in it"
    )


def run(options: argparse.Namespace) -> int:
    """Check the options, and search."""
    if bool(options.git) == bool(options.good or options.bad):
        raise CommandError("expected --good=RELEASE and --bad=RELEASE, or --git=GOOD..BAD")
    if not options.git and not (options.good and options.bad):
        missing = "--bad" if options.good else "--good"
        raise CommandError(f"{missing}: expected a release of PyTorch, got none")
    try:
        with _terminable():
            return _bisect_commits(options) if options.git else _bisect_releases(options)
    except KeyboardInterrupt:
        print(f"interrupted: the search ends here{'' if options.keep else ', and what it made is removed'}", flush=True)
        return INTERRUPTED


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end the search as Ctrl-C does: with everything removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def _zoo_and_arguments(text: str) -> tuple[Path, tuple[str, ...]]:
    """Return the zoo file of a model, and the arguments of pytest that name the model."""
    zoo, name = _name(text)
    path, _ = Project.of().file(text)
    is_file = Path(zoo).is_file()
    return path, (f"{zoo}::{name}" if is_file else f"--lens-zoo={path.stem}:{name}",)


def _name(text: str) -> ModelName:
    found = name_of(text)
    if test := test_of(text):
        raise CommandError(f"expected a zoo's model, got the test {test}: only models of zoos run under other releases")
    return found


def _bisect_releases(options: argparse.Namespace) -> int:
    from pytest_torchlens.cli.bisect.environments import Environments
    from pytest_torchlens.cli.bisect.environments import Recipe
    from pytest_torchlens.cli.bisect.environments import default_python
    from pytest_torchlens.cli.bisect.releases import ReleaseSearch
    from pytest_torchlens.cli.bisect.releases import plan
    from pytest_torchlens.cli.bisect.releases import provider_packages
    from pytest_torchlens.cli.bisect.releases import requirements
    from pytest_torchlens.cli.bisect.trial import Comparer

    if options.nightlies and not options.index:
        raise CommandError("--nightlies needs --index, the address of PyTorch's nightly builds")
    zoo_file, arguments = _zoo_and_arguments(options.model)
    comparer = Comparer(
        model=arguments,
        folder=str(Path.cwd()),
        fail=tuple(options.fail),
        timeout=options.timeout,
    )
    existing = _with_this(_existing(options.environment), options)
    releases = _releases(options, existing)
    recipe = None
    if not options.no_install:
        packages = requirements(provider_packages(zoo_file))
        recipe = Recipe(
            python=options.python or default_python(),
            packages=(*packages, *options.packages),
            index=options.index,
            nightlies=options.nightlies,
        )
    with Environments.opened(existing, recipe, options.keep) as environments:
        environments.check(releases)
        print(plan(releases, environments, recipe.tool if recipe else ""), flush=True)
        if options.dry_run:
            return 0
        search = ReleaseSearch(releases, environments, comparer)
        search.run()
    return _report(search)


def _existing(texts: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        release, equals, python = text.partition("=")
        if not (equals and release and python):
            raise CommandError(
                f"--environment: expected RELEASE=PYTHON such as 2.11.0=envs/torch211/bin/python, got {text!r}"
            )
        found[release] = python
    return found


def _with_this(existing: dict[str, str], options: argparse.Namespace) -> dict[str, str]:
    """Add this environment, if its release is one to be tried: none need be made for that."""
    from pytest_torchlens.cli.bisect.releases import running_release

    release = running_release()
    named = [options.good, options.bad, *(options.releases or "").replace(" ", "").split(",")]
    if not release or options.python or (options.releases is not None and release not in named):
        return existing
    return {release: sys.executable, **existing}


def _releases(options: argparse.Namespace, existing: dict[str, str]) -> list[str]:
    from pytest_torchlens.cli.bisect.releases import path_between
    from pytest_torchlens.cli.bisect.releases import released
    from pytest_torchlens.cli.bisect.releases import version_of

    for release in existing:
        version_of(release, "--environment")
    if options.releases is not None:
        known = [name.strip() for name in options.releases.split(",") if name.strip()]
        for release in known:
            version_of(release, "--releases")
    else:
        known = [] if options.no_install else released(options.index, nightlies=options.nightlies)
    return path_between(options.good, options.bad, [*known, *existing])


def _report(search: Any) -> int:
    suspects = search.search.suspects
    last = suspects[-1]
    if len(suspects) == 1:
        print(f"\n{last} is the first bad release:\n\n{search.trials[last].details}")
        return 0
    print("\nthe first bad release is one of these:")
    for name in suspects:
        trial = search.trials[name]
        print(f"  {name}: {trial.verdict.value}: {trial.words}")
    return INCOMPLETE


def _bisect_commits(options: argparse.Namespace) -> int:
    from pytest_torchlens.cli.bisect.commits import bisect_commits

    zoo, name = _name(options.model)
    try:
        _, arguments = _zoo_and_arguments(options.model)
    except CommandError:  # the zoo may be in other commits
        arguments = (f"--lens-zoo={zoo}:{name}",)
    return bisect_commits(options, arguments)
