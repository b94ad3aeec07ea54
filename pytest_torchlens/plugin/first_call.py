"""Waits for the first model that a test calls (``--lens-validate``), and only then imports what validates it.

A suite that calls no model pays for this file alone: no other code of ours is imported, and no torch.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import warnings
from typing import TYPE_CHECKING
from typing import Any

import pytest

from pytest_torchlens.plugin.after_import import after_import
from pytest_torchlens.plugin.arguments import names_zoo
from pytest_torchlens.plugin.options import AUTOTRACE_MODES
from pytest_torchlens.plugin.options import AUTOTRACE_VALUES
from pytest_torchlens.plugin.options import is_distributed
from pytest_torchlens.plugin.options import is_set
from pytest_torchlens.plugin.options import marked

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Generator

    from pytest_torchlens.plugin.autotrace import AutotracePlugin

__tracebackhide__ = True  # pytest leaves our frames out of the traceback of what a model raises

FIRST_CALL = "lens-first-call"
"""Name of the plugin that waits."""
NOTHING_CALLED = "no test called a model in its own thread and process"


def watch_calls(config: pytest.Config) -> None:
    """Wait for calls in each process that runs tests; the controller of xdist collects the results.

    Raises
    ------
    pytest.UsageError
        If an option about calls in tests does not accept its value.
    """
    which, mode = (AUTOTRACE_VALUES[0], AUTOTRACE_MODES[0]) if not is_set(config) else _settings(config)
    if which == "off" or all(names_zoo(config, arg) for arg in config.args):
        return
    if is_distributed(config) and not hasattr(config, "workerinput"):
        from pytest_torchlens.plugin.autotrace import register_summary

        register_summary(config, _header(which, mode))
    else:
        config.pluginmanager.register(FirstCall(config, _header(which, mode)), FIRST_CALL)


def _settings(config: pytest.Config) -> tuple[str, str]:
    from pytest_torchlens.plugin.autotrace import AutotraceSettings

    settings = AutotraceSettings.of(config)
    return settings.autotrace, settings.mode


def _header(which: str, mode: str) -> str:
    """Return the line that says which calls are validated, and what a failed verdict does."""
    calls = {
        "once": "each model that tests call is validated once",
        "all": "all model calls of tests are validated",
    }
    return f"lens: {calls[which]}; a failed verdict {'fails the test' if mode == 'fail' else 'warns'}"


def autotrace_of(config: pytest.Config) -> AutotracePlugin | None:
    """Return what validates calls in this process's tests, and wait no longer for the first; None if nothing does."""
    waiting: FirstCall | None = config.pluginmanager.get_plugin(FIRST_CALL)
    return config.pluginmanager.get_plugin("lens-autotrace") if waiting is None else waiting.stop_waiting()


class FirstCall:
    """Takes the first call of a module in a test, and has it and all later ones validated by `AutotracePlugin`."""

    _running: list[FirstCall] = []  # noqa: RUF012 - of the whole process
    """Those of the present test runs, one inside the other: a test may run pytest."""

    def __init__(self, config: pytest.Config, header: str) -> None:
        self._config = config
        self._header = header
        self._process, self._thread = os.getpid(), threading.get_ident()
        self._item: pytest.Item | None = None
        """The test that runs; None between its setup, call and teardown."""
        self._is_waiting = True
        self._session = contextlib.ExitStack()
        """Undone after all tests."""
        self._has_hypothesis = False
        self._original: Any = None
        self._forward: Any = None
        """``nn.Module.__call__`` as it was, and what replaces it; None before torch is imported."""
        self._call: Callable[..., Any] | None = None
        """What makes the calls that `_forward` hears of, from the first on."""

    @functools.cached_property
    def _autotrace(self) -> AutotracePlugin:
        from pytest_torchlens.plugin.autotrace import AutotracePlugin
        from pytest_torchlens.plugin.autotrace import AutotraceSettings

        return AutotracePlugin(self._config, AutotraceSettings.of(self._config))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Check the markers of all tests, before any of them runs."""
        for item in marked(items, ("lens",)):
            self._autotrace.check(item)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Watch module calls while tests run, once torch is imported: by a conftest file, a test, or never."""
        if not session.items or self._config.option.collectonly:
            return (yield)
        self._has_hypothesis = "hypothesis" in sys.modules
        self._running.append(self)
        self._session.callback(self._running.remove, self)
        with self._session, after_import("torch", self._replace_call):
            return (yield)

    def _replace_call(self) -> None:
        """Replace ``nn.Module.__call__``; what replaces it stays until all tests have run, as others may wrap it."""
        if not self._is_waiting or os.getpid() != self._process:  # in a process that a test forked
            return
        module_class: Any = sys.modules["torch"].nn.Module
        original = module_class.__call__

        @functools.wraps(original)
        def forward(module: Any, /, *args: Any, **kwargs: Any) -> Any:
            if self._is_waiting and self._is_outermost_call_of_a_test():
                self.stop_waiting()
            return (self._call or original)(module, *args, **kwargs)

        def restore() -> None:
            self._call = None
            if vars(module_class).get("__call__") is forward:
                module_class.__call__ = original

        self._original, self._forward = original, forward
        module_class.__call__ = forward
        self._session.callback(restore)

    def _is_outermost_call_of_a_test(self) -> bool:
        """Whether a call is one to hear of: compiled, traced and recorded code, threads and forks are left alone."""
        torch = sys.modules["torch"]
        if self._item is None or self._running[-1] is not self:
            return False
        if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
            return False
        if threading.get_ident() != self._thread or os.getpid() != self._process:
            return False
        patches: Any = sys.modules.get("pytest_torchlens.capture.patches")
        return patches is None or patches.tracer_here() is None

    def stop_waiting(self) -> AutotracePlugin:
        """Import what validates calls, and let it listen in the present test."""
        self._is_waiting = False
        with warnings.catch_warnings(), _modes_disabled():
            warnings.simplefilter("ignore")
            autotrace = self._autotrace
            self._call = self._session.enter_context(autotrace.watching(self._forward, self._original))
        manager = self._config.pluginmanager
        manager.unregister(self)
        manager.register(autotrace, "lens-autotrace")
        if not hasattr(self._config, "workerinput"):
            from pytest_torchlens.plugin.autotrace import register_summary

            register_summary(self._config)
        if self._item is not None:
            autotrace.begin_phase(self._item)
        return autotrace

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        """Note that a test's fixtures are set up."""
        if self._has_hypothesis and self._is_recorded(item):
            remove_deadline(item)
        return (yield from self._phase(item))

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        """Note that a test runs."""
        return (yield from self._phase(item))

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, None, None]:
        """Note that a test's fixtures are torn down."""
        return (yield from self._phase(item))

    def _phase(self, item: pytest.Item) -> Generator[None, None, None]:
        """Note the test of a phase while it runs."""
        self._item = item
        try:
            return (yield)
        finally:
            self._item = None
            if not self._is_waiting:
                self._autotrace.end_phase()

    def _is_recorded(self, item: pytest.Item) -> bool:
        """Whether calls in a test are validated; without markers in all tests."""
        return "_autotrace" not in vars(self) or self._autotrace.is_recorded(item)

    def pytest_report_header(self) -> str:
        """Say which calls are validated, and what a failed verdict does."""
        return self._header

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say that no model was called."""
        if not self._config.option.collectonly and self._config.get_verbosity() >= 0:
            terminalreporter.section("lens: models called in tests")
            terminalreporter.write_line(NOTHING_CALLED)


@contextlib.contextmanager
def _modes_disabled() -> Generator[None, None, None]:
    """Import our code without the modes of a test, which would hear of the tensors that it makes."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        yield
        return
    from torch.utils._python_dispatch import _disable_current_modes

    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


_HYPOTHESIS_SETTINGS = "_hypothesis_internal_use_settings"


def remove_deadline(item: pytest.Item) -> None:
    """Remove the deadline of a hypothesis test, which recording would exceed."""
    test: Any = getattr(item, "obj", None)
    test = getattr(test, "__func__", test)
    test_settings = getattr(test, _HYPOTHESIS_SETTINGS, None)
    if test_settings is not None and test_settings.deadline is not None:
        from hypothesis import settings

        setattr(test, _HYPOTHESIS_SETTINGS, settings(test_settings, deadline=None))
