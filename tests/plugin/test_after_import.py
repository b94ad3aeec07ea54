"""With `--lens-validate`, torch and most of our own code are imported only after the tests have imported torch."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from pytest_torchlens.plugin.after_import import after_import

MODULE = "late_module_of_a_test"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a module that can be imported, and forget it afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, MODULE, sys)
    monkeypatch.delitem(sys.modules, MODULE)
    file = tmp_path / f"{MODULE}.py"
    file.write_text("complete = True\n", encoding="utf-8")
    return file


@pytest.mark.usefixtures("module")
def test_it_is_called_once_after_the_import():
    seen = []
    finders = [*sys.meta_path]
    with after_import(MODULE, lambda: seen.append(sys.modules[MODULE].complete)):
        importlib.import_module("json")
        assert seen == []
        found = importlib.import_module(MODULE)
        assert sys.meta_path == finders
        importlib.reload(found)
    assert seen == [True]
    assert "exec_module" not in vars(found.__spec__.loader)


@pytest.mark.usefixtures("module")
def test_without_an_import_nothing_stays():
    seen = []
    finders = [*sys.meta_path]
    with after_import(MODULE, lambda: seen.append(1)):
        pass
    importlib.import_module(MODULE)
    assert sys.meta_path == finders
    assert seen == []


def test_what_was_imported_before_is_not_waited_for():
    seen = []
    with after_import("sys", lambda: seen.append(1)):
        assert seen == [1]


def test_an_import_that_fails_is_waited_for_again(module: Path):
    seen = []
    module.write_text("raise RuntimeError('not yet')\n", encoding="utf-8")
    with after_import(MODULE, lambda: seen.append(1)):
        with pytest.raises(RuntimeError, match="not yet"):
            importlib.import_module(MODULE)
        assert seen == []
        module.write_text("second = 'attempt'\n", encoding="utf-8")
        importlib.invalidate_caches()
        importlib.import_module(MODULE)
    assert seen == [1]


def test_a_module_that_does_not_exist():
    with (
        after_import("no_such_module_anywhere", pytest.fail),
        pytest.raises(ModuleNotFoundError, match="no_such_module_anywhere"),
    ):
        importlib.import_module("no_such_module_anywhere")


EMPTY = """
import sys

def test_empty():
    pass

def test_nothing_was_imported():
    assert not {"torch", "numpy", "yaml", "pytest_torchlens.capture", "pytest_torchlens.validate"} & {*sys.modules}
"""


def test_tests_without_torch(pytester: pytest.Pytester):
    pytester.makepyfile(EMPTY)
    result = pytester.runpytest_subprocess("--lens-validate", "-p", "no:hypothesispytest")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["no test called a model in its own thread and process"])


LATE = {
    "in a test": ("import torch\n    torch.nn.Linear(2, 2)(torch.rand(1, 2))", ""),
    "in a fixture": ("torch.nn.Linear(2, 2)(torch.rand(1, 2))", "import torch"),
    "by us": (
        "log_forward_pass\n    import torch\n    torch.nn.Linear(2, 2)(torch.rand(1, 2))",
        "from pytest_torchlens import log_forward_pass",
    ),
}
TESTS = """
import sys
import pytest

@pytest.fixture
def lib():
    {fixture}
    yield locals()

def test_before():
    assert "torch" not in sys.modules

def test_first(lib):
    globals().update(lib)
    {body}

def test_second():
    import torch
    torch.nn.Linear(2, 3)(torch.rand(1, 2))
"""


@pytest.mark.parametrize("where", LATE)
def test_torch_imported_during_a_test(pytester: pytest.Pytester, where: str):
    body, fixture = LATE[where]
    pytester.makepyfile(TESTS.format(body=body, fixture=fixture or "pass"))
    result = pytester.runpytest_subprocess("--lens-validate")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["2 outermost module calls in 2 tests: 2 proven"])


FAILING = """
def test_hidden():
    import torch

    class Hidden(torch.nn.Module):
        def forward(self, x):
            with torch._C.DisableTorchFunction():
                return x.cos()

    Hidden()(torch.rand(2))
"""


def test_a_wrong_record_fails_the_test_that_imported_torch(pytester: pytest.Pytester):
    pytester.makepyfile(FAILING)
    result = pytester.runpytest_subprocess("--lens-validate")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*Hidden: validation failed (aten::cos: *"])


INSIDE = """
def test_imports_a_part_of_ours():
    import pytest_torchlens.capture.calls

def test_calls():
    import torch
    torch.nn.Linear(2, 3)(torch.rand(1, 2))
"""


def test_a_part_of_ours_that_imports_torch(pytester: pytest.Pytester):
    pytester.makepyfile(INSIDE)
    result = pytester.runpytest_subprocess("--lens-validate")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["1 outermost module call in 1 test: 1 proven"])


THREAD = """
import threading

def test_imports_in_a_thread():
    thread = threading.Thread(target=lambda: __import__("torch"))
    thread.start()
    thread.join()

def test_calls():
    import torch
    torch.nn.Linear(2, 3)(torch.rand(1, 2))
"""


def test_another_thread_that_imports_torch(pytester: pytest.Pytester):
    pytester.makepyfile(THREAD)
    result = pytester.runpytest_subprocess("--lens-validate")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["1 outermost module call in 1 test: 1 proven"])


TRACED = """
def test_traces(lens_trace):
    import torch
    lens_trace(torch.nn.Linear(2, 3), torch.rand(1, 2))
"""


def test_the_fixture_that_traces(pytester: pytest.Pytester):
    pytester.makepyfile(TRACED)
    result = pytester.runpytest_subprocess("--lens-validate")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["1 outermost module call in 1 test: 1 proven"])
