"""Validates the models that tests call: listens while a test runs, and says what was found in its report."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from dataclasses import replace
from typing import TYPE_CHECKING
from typing import Any

import pytest

from pytest_torchlens.plugin.arguments import names_zoo
from pytest_torchlens.plugin.deadlines import lift_deadline
from pytest_torchlens.plugin.marker import choice
from pytest_torchlens.plugin.marker import marked
from pytest_torchlens.plugin.marker import number
from pytest_torchlens.plugin.options import MODES
from pytest_torchlens.plugin.options import WHICH
from pytest_torchlens.plugin.traced import Traced
from pytest_torchlens.plugin.traced import failure_of
from pytest_torchlens.plugin.traced import section
from pytest_torchlens.records import to_json

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Generator

    from pytest_torchlens.history import ModelHistory
    from pytest_torchlens.records import TracedTest
    from pytest_torchlens.run.autotrace import Autotrace
    from pytest_torchlens.run.autotrace import Plan

SECTION = "lens"
MIB = 1 << 20


class LensWarning(UserWarning):
    """A model that a test called computes something else than its recorded graph says."""


@dataclass(frozen=True)
class Settings:
    """What is to be done about the models that a test calls, from options, ini keys and markers."""

    autotrace: str
    mode: str
    seconds: float
    memory: float
    parts: tuple[str, ...] | list[str] | str | None = None

    @classmethod
    def of(cls, config: pytest.Config) -> Settings:
        """Read and check options and ini keys.

        Raises
        ------
        pytest.UsageError
            If a value is none that an option takes; with the nearest that it does.
        """
        names = ("autotrace", "autotrace_mode", "autotrace_seconds", "autotrace_memory")
        which, mode, seconds, memory = (_value(config, f"lens_{name}") for name in names)
        try:
            return cls(
                autotrace=choice("--lens-autotrace", which, WHICH),
                mode=choice("--lens-autotrace-mode", mode, MODES),
                seconds=number("--lens-autotrace-seconds", seconds),
                memory=number("--lens-autotrace-memory", memory),
            )
        except ValueError as error:
            raise pytest.UsageError(str(error)) from None


def _value(config: pytest.Config, key: str) -> Any:
    given = getattr(config.option, key)
    return config.getini(key) if given is None else given


def register_autotrace(config: pytest.Config) -> None:
    """Add what this run needs: where tests run, what listens; where it is told, what gathers."""
    settings = Settings.of(config)
    if settings.autotrace == "off" or all(names_zoo(config, arg) for arg in config.args):
        return
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Traced(config, settings.autotrace, settings.mode), "lens-traced")
    if not config.pluginmanager.hasplugin("dsession"):
        config.pluginmanager.register(Listening(config, settings), "lens-autotrace")


class Listening:
    """Listens to the tests that run in this process."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self._config = config
        self._settings = settings
        self._autotrace: Autotrace | None = None
        self._of: dict[str, Settings] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Check the markers of all tests, before any of them runs."""
        for item in items:
            if not _is_model(item):
                self._of[item.nodeid] = replace(self._settings, **self._marked(item))

    def _marked(self, item: pytest.Item) -> dict[str, Any]:
        try:
            return {name: value for name, value in marked(item).items() if name != "fail_on"}
        except pytest.UsageError:
            if hasattr(self._config, "workerinput"):  # nobody would hear of it; the test itself fails when it begins
                return {}
            raise

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Be told of module calls as long as tests run; torch is imported here, after whatever conftest files set."""
        if not self._of or self._config.option.collectonly:
            return (yield)
        from pytest_torchlens.capture.patches import module_calls_seen
        from pytest_torchlens.run.autotrace import Autotrace

        self._autotrace = Autotrace()
        with module_calls_seen():
            return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        """Begin with a test, and listen to its fixtures."""
        settings = self._of.get(item.nodeid)
        if self._autotrace is None or settings is None or settings.autotrace == "off":
            return (yield)
        self._autotrace.begin(item.nodeid, self._plan(settings))
        lift_deadline(item)
        with self._autotrace.on():
            return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        """Listen to the test."""
        settings = self._of.get(item.nodeid)
        if self._autotrace is None or settings is None or settings.autotrace == "off":
            return (yield)
        with self._autotrace.on():
            return (yield)

    def _plan(self, settings: Settings) -> Plan:
        from pytest_torchlens.plugin.marker import validation_parts
        from pytest_torchlens.run.autotrace import Plan
        from pytest_torchlens.validate import PARTS

        chosen = settings.parts or self._config.option.lens_parts or self._config.getini("lens_parts") or PARTS
        return Plan(
            every=settings.autotrace == "all",
            parts=validation_parts("parts", chosen),
            seconds=settings.seconds,
            nbytes=int(settings.memory * MIB),
            keep=bool(self._config.option.lens_report or self._config.getini("lens_report")),
        )

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Say what was found; a test that passed fails if a model's graph does not hold."""
        report: Any = yield
        if self._autotrace is not None and (call.when == "call" or (call.when == "setup" and not report.passed)):
            found = self._autotrace.found()
            if found.calls:
                report.lens_traced = to_json(found)  # plain text, which gets out of a worker
                self._tell(item, report, found)
            called: Any = self._config.pluginmanager.get_plugin("lens-called")
            for name, history, verdict in self._autotrace.histories:
                called.add(item, name, history, verdict)
            self._autotrace.forget()
        told: pytest.TestReport = report
        return told

    def proving(self, item: pytest.Item, trace: Callable[..., ModelHistory]) -> Callable[..., ModelHistory]:
        """Return a function that records a forward pass, and has the record proved."""

        @functools.wraps(trace)
        def proved(*args: Any, **kwargs: Any) -> ModelHistory:
            __tracebackhide__ = True
            history = trace(*args, **kwargs)
            if self._autotrace is not None and self._of[item.nodeid].autotrace != "off":
                self._autotrace.prove(history)
            return history

        return proved

    def _tell(self, item: pytest.Item, report: pytest.TestReport, found: TracedTest) -> None:
        text = section(found)
        if text:
            report.sections.append((SECTION, text))
        failure = failure_of(found)
        if not failure or not report.passed or hasattr(report, "wasxfail"):
            return
        if self._of[item.nodeid].mode == "fail":
            report.outcome, report.longrepr = "failed", failure
        else:
            _warn(item, failure)


def _warn(item: pytest.Item, text: str) -> None:
    """Put a warning into pytest's summary; not through Python's filters, which may make an error of it."""
    import warnings

    location = item.reportinfo()
    item.ihook.pytest_warning_recorded.call_historic(
        kwargs={
            "warning_message": warnings.WarningMessage(
                LensWarning(text), LensWarning, str(location[0]), (location[1] or 0) + 1
            ),
            "nodeid": item.nodeid,
            "when": "runtest",
            "location": None,
        }
    )


def _is_model(item: pytest.Item) -> bool:
    return type(item).__module__ == "pytest_torchlens.plugin.items"
