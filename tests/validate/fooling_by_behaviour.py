"""Models that behave otherwise when they are watched, when they are called again, or by what changes between calls."""

from __future__ import annotations

import collections
import functools
import gc
import inspect
import os
import random
import sys
import tempfile
import threading
import time
import uuid
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.overrides import has_torch_function_unary

from tests.validate.fooling import KEPT
from tests.validate.fooling import documented
from tests.validate.fooling import fails
from tests.validate.fooling import nth_call
from tests.validate.fooling import passes
from tests.validate.fooling import unproven

MODULE_CALL = nn.Module.__call__
THREAD_START = threading.Thread.start
RECURSION_LIMIT = sys.getrecursionlimit()
MARK = Path(tempfile.gettempdir()) / f"fooling-{os.getpid()}"
PYTHON_NUMBERS = random.Random(3)
TORCH_NUMBERS = torch.Generator()
POOL = ThreadPoolExecutor(1)
GATE = threading.Event()
"""Lets the pool's thread go on; it is opened when the verdict is there."""
CACHE: dict[str, torch.Tensor] = {}

DIFFERS = "differs between the recorded and the plain run"
IF_SAVED = "if activations are saved"
UNSTEADY = "two plain runs from one state differ"


def is_traced() -> bool:
    return torch._C._len_torch_function_stack() > 0


# -- when watched --------------------------------------------------------------------------------------------------


@fails(DIFFERS)
def by_function_modes(x):
    return x * (2.0 if is_traced() else 3.0)


@fails(DIFFERS)
def by_a_guard_bound_early(x):
    return x * (2.0 if has_torch_function_unary(x) else 3.0)


@passes
def by_the_public_guard(x):
    return x * (2.0 if torch.overrides.has_torch_function((x,)) else 3.0)


@documented("a kernel's way")
def by_dispatch_modes(x):
    return x * (2.0 if torch._C._len_torch_dispatch_stack() else 3.0)


@fails(DIFFERS)
def by_the_module_call(x):
    return x * (2.0 if nn.Module.__call__ is not MODULE_CALL else 3.0)


@fails(DIFFERS)
def by_the_start_of_threads(x):
    return x * (2.0 if threading.Thread.start is not THREAD_START else 3.0)


@fails(DIFFERS)
def by_the_recursion_limit(x):
    return x * (2.0 if sys.getrecursionlimit() != RECURSION_LIMIT else 3.0)


@fails(DIFFERS)
def by_frames_of_the_recorder(x):
    return x * (2.0 if any("patches" in frame.filename for frame in inspect.stack(0)) else 3.0)


@fails(DIFFERS)
def by_the_depth_of_the_stack(x):
    return x * float(len(inspect.stack(0)))


@documented("the same in all runs")
def by_frames_of_the_package(x):
    return x * (2.0 if any("pytest_torchlens" in frame.filename for frame in inspect.stack(0)) else 3.0)


@documented("the same in all runs")
def by_loaded_modules(x):
    return x * (2.0 if "pytest_torchlens" in sys.modules else 3.0)


@documented("the same in all runs")
def by_the_environment(x):
    return x * (2.0 if "PYTEST_CURRENT_TEST" in os.environ else 3.0)


@documented("the same in all runs")
def by_objects_alive(x):
    return x * (2.0 if any(type(item).__name__ == "Recording" for item in gc.get_objects()) else 3.0)


@fails(DIFFERS)
def by_weak_references(x):
    y = x + 1
    return y * (2.0 if weakref.getweakrefcount(y) else 3.0)


@fails(IF_SAVED)
def by_references(x):
    y = x + 1
    return y * float(sys.getrefcount(y))


@fails(IF_SAVED)
def by_referrers(x):
    y = x + 1
    return y * float(len(gc.get_referrers(y)) + 1)


class ByItsOwnCall(nn.Module):
    def __call__(self, x):
        return torch.cos(x) * (2.0 if is_traced() else 3.0)


fails(DIFFERS)(ByItsOwnCall)


@fails("output b differs")
def in_the_second_output(x):
    return collections.OrderedDict(a=x * 2, b=x * (2.0 if is_traced() else 3.0))


class Holder:
    def __init__(self, content):
        self.content = content


@fails("output content differs")
def in_an_object(x):
    return Holder(x * (2.0 if is_traced() else 3.0))


@fails("output score differs")
def in_a_number_beside(x):
    return {"y": x * 2, "score": 2.0 if is_traced() else 3.0}


@fails("output 1 differs")
def in_a_text_beside(x):
    return x * 2, "recorded" if is_traced() else "plain"


@fails("output 1 differs")
def in_an_array_beside(x):
    return x * 2, np.full(3, 2.0 if is_traced() else 3.0)


@fails(DIFFERS)
def in_the_gradient_flag(x):
    return (x * 2).requires_grad_(is_traced())


@fails(DIFFERS)
def in_the_strides(x):
    y = torch.stack([x, x * 2])
    return y.t().contiguous().t() if is_traced() else y


class Quiet(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


@fails("the model returns a Quiet; plain, a Tensor")
def in_the_class(x):
    y = x * 2
    return y.as_subclass(Quiet) if is_traced() else y


@documented("beside the output")
def in_a_global(x):
    KEPT.append(2.0 if is_traced() else 3.0)
    return x * 2


@documented("beside the output")
def in_an_attribute_of_the_output(x):
    y = x * 2
    y.mask = is_traced()
    return y


@unproven("the output holds no tensor (it is of type ndarray)")
def in_an_array_alone(x):
    return (x * 2).numpy() * 3


@unproven("the output holds no tensor (it is of type function)")
def in_a_function(x):
    y = x * 2
    return lambda: y


# -- by count ------------------------------------------------------------------------------------------------------


@fails("first of three runs only")
def on_the_first_call(x):
    return x * (2.0 if nth_call() == 1 else 3.0)


@unproven(UNSTEADY)
def on_the_second_call(x):
    return x * (2.0 if nth_call() == 2 else 3.0)


@unproven("it takes the number 3.0 here, and 2.0")
def on_the_third_call(x):
    return x * (2.0 if nth_call() == 3 else 3.0)


@documented("later calls")
def from_the_fourth_call_on(x):
    return x * (2.0 if nth_call() >= 4 else 3.0)


@documented("later calls")
def from_the_ninth_call_on(x):
    return x * (2.0 if nth_call() >= 9 else 3.0)


@unproven(UNSTEADY)
def every_second_call(x):
    return x * (2.0 if nth_call() % 2 else 3.0)


@unproven("it takes the number 3.0 here, and 2.0")
def every_third_call(x):
    return x * (2.0 if nth_call() % 3 == 0 else 3.0)


@fails("first of three runs only")
def once_in_an_environment(x):
    first = os.environ.setdefault("FOOLING", str(nth_call())) == "1" and nth_call("later") == 1
    return x * (2.0 if first else 3.0)


@fails("first of three runs only")
def once_with_a_file(x):
    if MARK.exists():
        return x * 3.0
    MARK.touch()
    return x * 2.0


@fails(DIFFERS)
def one_call_behind(x):
    before = KEPT[-1] if KEPT else torch.zeros(3)
    KEPT.append(x * 2)
    return before + x


@unproven("a second run reads what the first one computed from the inputs")
def from_a_cache(x):
    if not KEPT:
        KEPT.append(x * 2)
    return KEPT[0] + 1


@unproven("a second run reads what the first one computed from the inputs")
def all_from_a_cache(x):
    if not KEPT:
        KEPT.append(x * 2)
    return KEPT[0]


@functools.lru_cache
def doubled(x):
    return x * 2


@unproven("a second run reads what the first one computed from the inputs")
def from_a_cached_function(x):
    return doubled(x) + 1


@functools.lru_cache
def positions(size):
    return torch.arange(size) * 0.5


@passes
def with_a_cached_table(x):
    return x + positions(3)


@functools.lru_cache
def twos(size):
    return torch.ones(size) * 2


@passes
def with_a_table_like_a_result(x):
    return x * 2 / x + twos(3)


@documented("the state at the start")
class CountsItsCalls(nn.Module):
    number = 0

    def forward(self, x):
        self.number += 1
        return x * float(self.number)


@documented("the state at the start")
class ReplacesItsForward(nn.Module):
    def forward(self, x):
        self.forward = lambda x: x * 3.0
        return x * 2.0


@documented("the state at the start")
class ReplacesItsClass(nn.Module):
    def forward(self, x):
        self.__class__ = CountsItsCalls
        return x * 2.0


@documented("the state at the start")
class HooksItself(nn.Module):
    def forward(self, x):
        self.register_forward_hook(lambda module, args, output: output * 3)
        return x * 2.0


@documented("the state at the start")
def marks_its_input(x):
    y = x * (3.0 if hasattr(x, "seen") else 2.0)
    x.seen = True
    return y


@fails(DIFFERS)
class LooksUpAnotherForward(nn.Module):
    def __getattribute__(self, name):
        if name == "forward" and nth_call() > 1:
            return lambda x: x * 3.0
        return super().__getattribute__(name)

    def forward(self, x):
        return x * 2.0


@passes
class MakesItsWeightsLate(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.LazyLinear(3)

    def forward(self, x):
        return self.head(x)


# -- by time, chance and identity ----------------------------------------------------------------------------------


def rounded_away(number, scale):
    """Return a number that differs from run to run, and not once it is rounded to a float32."""
    return 1.5 + number * scale


@unproven("it takes the number")
def by_the_clock(x):
    return x * rounded_away(time.time_ns() % 10**12, 1e-22)


@documented("the same in all runs")
def by_a_date(x):
    return x * (2.0 if time.time() < 1e11 else 3.0)


@documented("the same in all runs")
def by_the_thread(x):
    return x * (2.0 if threading.current_thread() is threading.main_thread() else 3.0)


@documented("the same in all runs")
def by_the_seed_of_hashes(x):
    return x * float(hash("a") % 1000)


@documented("the same in all runs")
def by_the_id_of_its_input(x):
    return x * float(id(x) % 1000)


@unproven("it takes the number")
def by_the_id_of_an_object(x):
    KEPT.append(object())
    return x * rounded_away(id(KEPT[-1]) % 10**6, 1e-14)


@unproven("it takes the number")
def by_an_address(x):
    KEPT.append(x * 1)
    return x * rounded_away(KEPT[-1].data_ptr() % 10**6, 1e-14)


@documented("numbers of Python's and NumPy's generators")
def by_the_generator_of_python(x):
    return x * random.random()


@documented("numbers of Python's and NumPy's generators")
def by_the_generator_of_numpy(x):
    return x * float(np.random.rand())  # noqa: NPY002 - as models do


@passes
def by_a_generator_of_torch(x):
    return x * torch.rand(3, generator=TORCH_NUMBERS)


@unproven(UNSTEADY)
def by_a_global_generator_of_python(x):
    return x * PYTHON_NUMBERS.random()


@unproven(UNSTEADY)
def by_the_system_s_random_numbers(x):
    return x * float(uuid.uuid4().int % 1_000_003)


@documented("after forward has returned")
def by_a_thread_that_writes_later(x):
    y = x * 2
    POOL.submit(lambda: (GATE.wait(5), y.zero_()))
    return y
