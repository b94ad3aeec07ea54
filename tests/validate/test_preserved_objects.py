"""Validation restores objects, functions, classes, buffers, files and caches, or reports what it could not restore."""

from __future__ import annotations

import array
import collections
import contextvars
import functools
import io
import itertools
import queue
import threading
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from pytest_torchlens.records import Status
from pytest_torchlens.validate import validate
from tests.models import Function

X = torch.ones(3)


class Slotted:
    __slots__ = ("__hidden", "late", "steps")

    def __init__(self):
        self.steps = self.__hidden = 0

    def __call__(self):
        self.steps += 1
        self.__hidden += 1
        self.late = self.steps
        return self.steps + self.__hidden

    def facts(self):
        return self.steps, self.__hidden, hasattr(self, "late")


class Calls:
    total = 0
    by_name = {}  # noqa: RUF012 - as found in the wild

    def __call__(self):
        Calls.total += 1
        Calls.added = Calls.total
        self.by_name[Calls.total] = 1
        return Calls.total + len(self.by_name)

    def facts(self):
        return Calls.total, dict(Calls.by_name), hasattr(Calls, "added")


class Counts:
    """An iterator written in Python: its position is an attribute."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.at += 1
        return self.at


class Labelled(dict):
    """Forbids what a dict allows, and has attributes besides."""

    def update(self, *_):
        raise TypeError

    clear = copy = update


def enclosed():
    steps, seen = 0, []

    def step():
        nonlocal steps
        steps += 1
        seen.append(steps)
        return steps + len(seen)

    return SimpleNamespace(step=step, facts=lambda: (steps, list(seen)))


def with_default(seen=[]):  # noqa: B006 - as found in the wild
    seen.append(1)
    with_default.calls = len(seen)
    return len(seen)


def of_thread():
    local = threading.local()
    local.steps = 0
    return local


def filled(items, kind=queue.Queue):
    waiting = kind()
    for item in items:
        waiting.put(item)
    return waiting


def up(held):
    held.steps += 1
    return held.steps


def put(held, key, value):
    held[key] = value
    return value


def append(held):
    held.append(len(held) + 1)
    return held[-1] + held[0]


def with_attributes(held):
    held.n = 1
    return held


def scaled_by(step=1, *, more=1):
    return step + more


def scaled_once():
    return 1


def scaled_twice():
    return 2


def with_next_defaults(function):
    total = function()
    function.__defaults__ = (function.__defaults__[0] + 1,)
    function.__kwdefaults__ = {"more": function.__kwdefaults__["more"] + 1}
    return total


def with_other_code(function):
    total = function()
    function.__code__ = scaled_twice.__code__
    return total


def with_another_factory(held):
    total = held["missing"]
    held.default_factory = lambda: total + 1
    del held["missing"]
    return total


def with_other_arguments(held):
    total = held()
    held.__setstate__((scaled_by, (), {"more": total + 1}, None))
    return total


class Counting(type):
    total = 0


class Counted(metaclass=Counting):
    """a"""


class First:
    def step(self):
        return 1


class Second:
    def step(self):
        return 2


class Derived(First):
    pass


def of_another_base(held):
    total = held.step()
    Derived.__bases__ = (Second,)
    return total


def with_longer_text(held):
    type(held).__doc__ += "a"
    return len(type(held).__doc__)


def up_in_metaclass(held):
    type(type(held)).total += 1
    return type(type(held)).total


KEYS = [Counts(), Counts()]
HELD = {
    "deque": (lambda: collections.deque([1, 2], maxlen=2), append, list),
    "defaultdict": (lambda: collections.defaultdict(int), lambda h: put(h, "a", h["a"] + 1), dict),
    "order": (
        lambda: collections.OrderedDict(a=1, b=2),
        lambda h: h.move_to_end("a") or next(iter(h.values())),
        lambda h: list(h.items()),
    ),
    "dict that forbids": (lambda: Labelled(a=1), lambda h: put(h, "a", h["a"] + 1), lambda h: list(h.items())),
    "its attributes": (Labelled, lambda h: put(vars(h), "n", vars(h).get("n", 0) + 1), vars),
    "attributes of an ordered one": (
        lambda: collections.OrderedDict(a=1),
        lambda h: put(vars(h), "n", vars(h).get("n", 0) + 1),
        lambda h: vars(h).copy(),
    ),
    "empty": (dict, lambda h: put(h, len(h), len(h) + 1), list),
    "empty list": (list, lambda h: h.append(2) or len(h), list),
    "empty set": (set, lambda h: h.add(len(h)) or len(h), list),
    "empty in order": (collections.OrderedDict, lambda h: put(h, len(h), len(h) + 1), list),
    "attributes of an empty one": (
        collections.OrderedDict,
        lambda h: put(vars(h), "n", vars(h).get("n", 0) + 1),
        lambda h: getattr(h, "n", 0),
    ),
    "attributes of one that had some": (
        lambda: with_attributes(collections.OrderedDict()),
        lambda h: put(vars(h), "n", vars(h).get("n", 0) + 1),
        lambda h: vars(h).copy(),
    ),
    "emptied": (lambda: [[1], []], lambda h: h[0].clear() or h[1].append(1) or len(h), lambda h: h.__repr__()),
    "weak keys": (
        lambda: weakref.WeakKeyDictionary({KEYS[0]: 1}),
        lambda h: put(h, KEYS[1], len(h)) + put(h, KEYS[0], h[KEYS[0]] + 1),
        lambda h: [h.get(key) for key in KEYS],
    ),
    "weak set": (lambda: weakref.WeakSet(KEYS[:1]), lambda h: h.add(KEYS[1]) or len(h), len),
    "slots": (Slotted, lambda h: h(), Slotted.facts),
    "class": (Calls, lambda h: h(), Calls.facts),
    "iterator in Python": (Counts, next, lambda h: h.at),
    "enclosed": (enclosed, lambda h: h.step(), lambda h: h.facts()),
    "default": (lambda: with_default, lambda h: h(), lambda h: (len(h.__defaults__[0]), vars(h).get("calls"))),
    "default arguments": (lambda: scaled_by, with_next_defaults, lambda h: (h.__defaults__, h.__kwdefaults__)),
    "code": (lambda: scaled_once, with_other_code, lambda h: h()),
    "default factory": (
        lambda: collections.defaultdict(scaled_once),
        with_another_factory,
        lambda h: (h.default_factory, dict(h)),
    ),
    "arguments of a partial": (lambda: functools.partial(scaled_by, more=1), with_other_arguments, lambda h: h()),
    "metaclass": (Counted, up_in_metaclass, lambda _: Counting.total),
    "bases": (Derived, of_another_base, lambda h: h.step()),
    "text of a class": (Counted, with_longer_text, lambda _: Counted.__doc__),
    "partial": (lambda: functools.partial(append, [1]), lambda h: h(), lambda h: list(h.args[0])),
    "bound": (lambda: [1, 2].append, lambda h: h(3) or len(h.__self__), lambda h: list(h.__self__)),
    "of the thread": (of_thread, up, lambda h: h.steps),
    "queue": (lambda: filled(range(1, 9)), lambda h: h.get(timeout=1), lambda h: list(h.queue)),
    "bytearray": (lambda: bytearray(b"12"), append, bytes),
    "array": (lambda: array.array("i", [1]), append, list),
    "memoryview": (lambda: memoryview(bytearray(2)), lambda h: put(h, 0, h[0] + 1), bytes),
    "memory of a tensor": (
        lambda: bytearray(np.ones(3, "float32").tobytes()),
        lambda h: torch.frombuffer(h, dtype=torch.float32).mul_(2),
        bytes,
    ),
    "array of objects": (
        lambda: np.array([None, [1]], dtype=object),
        lambda h: append(h[1]) + put(h, 0, len(h[1])),
        lambda h: h.tolist().__repr__(),
    ),
    "masked array": (
        lambda: np.ma.array([1.0, 2.0], mask=[0, 1]),
        lambda h: put(h, 1, 5.0) + float(h.sum()),
        lambda h: (h.tolist(), h.data.tolist()),
    ),
    "bytes read": (lambda: io.BytesIO(b"abc"), lambda h: h.read(1)[0], lambda h: (h.tell(), h.getvalue())),
    "text written": (io.StringIO, lambda h: h.write("ab") and h.tell(), lambda h: (h.tell(), h.getvalue())),
}


class Holds(nn.Module):
    """Holds an object, and uses it in its forward."""

    def __init__(self, held, use):
        super().__init__()
        self.held = held
        self.use = use

    def forward(self, x):
        return x * self.use(self.held)


@pytest.mark.parametrize("where", ["attribute", "input"])
@pytest.mark.parametrize(("build", "use", "facts"), HELD.values(), ids=HELD)
def test_an_object_that_forward_changes_is_restored(build, use, facts, where):
    held = build()
    before = facts(held)
    model, args = (Holds(held, use), (X,)) if where == "attribute" else (Function(lambda x, h: x * use(h)), (X, held))
    found = validate(model, args)
    assert found, found.verdict
    assert found.verdict.part("observer").status is Status.PASSED
    assert found.verdict.part("observer").notes == ()
    assert facts(held) == before


def test_a_file_is_read_again_from_where_it_stood(tmp_path):
    (tmp_path / "numbers").write_text("1\n2\n3\n4\n5\n")
    with (tmp_path / "numbers").open() as numbers:
        numbers.readline()
        before = numbers.tell()
        assert validate(Holds(numbers, lambda h: float(h.readline())), (X,))
        assert numbers.tell() == before


def test_a_mapped_file_is_restored(tmp_path):
    mapped = np.memmap(tmp_path / "values", "float32", "w+", shape=(3,))
    assert validate(Holds(mapped, lambda h: put(h, 0, h[0] + 1)), (X,))
    assert mapped.tolist() == [0, 0, 0]


VARIABLE = contextvars.ContextVar("VARIABLE", default=0)


def test_context_variables_and_settings_of_pytorch_are_restored():
    def forward(x):
        VARIABLE.set(VARIABLE.get() + 1)
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        return x * VARIABLE.get()

    found = validate(Function(forward), (X,))
    assert found, found.verdict
    assert (VARIABLE.get(), torch.is_grad_enabled(), torch.get_default_dtype()) == (0, True, torch.float32)


class Cached(nn.Module):
    @functools.lru_cache(maxsize=9)  # noqa: B019 - as found in the wild
    def table(self, size):
        return torch.ones(size) * 2

    def forward(self, x):
        return self.table(len(x)) * x


def test_what_a_cache_remembers_of_the_pass_is_forgotten():
    Cached.table.cache_clear()
    found = validate(Cached(), (X,))
    assert found.history.layer_list == ["input_1_0", "ones_1_1", "mul_1_2", "mul_2_3", "output_1_4"]
    assert Cached.table.cache_info().currsize == 0


def test_a_cache_that_remembers_more_cannot_be_put_back_and_this_is_said():
    model = Cached()
    model.table(7)
    (note,) = validate(model, (X,)).verdict.part("observer").notes
    assert note == "attribute 'table' (_lru_cache_wrapper) was changed, and could not be put back"


def test_what_was_written_to_a_file_stays_written_and_this_is_said(tmp_path):
    with (tmp_path / "log").open("w") as log:
        found = validate(Holds(log, lambda h: h.write("a")), (X,))
    assert found
    assert found.verdict.part("observer").notes == (
        "attribute 'held' (TextIOWrapper) was changed, and could not be put back",
    )


USED_UP = {
    "count": (itertools.count, next),
    "cycle": (lambda: itertools.cycle([1, 2, 3, 4, 5, 6, 7]), next),
    "list_iterator": (lambda: iter([1, 2, 3, 4, 5, 6, 7]), next),
    "generator": (lambda: (n for n in range(9)), next),
    "SimpleQueue": (lambda: filled(range(1, 9), queue.SimpleQueue), lambda h: h.get(timeout=1)),
}


@pytest.mark.parametrize(("build", "use"), USED_UP.values(), ids=USED_UP)
def test_a_model_that_reads_what_cannot_be_put_back_is_not_judged_by_a_second_run(build, use):
    held = build()
    verdict = validate(Holds(held, use), (X,)).verdict
    assert verdict.status is Status.UNPROVEN
    part = verdict.part("observer")
    assert part.status is Status.NOT_APPLICABLE
    assert part.reason == (
        "two plain runs in a row differ, for what the model changes could not be put back: "
        f"attribute 'held' ({type(held).__name__})"
    )


def test_an_iterator_that_is_not_read_is_ignored():
    part = validate(Holds(iter([1]), lambda h: 2), (X,)).verdict.part("observer")
    assert (part.status, part.notes) == (Status.PASSED, ())
