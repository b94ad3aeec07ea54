"""Models that compute or write where no torch function is called, or none that the recorder sees."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import multiprocessing
import queue
import struct
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.shared_memory import SharedMemory

import numpy as np
import torch
from torch.overrides import _pop_mode
from torch.overrides import _push_mode
from torch.utils import _python_dispatch as dispatch

from tests.validate.fooling import Weighted
from tests.validate.fooling import documented
from tests.validate.fooling import fails
from tests.validate.fooling import nth_call
from tests.validate.fooling import passes
from tests.validate.fooling import unproven

DEFAULT = (0.75, 1.25, 2.5)
X = torch.tensor(DEFAULT)
"""The input of all models."""
X_ARRAY = X.numpy()
ONES = torch.ones(3)
GLOBAL = torch.ones(3)
ARRAY = np.ones(3, np.float32)
OVER_ARRAY = torch.from_numpy(ARRAY)
UNDER_ARRAY = torch.ones(3)
ITS_ARRAY = UNDER_ARRAY.numpy()
POOL = ThreadPoolExecutor(1)
POOL.submit(int).result()  # its thread runs before anything is recorded
THREAD_START = threading.Thread.start

NUMBER = "with slightly other inputs: where it comes from is not in the graph"
CONTENTS = "with other contents when the inputs are slightly other ones"
REPLAYED = "the replayed values of float32[3] differ"
UNANNOUNCED = "changed during the forward pass, but no recorded operation wrote to it"
MISSED = "but no recorded operation did it"
UNKNOWN = "was made during the pass by no recorded operation"


def clear(tensor, size=8):
    ctypes.memset(tensor.data_ptr(), 0, size)


def move(target, source):
    ctypes.memmove(target.data_ptr(), source.data_ptr(), 12)


def after(name):
    return f"it uses a constant made after {name} handed an input's values to Python"


# -- writes through memory -----------------------------------------------------------------------------------------


@fails(REPLAYED)
def clears_an_activation(x):
    y = x * 2
    clear(y)
    return y + 1


@fails("the output of the replayed graph differs")
def clears_its_output(x):
    y = x * 2
    clear(y)
    return y


@fails(f"input '0' {UNANNOUNCED}")
def clears_its_input(x):
    y = x * 2
    clear(x)
    return y


@fails(f"constant {UNANNOUNCED}")
def clears_a_global(x):
    y = x * GLOBAL
    clear(GLOBAL)
    return y


@fails(f"constant {UNANNOUNCED}")
def copies_to_a_global(x):
    move(GLOBAL, x)
    return x * GLOBAL


@fails(REPLAYED)
def copies_to_a_global_and_back(x):
    move(GLOBAL, x)
    y = x * GLOBAL
    move(GLOBAL, ONES)
    return y


@fails("the output of the replayed graph differs")
def copies_to_uninitialised_memory(x):
    y = torch.empty(3)
    move(y, x)
    return y


@fails(f"parameter 'weight' {UNANNOUNCED}")
class ClearsItsWeightUnread(Weighted):
    def forward(self, x):
        ctypes.memset(self.address, 0, 8)
        return x * self.weight


@fails(REPLAYED)
class ClearsItsWeightAndPutsItBack(Weighted):
    def forward(self, x):
        y = x * self.weight
        former = ctypes.string_at(self.address, 12)
        ctypes.memset(self.address, 0, 12)
        z = x * self.weight
        ctypes.memmove(self.address, former, 12)
        return y + z


@fails(REPLAYED)
class ClearsItsWeightForOneCall(Weighted):
    def forward(self, x):
        former = ctypes.string_at(self.address, 12)
        ctypes.memset(self.address, 0, 12)
        y = x * self.weight
        ctypes.memmove(self.address, former, 12)
        return y


@passes
class SwapsItsWeight(Weighted):
    def forward(self, x):
        former = self.weight.data
        self.weight.data = x * 2
        y = x + self.weight
        self.weight.data = former
        return y


@fails(f"buffer 'memory' {UNANNOUNCED}")
class RemembersInAnArray(Weighted):
    def forward(self, x):
        self.array[:] = x.numpy() * 2
        return x + self.memory


@unproven(CONTENTS)
def writes_to_an_array_of_old(x):
    ARRAY[:] = x.numpy() * 2
    return x + OVER_ARRAY


@unproven(CONTENTS)
def writes_to_a_tensor_s_array_of_old(x):
    ITS_ARRAY[:] = x.numpy() * 2
    return x + UNDER_ARRAY


@documented("arrays over the inputs from before")
def reads_an_array_over_its_input(x):
    return x * (float(X_ARRAY[0]) * 2)


@unproven(after("numpy"))
def writes_to_an_array(x):
    y = x * 2
    y.numpy()[:] = 5
    return y + 1


@unproven(after("numpy"))
def writes_to_a_memoryview(x):
    y = x * 2
    memoryview(y.numpy())[0] = 9.0
    return y + 1


@passes
def writes_through_dlpack(x):
    y = x * 2
    torch._C._from_dlpack(torch._C._to_dlpack(y)).mul_(3)
    return y + 1


@fails(MISSED)
def writes_to_the_bytes(x):
    y = x * 2
    torch._C.StorageBase.__setitem__(y.untyped_storage(), 3, 0)
    return y + 1


@fails(MISSED)
def fills_the_storage(x):
    y = x * 2
    torch._C.StorageBase.fill_(y.untyped_storage(), 0)
    return y + 1


@fails(MISSED)
def copies_the_storage(x):
    y = x * 2
    torch._C.StorageBase.copy_(y.untyped_storage(), x.untyped_storage())
    return y


@fails(MISSED)
def sets_other_memory(x):
    y = torch.zeros(1)
    torch._C.TensorBase.set_(y, x * 2)
    return y + x


@passes
def writes_past_autograd(x):
    y = x * 2
    y.data.mul_(3)
    return y + 1


@passes
def assigns_other_data(x):
    y = x * 2
    y.data = x * 5
    return y + 1


@fails(REPLAYED)
def writes_when_an_object_dies(x):
    y = x * 2
    weakref.finalize(Weighted(), clear, y)
    return y + 1


@fails(REPLAYED)
def writes_and_swallows(x):
    y = x * 2
    with contextlib.suppress(ValueError):
        clear(y)
        raise ValueError
    return y + 1


# -- past the recorder ---------------------------------------------------------------------------------------------


@fails(MISSED)
def disables_torch_function(x):
    with torch._C.DisableTorchFunction():
        y = torch.cos(x)
    return y + 1


@passes
def disables_subclasses(x):
    with torch._C.DisableTorchFunctionSubclass():
        y = torch.cos(x)
    return y + 1


@contextlib.contextmanager
def unseen():
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        yield


@fails(UNKNOWN)
def disables_everything(x):
    with unseen():
        y = torch.cos(x)
    return y + 1


@fails(REPLAYED)
def writes_unseen(x):
    y = x * 2
    with unseen():
        y.cos_()
    return y + 1


@unproven(CONTENTS)
def writes_unseen_to_a_global(x):
    with unseen():
        GLOBAL.copy_(x)
    return x + GLOBAL


@fails(f"buffer 'memory' {UNANNOUNCED}")
class WritesUnseenToABuffer(Weighted):
    def forward(self, x):
        with unseen():
            self.memory.copy_(x)
        return x + self.memory


@fails(f"parameter 'weight' {UNANNOUNCED}")
class WritesUnseenToAParameter(Weighted):
    def forward(self, x):
        with unseen(), torch.no_grad():
            self.weight.copy_(x)
        return x + self.weight


@fails(UNKNOWN)
def calls_a_kernel(x):
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    return torch.ops.aten.cos.default.redispatch(keys, x) + 1


@fails(MISSED)
def takes_the_mode_away(x):
    modes = [_pop_mode() for _ in range(torch._C._len_torch_function_stack())]
    y = torch.cos(x)
    for mode in reversed(modes):
        _push_mode(mode)
    return y + 1


@fails(UNKNOWN)
def takes_all_modes_away(x):
    modes = [_pop_mode() for _ in range(torch._C._len_torch_function_stack())]
    watches = [dispatch._pop_mode() for _ in range(torch._C._len_torch_dispatch_stack())]
    y = torch.cos(x)
    for mode in reversed(modes):
        _push_mode(mode)
    for watch in reversed(watches):
        dispatch._push_mode(watch)
    return y + 1


ADD, SLOT, COS = torch._C._VariableFunctions.add, torch.Tensor.__add__, torch.ops.aten.cos.default


@passes
def calls_what_was_bound_early(x):
    return SLOT(ADD(x, x), COS(x))


@passes
def calls_what_lies_deeper(x):
    return torch._C._get_operation_overload("aten::cos", "")[0](x) + COS._op(x)


class Quiet(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


@passes
def uses_a_quiet_subclass(x):
    return (x.as_subclass(Quiet) * 2).as_subclass(torch.Tensor) + 1


class Unsteady(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with unseen():
            result = func(*args, **kwargs or {})
            return result + nth_call(func.__name__) if func.__name__ == "mul" else result


@fails("")
def uses_an_unsteady_subclass(x):
    return (x.as_subclass(Unsteady) * 2).as_subclass(torch.Tensor) + 1


class Doubling(dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **kwargs or {}) * 2


@fails(REPLAYED)
def doubles_in_a_mode(x):
    with Doubling():
        return x + 1


@torch.library.custom_op("fooling::count", mutates_args=())
def count(x: torch.Tensor) -> torch.Tensor:
    return x * nth_call("operator")


@fails(REPLAYED)
def calls_an_operator_that_counts(x):
    return count(x) + 1


@torch.library.custom_op("fooling::spoil", mutates_args=())
def spoil(x: torch.Tensor) -> torch.Tensor:
    clear(x)
    return x * 2


@documented("operators that break their schema")
def calls_an_operator_that_writes(x):
    y = x * 3
    z = spoil(y)
    return y + z


class InNumpy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(np.sin(x.detach().numpy()))


@passes
def computes_in_numpy_in_a_function_of_its_own(x):
    return InNumpy.apply(x) + 1


@passes
def runs_autograd(x):
    leaf = x.detach().clone().requires_grad_()
    (leaf * leaf).sum().backward()
    return leaf.grad * 2


# -- threads and processes -----------------------------------------------------------------------------------------


@fails(UNKNOWN)
def computes_in_a_thread_of_old(x):
    return POOL.submit(torch.mul, x, 2).result() + 1


@fails(REPLAYED)
def writes_in_a_thread_of_old(x):
    y = x * 2
    POOL.submit(y.mul_, 3).result()
    return y + 1


@unproven(CONTENTS)
def writes_to_a_global_in_a_thread_of_old(x):
    POOL.submit(GLOBAL.copy_, x).result()
    return x + GLOBAL


@unproven(NUMBER)
def reads_a_number_in_a_thread_of_old(x):
    return x * POOL.submit(lambda: x.sum().item()).result()


@unproven("the output depends on no input")
def computes_in_numpy_in_a_thread_of_old(x):
    return POOL.submit(lambda: torch.from_numpy(x.numpy() * 2)).result() + 1


@fails(UNKNOWN)
def starts_a_thread_behind_our_back(x):
    results = queue.Queue()
    THREAD_START(threading.Thread(target=lambda: results.put(x * 2)))
    return results.get() + 1


@fails(REPLAYED)
def clears_memory_in_a_thread(x):
    y = x * 2
    thread = threading.Thread(target=clear, args=(y,))
    thread.start()
    thread.join()
    return y + 1


@passes
def computes_in_a_thread(x):
    y = x * 2
    thread = threading.Thread(target=y.mul_, args=(3,))
    thread.start()
    thread.join()
    return y + 1


@passes
def computes_in_many_threads(x):
    results = [x] * 8

    def work(place):
        for _ in range(9):
            results[place] = results[place] * (1 + place / 3)

    threads = [threading.Thread(target=work, args=(place,)) for place in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return torch.stack(results)


async def awaited(x):
    return await asyncio.get_running_loop().run_in_executor(POOL, torch.cos, x)


@fails(UNKNOWN)
def awaits_a_thread_of_old(x):
    return asyncio.run(awaited(x)) + 1


@unproven(after("tolist"))
def computes_in_another_process(x):
    command = [sys.executable, "-ISc", "import sys, json; print([2 * v for v in json.load(sys.stdin)])"]
    done = subprocess.run(command, input=json.dumps(x.tolist()), capture_output=True, text=True, check=True)
    return x + torch.tensor(json.loads(done.stdout))


@fails(MISSED)
def sends_a_tensor_through_a_pipe(x):
    one, other = multiprocessing.Pipe()
    one.send(x * 2)
    return x + other.recv()


@unproven(after("numpy"))
def shares_memory(x):
    memory = SharedMemory(create=True, size=12)
    try:
        memory.buf[:12] = x.numpy().tobytes()
        return x + torch.tensor(struct.unpack("3f", memory.buf[:12]))
    finally:
        memory.close()
        memory.unlink()
