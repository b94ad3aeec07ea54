"""Random programs: a small language over a list of live tensors, a module that runs it, and a strategy that draws it.

A statement takes two live tensors and a number, and returns the tensors to add to the list.  If the shapes do not fit,
it returns none, so nearly every drawn program runs.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import typing
import warnings

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import nn

STATEMENTS = {}


class Pair(typing.NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


@dataclasses.dataclass(frozen=True)
class Step:
    """A statement, which live tensors it takes, a number, and the steps inside it."""

    name: str
    first: int = 0
    second: int = 0
    number: int = 0
    body: tuple[Step, ...] = ()


@dataclasses.dataclass(frozen=True)
class RandomProgram:
    """Steps, how many of the last tensors are returned, and the modes of the run."""

    steps: tuple[Step, ...]
    returned: int = 3
    grad: bool = False
    input_requires_grad: bool = False
    training: bool = False

    def build(self):
        torch.manual_seed(5)
        # no view: of a leaf that is one, autograd knows the base, which a replay from a copy has not
        x = torch.linspace(-1.0, 1.5, 6).view(2, 3).clone().requires_grad_(self.input_requires_grad)
        y = torch.tensor([0.5, -0.25, 2.0])
        return Machine(self).train(self.training), (x, y)

    def mode(self):
        return torch.enable_grad() if self.grad else torch.no_grad()


class Swap(nn.Module):
    def forward(self, box):
        return Pair(box["second"], box["first"])


class Machine(nn.Module):
    """Runs a program; returns the last tensors and which way it went: its branches, and shapes, which decide too."""

    def __init__(self, program):
        super().__init__()
        self.program = program
        self.linear = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.dropout = nn.Dropout(0.5)
        self.swap = Swap()
        self.weight = nn.Parameter(torch.linspace(-0.9, 0.8, 9).view(3, 3))
        self.register_buffer("mean", torch.tensor([0.1, 0.2, 0.3]))

    def forward(self, x, y):
        live, ways = [x, y], []
        self.run(self.program.steps, live, ways)
        return {"tensors": live[-self.program.returned :], "ways": ways}

    def run(self, steps, live, ways):
        for step in steps:
            t, s = live[step.first % len(live)], live[step.second % len(live)]
            if step.name == "loop":
                for _ in range(1 + step.number % 3):
                    self.run(step.body, live, ways)
            elif step.name == "branch":
                ways.append(bool(t.sum() > 0.3))
                self.run(step.body[0 if ways[-1] else 1 :: 2], live, ways)
            elif step.name == "no_grad":
                with torch.no_grad():
                    self.run(step.body, live, ways)
            else:
                made = STATEMENTS[step.name](self, t, s, step.number)
                live.extend(made)
                ways.append([tuple(tensor.shape) for tensor in made])


BLOCKS = ("loop", "branch", "no_grad")


def statement(code):
    STATEMENTS[code.__name__] = code
    return code


def alike(t, s):
    """Return whether two shapes broadcast with each other."""
    return all(m == n or 1 in (m, n) for m, n in zip(reversed(t.shape), reversed(s.shape), strict=False))


def goes_into(s, t):
    """Return whether `s` can be written over `t`."""
    pairs = zip(reversed(s.shape), reversed(t.shape), strict=False)
    return s.dim() <= t.dim() and all(m in (1, n) for m, n in pairs)


# -- new tensors -------------------------------------------------------------------------------------------------


@statement
def arithmetic(m, t, s, n):
    functions = (torch.add, torch.sub, torch.mul, lambda a, b: b * 0.5 - a, torch.maximum, torch.Tensor.__rsub__)
    return [functions[n % 6](t, s)] if alike(t, s) else []


@statement
def pointwise(m, t, s, n):
    return [(torch.relu, torch.sin, torch.tanh, lambda a: 2 - a, F.gelu, lambda a: a.clamp(-0.5, 0.5))[n % 6](t)]


@statement
def reduction(m, t, s, n):
    if t.dim() == 0 or 0 in t.shape:
        return []
    dim = n % t.dim()
    functions = (t.sum, t.mean, t.cumsum, t.amax, lambda d: t.softmax(dim=d), lambda d: t.max(d).values)
    return [functions[n % 6](dim)]


@statement
def with_parameter(m, t, s, n):
    if t.dim() == 0 or t.shape[-1] != 3:
        return []
    functions = (lambda a: a @ m.weight, m.linear, lambda a: F.linear(a, m.weight, m.mean), lambda a: a * m.weight[1])
    return [functions[n % 4](t)]


@statement
def submodule(m, t, s, n):
    return [m.dropout(t)] if n % 2 else [*m.swap({"first": t, "second": s})]


@statement
def copies(m, t, s, n):
    names = ("clone", "detach", "contiguous", "data", "neg", "double")
    got = getattr(t, names[n % 6])
    return [got.float() if names[n % 6] == "double" else got] if n % 6 == 3 else [got().float()]


@statement
def joined(m, t, s, n):
    same = t.shape == s.shape
    if n % 2 and same:
        return [torch.stack([t, s], dim=n % (t.dim() + 1))]
    return [torch.cat([t, s, t][: 2 + n % 2])] if same and t.dim() else []


@statement
def chosen(m, t, s, n):
    if not alike(t, s):
        return []
    return [torch.where(t > s, t, s * 2), (t > 0).float(), torch.lerp(t, s, 0.25)][n % 3 : n % 3 + 1]


@statement
def made(m, t, s, n):
    return [(torch.zeros_like, torch.ones_like, lambda a: a.new_zeros(a.shape), torch.rand_like)[n % 4](t)]


@statement
def container(m, t, s, n):
    if n % 4 == 0:
        queue = collections.deque([t, s], maxlen=2)
        queue.append(t + 1)
        return list(queue)
    if n % 4 == 1:
        return [*Pair(first=s, second=t)]
    if n % 4 == 2:
        return list({"a": t, "b": [s]}["b"])
    return [{0: (t, [s])}[0][1][0]]


# -- views -------------------------------------------------------------------------------------------------------


@statement
def view(m, t, s, n):
    if t.dim() == 0:
        return [t.view(1)]
    dim = n % t.dim()
    functions = (
        lambda: t.transpose(0, -1),
        lambda: t.reshape(-1),
        lambda: t.unsqueeze(dim),
        lambda: t.select(dim, t.shape[dim] - 1),
        lambda: t.narrow(dim, t.shape[dim] // 2, t.shape[dim] - t.shape[dim] // 2),
        lambda: t[-1],
        lambda: t[..., ::2],
        lambda: t.expand(2, *t.shape),
        lambda: t.view(t.shape),
        t.squeeze,
    )
    return [] if 0 in t.shape else [functions[n % 10]()]


@statement
def square_view(m, t, s, n):
    if t.dim() < 2 or 0 in t.shape:
        return []
    functions = (lambda: t.diagonal(0, 0, 1), lambda: t.unfold(1, 1, 1), t.flatten, lambda: t.movedim(0, 1))
    return [functions[n % 4]()]


@statement
def parts(m, t, s, n):
    if t.dim() == 0 or 0 in t.shape:
        return []
    return [*(t.chunk(2, n % t.dim()), t.split(1), t.unbind(0), tuple(iter(t)), t.tensor_split(2))[n % 5]]


@statement
def masked(m, t, s, n):
    if t.shape != s.shape or t.dim() == 0:
        return []
    return [t[s > 0], t.masked_fill(s > 0, 0.75), t.where(s > 0, s)][n % 3 : n % 3 + 1]


@statement
def gathered(m, t, s, n):
    rows = torch.stack([t, s if s.shape == t.shape and s.dtype == t.dtype else t])
    places = torch.tensor([1, 0, 1])
    return [rows[places], rows.index_select(0, places), t.flip(tuple(range(t.dim())))][n % 3 : n % 3 + 1]


@statement
def state_itself(m, t, s, n):
    return [(m.mean, m.mean[1:], m.mean.data, m.weight, m.weight.t()[0], m.norm.running_mean)[n % 6]]


# -- writes ------------------------------------------------------------------------------------------------------


@statement
def written(m, t, s, n):
    if not goes_into(s, t):
        return []
    functions = (t.add_, t.mul_, t.copy_, t.sub_, lambda a: t.lerp_(a.expand(t.shape), 0.5), t.data.add_)
    return [functions[n % 6](s)]


@statement
def overwritten(m, t, s, n):
    functions = (
        t.zero_,
        lambda: t.clamp_(-0.25, 0.75),
        lambda: F.relu(t, inplace=True),
        lambda: t.fill_(0.5),
        lambda: F.dropout(t, 0.5, True, inplace=True),
        lambda: t.masked_fill_(t > 0.5, 0.1),
        t.sin_,
        lambda: t.uniform_(0, 1),
    )
    return [functions[n % 8]()]


@statement
def item_set(m, t, s, n):
    if t.dim() == 0 or 0 in t.shape:
        return []
    if n % 4 == 0 and goes_into(s, t[-1]):
        t[-1] = s
    elif n % 4 == 1:
        t[t > 0.25] = -0.5
    elif n % 4 == 2 and goes_into(s, t):
        t[...] = s
    elif n % 4 == 3:
        part = t[..., 0]
        part += 0.125
        return [part]
    return []


@statement
def index_put(m, t, s, n):
    if t.dim() == 0 or t.shape[0] != 2 or not goes_into(s, t[0]):
        return []
    places = torch.tensor([1, 0])
    return [t.index_put_((places,), s.expand(t.shape), accumulate=True)]


@statement
def into_given(m, t, s, n):
    if not alike(t, s):
        return []
    given = torch.zeros_like(t + s)
    whole = given if n % 2 else given.view(-1).view(given.shape)
    return [(torch.add, torch.mul)[n % 2](t, s, out=whole), given]


@statement
def lists_at_once(m, t, s, n):
    if n % 2:
        return [*torch._foreach_add([t, s], 0.5)]
    torch._foreach_mul_([t, s], 0.5)
    return []


@statement
def swapped_data(m, t, s, n):
    if t.shape != s.shape or t.requires_grad:
        return []
    fresh = t * 1
    fresh.data = s.detach() if n % 2 else s.detach().clone()
    return [fresh]


@statement
def running(m, t, s, n):
    if t.dim() != 2 or t.shape[1] != 3 or t.shape[0] < 2:
        return []
    if n % 3 == 0:
        return [m.norm(t)]
    with torch.no_grad():
        m.mean.mul_(0.5).add_(t.detach().mean(0), alpha=0.5) if n % 3 == 1 else m.mean[1:].copy_(t[0, 1:])
    return [t - m.mean]


# -- drawing and running -------------------------------------------------------------------------------------------

NUMBERS = st.integers(0, 59)


def programs_of(names):
    """Return a strategy for programs of these statements."""
    simple = st.builds(Step, st.sampled_from(names), NUMBERS, NUMBERS, NUMBERS)
    steps = st.one_of(simple, simple, simple, _block(st.one_of(simple, simple, _block(simple))))
    return st.builds(
        RandomProgram,
        steps=st.lists(steps, min_size=2, max_size=12).map(tuple),
        returned=st.integers(1, 12),
        grad=st.booleans(),
        input_requires_grad=st.booleans(),
        training=st.booleans(),
    )


def _block(inner):
    body = st.lists(inner, min_size=1, max_size=4).map(tuple)
    return st.builds(Step, st.sampled_from(BLOCKS), NUMBERS, NUMBERS, NUMBERS, body)


PROGRAMS = programs_of(sorted(STATEMENTS))


def runs(program):
    """Return whether PyTorch accepts the program, and whether its use of memory is well defined."""
    model, inputs = program.build()
    live = [*inputs]
    with warnings.catch_warnings(), program.mode():
        warnings.simplefilter("error")  # writes through expanded tensors are only warned about
        try:
            model.run(program.steps, live, [])
        except (RuntimeError, UserWarning):
            return False
    return True


def change(tensor):
    """Add a little to each element, another amount to each."""
    with torch.no_grad():
        tensor.add_(torch.linspace(0.011, 0.017, tensor.numel()).view(tensor.shape))


def sources_of(model, inputs):
    """Return what a result may depend on, by name: inputs, buffers, parameters."""
    named = itertools.chain(model.named_buffers(), model.named_parameters())
    return dict(zip(("input 0", "input 1"), inputs, strict=True)) | {n: t for n, t in named if t.is_floating_point()}
