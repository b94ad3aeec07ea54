"""Autotrace in tests that stop, fork, start threads, or do something else that is hard on a recording."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import pytest_torchlens.plugin.autotrace
import pytest_torchlens.run.module_calls  # noqa: F401 - loaded once for all inner pytests

MODELS = """
import pytest
import torch
from torch import nn

X = torch.ones(2, 4)

class Acting(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.act = act

    def forward(self, x):
        x = x * 2
        self.act()
        return x + 1

def nothing_is_on():
    return torch._C._len_torch_function_stack() == torch._C._len_torch_dispatch_stack() == 0
"""
CALL = nn.Module.__call__


@pytest.fixture
def run(pytester: pytest.Pytester):
    """Return what runs tests with models at hand: in this process, and what else is given."""

    def run_tests(text: str, *arguments: str, **how: bool) -> pytest.RunResult:
        pytester.makepyfile(test_them=MODELS + text)
        result = pytester.runpytest_inprocess("--lens-validate", "-p", "no:cacheprovider", *arguments, **how)
        assert nn.Module.__call__ is CALL
        return result

    return run_tests


def test_what_ends_a_test_amid_forward_leaves_nothing_on(run):
    result = run(
        """
def test_skip():
    Acting(lambda: pytest.skip("now"))(X)

def test_fail():
    Acting(lambda: pytest.fail("now"))(X)

@pytest.mark.xfail(raises=pytest.fail.Exception)
def test_expected():
    Acting(lambda: pytest.fail("now"))(X)

def test_caught():
    with pytest.raises(pytest.fail.Exception, match="now"):
        Acting(lambda: pytest.fail("now"))(X)
    assert nothing_is_on()

def test_after():
    assert nothing_is_on()
    assert nn.ReLU()(X).sum() == 8
"""
    )
    result.assert_outcomes(skipped=1, failed=1, xfailed=1, passed=2)
    result.stdout.fnmatch_lines(["*: 1 proven, 4 left out", "left out: 4 calls: it raised *"])


def test_an_interrupt_amid_forward_is_the_tests_to_catch(run):
    result = run(
        """
import signal

@pytest.fixture
def interruptible():
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)

def test_it(interruptible):
    with pytest.raises(KeyboardInterrupt):
        Acting(lambda: signal.raise_signal(signal.SIGINT))(X)
    assert nothing_is_on()
    assert nn.ReLU()(X).sum() == 8
"""
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*: 1 proven, 1 left out", "left out: 1 call: it raised *"])


@pytest.mark.parametrize(("ends", "code"), [("raise KeyboardInterrupt", 2), ('pytest.exit("enough", 7)', 7)])
def test_what_ends_the_run_amid_forward_ends_it(run, ends: str, code: int):
    result = run(
        f"""
def end():
    {ends}

def test_before():
    assert nn.ReLU()(X).sum() == 8

def test_it():
    Acting(end)(X)

def test_after():
    raise AssertionError
""",
        no_reraise_ctrlc=True,
    )
    result.assert_outcomes(passed=1)
    assert result.ret == code
    assert torch._C._len_torch_function_stack() == torch._C._len_torch_dispatch_stack() == 0


def test_threads_that_call_one_model_at_once(run):
    result = run(
        """
from threading import Thread

def test_it():
    model, results = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), []
    threads = [Thread(target=lambda: results.append(model(X))) for _ in range(6)]
    for thread in threads:
        thread.start()
    expected = model(X)
    for thread in threads:
        thread.join()
    assert len(results) == 6
    assert all(torch.equal(result, expected) for result in results)
    assert nothing_is_on()
"""
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["1 outermost module call in 1 test: 1 proven"])


def test_a_pool_of_threads_in_forward(run):
    result = run(
        """
from concurrent.futures import ThreadPoolExecutor

class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x):
        with ThreadPoolExecutor(4) as pool:
            return torch.stack(list(pool.map(lambda branch: branch(x), self.branches)))

def test_it():
    model = Branches()
    expected = torch.stack([branch(X) for branch in model.branches])
    assert torch.equal(model(X), expected)
    assert nothing_is_on()
""",
        "--lens-autotrace=all",
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["5 outermost module calls in 1 test: 5 proven"])


def test_a_test_that_records_beside_and_inside_a_model(run):
    result = run(
        """
def test_beside(lens_trace):
    assert lens_trace(nn.Linear(4, 2), X).num_operations == 1

def test_inside(lens_trace):
    traced = []
    assert torch.equal(Acting(lambda: traced.append(lens_trace(nn.ReLU(), X)))(X), X * 2 + 1)
    assert traced[0].num_operations == 1
    assert nothing_is_on()
"""
    )
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*: 2 proven, 1 left out", "left out: 1 call: it records a model itself *"])


def test_copies_stand_ins_and_wrappers_of_modules(run):
    result = run(
        """
import copy
import pickle
from unittest import mock

def test_copies():
    model = nn.Sequential(nn.Linear(4, 2))
    expected = model(X)
    assert torch.equal(copy.deepcopy(model)(X), expected)
    assert torch.equal(pickle.loads(pickle.dumps(model))(X), expected)

def test_forward_that_is_a_mock():
    with mock.patch.object(nn.Linear, "forward", autospec=True, return_value=X) as forward:
        assert nn.Linear(4, 4)(X) is X
    assert forward.call_count == 1

def test_module_call_that_is_a_mock():
    with mock.patch.object(nn.Module, "__call__", autospec=True, return_value=3) as call:
        assert nn.Linear(4, 4)(X) == 3
    assert call.call_count == 1
    assert nn.Linear(4, 3)(X).shape == (2, 3)

def test_wrapper():
    assert nn.DataParallel(nn.Linear(4, 5))(X).shape == (2, 5)
"""
    )
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["6 outermost module calls in 4 tests: 3 proven, 2 like one before, 1 unproven"])


FORKS = """
import os

def test_fork():
    child = os.fork()
    if not child:
        os._exit(0 if nn.Linear(4, 2)(X).shape == (2, 2) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert nn.Linear(4, 3)(X).shape == (2, 3)
"""
HANGS = """
import time

@pytest.mark.timeout({seconds}, method="thread")
def test_slow():
    Acting(lambda: time.sleep({sleep}))(X)
"""


def test_a_child_process_of_the_tests(pytester: pytest.Pytester):
    pytester.makepyfile(test_them=MODELS + FORKS)
    result = pytester.runpytest_subprocess("--lens-validate", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["1 outermost module call in 1 test: 1 proven"])


def test_a_timer_in_another_thread(run):
    pytest.importorskip("pytest_timeout", reason="pytest-timeout is not installed")
    result = run(HANGS.format(seconds=600, sleep=0) + "    assert nothing_is_on()\n")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["1 outermost module call in 1 test: 1 proven"])


def test_a_timer_in_another_thread_that_goes_off_ends_the_process(pytester: pytest.Pytester):
    pytest.importorskip("pytest_timeout", reason="pytest-timeout is not installed")
    pytester.makepyfile(test_them=MODELS + HANGS.format(seconds=1, sleep=600))
    result = pytester.runpytest_subprocess("--lens-validate", "-p", "no:cacheprovider")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*Timeout*"])
