"""Models that compute in Python or NumPy, and hand the numbers back."""

from __future__ import annotations

import array
import copy
import ctypes
import io
import json
import math
import mmap
import pickle
import re
import statistics
import struct

import numpy as np
import torch
from torch import nn

from tests.validate.fooling import KEPT
from tests.validate.fooling import documented
from tests.validate.fooling import fails
from tests.validate.fooling import passes
from tests.validate.fooling import unproven
from tests.validate.fooling_past_torch import CONTENTS
from tests.validate.fooling_past_torch import GLOBAL
from tests.validate.fooling_past_torch import MISSED
from tests.validate.fooling_past_torch import X
from tests.validate.fooling_past_torch import after
from tests.validate.fooling_past_torch import unseen

HEAD = nn.Linear(3, 3)
SEED = "it draws from a generator that has another seed when the inputs are slightly other ones"
NUMBER = "with slightly other inputs: where it comes from is not in the graph"


@unproven(NUMBER)
def computes_with_a_number(x):
    return x * (x.sum().item() * 2)


@unproven(NUMBER)
def computes_with_a_list(x):
    return x * statistics.mean(x.tolist())


@unproven(NUMBER)
def computes_with_a_function_of_math(x):
    return x * math.sin(x[0])


@unproven(NUMBER)
def sums_in_python(x):
    return x * math.fsum(x)


@unproven("it takes a number that is another")
def multiplies_by_a_number_of_numpy(x):
    return x * np.sin(x.numpy())[0]


@unproven(SEED)
def seeds_by_a_value(x):
    torch.manual_seed(int(x.sum() * 1e4))
    return x + torch.rand(3)


@unproven(SEED)
def seeds_its_own_generator_by_a_value(x):
    generator = torch.Generator().manual_seed(int(x.sum() * 1e4))
    return x + torch.empty(3).uniform_(generator=generator)


@unproven(SEED)
def takes_the_state_of_a_generator_seeded_by_a_value(x):
    torch.set_rng_state(torch.Generator().manual_seed(int(x.sum() * 1e4)).get_state())
    return x + torch.rand(3)


@passes
def seeds_by_a_constant(x):
    torch.manual_seed(7)
    return x + torch.rand(3)


@documented("whole and rounded numbers, truth values")
def scales_by_a_power_of_two(x):
    return x / 2.0 ** math.floor(math.log2(x.abs().max()) - 3)


@documented("whole and rounded numbers, truth values")
def scales_by_a_rounded_number(x):
    return x * (round(x.abs().max().item()) + 0.3)


@documented("whole and rounded numbers, truth values")
def divides_by_a_count(x):
    return x / math.sqrt((x > 1).sum().item() + 0.5)


@unproven(NUMBER)
def fills_with_a_number(x):
    return x + torch.full((3,), x.max().item() * 1.5)


@unproven(NUMBER)
def writes_numbers(x):
    y = torch.zeros(3)
    for place in range(3):
        y[place] = x[place].item() * 3
    return y + x


@unproven(after("__repr__"))
def reads_its_own_text(x):
    return x + torch.tensor(json.loads(re.search(r"\[.*\]", repr(x)).group()))


@unproven(NUMBER)
def formats_and_parses(x):
    return x * float(f"{x.sum():.3f}")


@unproven(NUMBER)
def hashes_a_number(x):
    return x * float(hash(x.sum().item()) % 1000)


@unproven(NUMBER)
def finds_a_number_by_comparing(x):
    low, high, total = 0.0, 10.0, x.sum()
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if total > middle else (low, middle)
    return x * low


@documented("whole and rounded numbers, truth values")
def multiplies_by_a_whole_number(x):
    return x * int(x.sum() * 3)


@documented("whole and rounded numbers, truth values")
def counts_by_truth_values(x):
    return x * float(len([item for item in x if item > 1]))


@documented("whole and rounded numbers, truth values")
def counts_by_a_shape(x):
    return x * float(torch.nonzero(x > 1).shape[0])


@documented("whole and rounded numbers, truth values")
def sorts_in_python(x):
    return torch.stack(sorted(x, key=float))


@unproven(after("__array__"))
def adds_an_array(x):
    return x + torch.as_tensor(np.sin(np.asarray(x)))


@unproven(after("numpy"))
def multiplies_matrices_in_numpy(x):
    return x + torch.from_numpy(np.dot(x.numpy(), np.eye(3, dtype=np.float32)))


@unproven(after("numpy"))
def lets_numpy_write_the_result(x):
    y = torch.empty(3)
    np.sin(x.numpy(), out=y.numpy())
    return y + x


@unproven(after("numpy"))
def saves_as_numpy(x):
    file = io.BytesIO()
    np.save(file, x.numpy())
    file.seek(0)
    return x + torch.from_numpy(np.load(file))


@unproven(after("__reduce_ex__"))
def saves_as_torch(x):
    file = io.BytesIO()
    torch.save(x * 2, file)
    file.seek(0)
    return x + torch.load(file)


@unproven(after("__reduce_ex__"))
def pickles(x):
    return x + pickle.loads(pickle.dumps(x))  # noqa: S301 - its own bytes


@passes
def pickles_a_module(x):
    return pickle.loads(pickle.dumps(HEAD))(x)  # noqa: S301 - its own bytes


@passes
def copies_deeply(x):
    return x + copy.deepcopy(x)


@unproven(CONTENTS)
def passes_bytes(x):
    return x + torch.frombuffer(bytearray(x.numpy().tobytes()), dtype=torch.float32)


@unproven(CONTENTS)
def passes_an_array_of_python(x):
    return x + torch.frombuffer(array.array("f", x.tolist()), dtype=torch.float32)


@unproven(CONTENTS)
def passes_a_mapped_file(x):
    mapped = mmap.mmap(-1, 12)
    mapped[:] = x.numpy().tobytes()
    return x + torch.frombuffer(mapped, dtype=torch.float32)


@unproven(CONTENTS)
def reads_its_memory(x):
    return x + torch.frombuffer(bytearray(ctypes.string_at(x.data_ptr(), 12)), dtype=torch.float32)


@unproven("a constant made after __getitem__ handed an input's values to Python")
def reads_the_bytes_of_the_storage(x):
    return x + torch.tensor(struct.unpack("3f", bytes(x.untyped_storage())))


@passes
def clones_the_storage(x):
    return torch.FloatTensor(x.untyped_storage().clone()) + x


@fails(MISSED)
def copies_the_bytes_of_a_storage(x):
    storage = torch.UntypedStorage(x.nbytes)
    torch._C.StorageBase.copy_(storage, x.untyped_storage())
    return torch.FloatTensor(storage) + x


@unproven("no operation ran")
def returns_what_it_was_given(x):
    return KEPT[0] if KEPT else x


# -- what looks like it, and is none -------------------------------------------------------------------------------


@passes
def branches_by_a_small_difference(x):
    return x * 2.5 if x.sum() > 4.45 else x + 3.5


@passes
def computes_a_number_for_nothing(x):
    _ = x * (x.sum().item() * 2)
    return x + 1


@passes
def takes_what_is_no_number(x):
    return torch.where(x > 0, x, math.nan)


TWICE = X * 2


@passes
def computes_what_a_constant_holds(x):
    return x * 2 + TWICE


@passes
def overwrites_what_was_written_unseen(x):
    with unseen():
        GLOBAL.copy_(x)
    GLOBAL.fill_(1)
    return x + GLOBAL


@passes
def writes_to_its_input_and_returns_nothing(x):
    x.mul_(2)


@passes
def has_a_fraction_of_its_own(x):
    return x * 0.3 if bool(x.sum() > 0) else x


@unproven(after("__reduce_ex__"))
def pickles_signs(x):
    return x * pickle.loads(pickle.dumps(x.sign()))  # noqa: S301 - its own bytes


@unproven(after("__reduce_ex__"))
def saves_and_loads(x):
    file = io.BytesIO()
    torch.save(x.sign(), file)
    file.seek(0)
    return x * torch.load(file)


@unproven(after("__repr__"))
def reads_its_text(x):
    return x * torch.tensor(len(str(x.sign())))


@unproven("it takes the memory of a tensor, a storage, as an argument")
def makes_a_tensor_of_a_storage(x):
    return x * torch.tensor((x * 2).untyped_storage(), dtype=torch.uint8).sum()


@passes
def prints(x):
    str(x)
    return x * 2 + torch.zeros(3)
