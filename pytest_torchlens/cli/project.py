"""Asks pytest for the project's zoos: its ini file, plugins and ``conftest.py`` files name them."""

from __future__ import annotations

import contextlib
import io
import traceback
from collections.abc import Generator
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_torchlens.cli.errors import CommandError
from pytest_torchlens.records.model_names import ModelName
from pytest_torchlens.records.model_names import readings
from pytest_torchlens.zoo.catalog import ZOO_FOLDER
from pytest_torchlens.zoo.catalog import find_model
from pytest_torchlens.zoo.catalog import registered_files
from pytest_torchlens.zoo.catalog import shipped_folder
from pytest_torchlens.zoo.catalog import zoo_files
from pytest_torchlens.zoo.errors import ZooError

if TYPE_CHECKING:
    import pytest

    from pytest_torchlens.zoo import ModelCase
    from pytest_torchlens.zoo import Zoo


@dataclass(frozen=True)
class Project:
    """The zoo files of a project.

    Attributes
    ----------
    folders
        The folders of its own zoo files.
    registered
        The zoo files that plugins name.
    """

    folders: tuple[Path, ...]
    registered: tuple[Path, ...]

    @classmethod
    def of(cls, root: Path = Path()) -> Project:
        """Return the project that pytest sees from a folder.

        Raises
        ------
        CommandError
            If pytest cannot read its settings, or a hook of the project fails.
        """
        import pytest

        arguments = ["-p", "lens", *([str(root)] if root != Path() else [])]

        class SettingsReader:
            project: Project | None = None

            @pytest.hookimpl(wrapper=True)
            def pytest_load_initial_conftests(
                self, early_config: pytest.Config, parser: pytest.Parser, args: list[str]
            ) -> Generator[None, None, None]:
                # The plugins that ``addopts`` names are loaded; its other options, such as coverage, are for tests.
                args[:] = arguments
                cut = early_config.known_args_namespace.confcutdir
                early_config.known_args_namespace = parser.parse_known_args(args, copy(early_config.option))
                early_config.known_args_namespace.confcutdir = cut
                yield

            @pytest.hookimpl(tryfirst=True)
            def pytest_sessionstart(self, session: pytest.Session) -> None:
                self.project = cls._of(session.config)
                pytest.exit("the settings are read", returncode=0)  # instead of running tests

            def pytest_internalerror(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
                raise excinfo.value

        reader, said = SettingsReader(), io.StringIO()
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                pytest.main([*arguments], plugins=[reader])
        except CommandError:
            raise
        except (Exception, SystemExit) as error:
            raise CommandError(_hook_error(error)) from error
        if reader.project is None:
            lines = [line.strip() for line in said.getvalue().splitlines() if line.strip()]
            raise CommandError(f"pytest cannot read the project's settings: {' '.join(lines)}")
        return reader.project

    @classmethod
    def _of(cls, config: pytest.Config) -> Project:
        folders = config.getini("lens_zoo_paths") or [config.rootpath / ZOO_FOLDER]
        answers = config.hook.pytest_lens_register_zoo(config=config)
        try:
            return cls(tuple(folders), tuple(registered_files(answers)))
        except TypeError:
            raise CommandError(f"pytest_lens_register_zoo: expected a path or several, got {answers!r:.80}") from None

    def file(self, text: str) -> tuple[Path, str]:
        """Return the zoo file that a text names, and the name or glob of models in it.

        Raises
        ------
        CommandError
            If there is no such zoo.
        """
        try:
            return find_model(text, self.folders, self.registered)
        except ZooError as error:
            raise CommandError(str(error)) from None

    def zoo(self, name: str) -> Zoo:
        """Return the zoo that a name or path names; raises `CommandError` if there is none."""
        path, models = self.file(name)
        if models:
            raise CommandError(f"expected a zoo, got the model {name!r}: write {path.stem} {models}")
        return load(path)

    def case(self, text: str) -> ModelCase:
        """Return the one model that a text names, in any spelling; raises `CommandError` if there is none."""
        if not readings(text):
            raise CommandError(f"expected a model such as {self._example(text)}, got {text!r}")
        path, name = self.file(text)
        zoo = load(path)
        names = select(zoo, name or "*")
        if len(names) > 1 or not name:
            listed = ", ".join(f"{zoo.name}:{one}" for one in names[:3])
            raise CommandError(f"{text!r} names {len(names)} models ({listed}, …): name one")
        return zoo.case(names[0])

    def _example(self, name: str) -> str:
        """Return how the model of that name in one of the project's own zoos is named; else an example."""
        own = [load(path) for path in (*zoo_files(self.folders), *self.registered)]
        found = [f"{zoo.name}:{name}" for zoo in own if name in zoo.names]
        return " or ".join(found) or "torchvision:resnet18 or zoo.yaml::name"

    def files(self) -> Iterator[Path]:
        """Yield all zoo files; of one name only the first, which the name means."""
        seen: set[str] = set()
        for path in (*zoo_files(self.folders), *self.registered, *zoo_files([shipped_folder()])):
            if path.stem not in seen:
                yield path
            seen.add(path.stem)


def _hook_error(error: BaseException) -> str:
    """Return which hook, in which file, raised an error that pytest did not expect."""
    frames = traceback.extract_tb(error.__traceback__)
    last = max((place for place, frame in enumerate(frames) if "pluggy" in Path(frame.filename).parts), default=-1)
    frame = frames[min(last + 1, len(frames) - 1)]
    if "_pytest" in Path(frame.filename).parts:  # such as a plugin that cannot be imported
        return f"pytest cannot read the project's settings: {error}"
    return f"{frame.name} in {frame.filename}, line {frame.lineno}, raised {type(error).__name__}: {error}"


def load(path: Path) -> Zoo:
    """Return the zoo of a file; raises `CommandError` if it is wrong."""
    from pytest_torchlens.zoo import load_zoo  # which needs torch

    try:
        return load_zoo(path)
    except ZooError as error:
        raise CommandError(str(error)) from None


def select(zoo: Zoo, glob: str) -> list[str]:
    """Return the names that a glob matches; raises `CommandError` if there is none."""
    try:
        return zoo.select(glob)
    except ZooError as error:
        raise CommandError(str(error)) from None


def test_of(text: str) -> str | None:
    """Return the node id of the test that a text names; None if it names a zoo's model."""
    found = next((one for one in readings(text) if one.is_test), None)
    return "::".join(found) if found else None


def name_of(text: str) -> ModelName:
    """Return the likeliest meaning of a text; raises `CommandError` if it names no model."""
    if not (found := readings(text)):
        raise CommandError(f"expected a model such as torchvision:resnet18 or zoo/net.yaml::net, got {text!r}")
    return found[0]
