"""A verdict without failures is unproven where something that it promises was not shown, and says what."""

from __future__ import annotations

import ctypes
import weakref

import pytest
import torch
from torch import nn

from pytest_torchlens.capture import record
from pytest_torchlens.capture.origins import is_foreign
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import Status
from pytest_torchlens.records import from_json
from pytest_torchlens.records import to_json
from pytest_torchlens.validate import check_recording
from pytest_torchlens.validate import validate
from pytest_torchlens.validate import validation
from tests.models import Function

X = torch.rand(2, 3) + 1
TABLE = torch.arange(3.0)
CALLS: list[int] = []


def verdict_on(function, *args):
    return validate(Function(function), args or (X,)).verdict


UNPROVEN = {
    "output of a constant": (lambda x: TABLE * 2, "mul_1_1: the output depends on no input"),
    "output of numbers": (lambda x: torch.arange(3), "arange_1_1: the output depends on no input"),
    "one of two outputs": (lambda x: {"a": x + 1, "b": torch.ones(2)}, "output 'b' depends on no input"),
    "through NumPy": (lambda x: x + torch.from_numpy(x.numpy() * 2), "made after numpy handed"),
    "through a list": (lambda x: x + torch.tensor(x.tolist()), "made after tolist handed"),
    "through the legacy constructor": (lambda x: x + torch.Tensor(x.tolist()), "made after tolist handed"),
    "through a number": (lambda x: x + torch.as_tensor(x.sum().item()), "made after item handed"),
    "through float()": (lambda x: x + x.new_tensor(float(x.sum())), "made after __float__ handed"),
    "a number as argument": (lambda x: x * x.sum().item(), "which item handed to Python"),
    "a number as keyword": (lambda x: torch.add(x, x, alpha=x.sum().item()), "which item handed to Python"),
    "a number to fill with": (lambda x: x + torch.full((3,), x.sum().item()), "which item handed to Python"),
    "an address": (
        lambda x: x + torch.tensor((ctypes.c_float * 6).from_address(x.data_ptr())[0]),
        "made after data_ptr handed",
    ),
    "no operation": (lambda x: x, "no operation ran"),
    "no operation and no tensor": (lambda x: 1, "no operation ran"),
}


@pytest.mark.parametrize(("function", "reason"), UNPROVEN.values(), ids=UNPROVEN)
def test_what_was_not_shown_is_said(function, reason):
    verdict = verdict_on(function)
    assert verdict.status is Status.UNPROVEN
    assert not verdict
    assert any(reason in one.words for one in verdict.unproven), verdict.words
    assert verdict.words.startswith("unproven (")
    assert from_json(to_json(verdict), type(verdict)) == verdict


ARRAY = X.numpy()
EARLIER = {"count": int(X.sum())}


def has_a_root(x):
    try:
        torch.linalg.cholesky(x @ x.mT)
    except torch.linalg.LinAlgError:
        return 0
    return 1


LOST = {
    "through an array": lambda x: torch.tensor(int(x.numpy().sum())),
    "through a whole number": lambda x: torch.tensor(int(x.sum().item())),
    "through a branch": lambda x: torch.ones(2) if x.sum() > 0 else torch.zeros(2),
    "through the choice of a constant": lambda x: (torch.ones(2), torch.zeros(2))[bool(x.sum() > 0)],
    "through a size": lambda x: torch.tensor(len(x[x > 1.5])),
    "through the size to fill": lambda x: torch.zeros(x.nonzero().shape[0]),
    "through a text": lambda x: torch.tensor(len(str(x))),
    "through an error": lambda x: torch.tensor(has_a_root(x)),
    "through memory that C reads": lambda x: torch.tensor(int(ARRAY.sum())),
    "from an earlier call": lambda x: torch.tensor(EARLIER["count"]),
    "from a constant of an earlier call": lambda x: TABLE.clone(),
}


@pytest.mark.parametrize("lost", LOST.values(), ids=LOST)
def test_an_output_of_constants_is_not_shown_though_nothing_in_the_record_tells_it_from_a_constant(lost):
    """So do a size, an error and memory that C reads: no rule on the record may excuse such an output."""
    verdict = verdict_on(lambda x: (x * 2, lost(x)))
    assert verdict.status is Status.UNPROVEN
    assert any("output '1' depends on no input" in one.message for one in verdict.unproven), verdict.words


PROVEN = {
    "a constant beside an input": lambda x: x * TABLE,
    "a number of the code": lambda x: x + torch.tensor(0.25),
    "a truth value, then a constant": lambda x: x + torch.tensor(0.25) if x.sum() > 0 else x,
    "a number that is not used": lambda x: (x.sum().item(), x + 1)[1],
    "a number in a tensor, then a constant": lambda x: x * 2 if 7 in x.view(-1)[[-1, 0]] else x + torch.tensor(0.25),
    "a constant made before": lambda x: (x + torch.tensor(0.25)) * (1 if x.sum().item() > 0 else 2),
    "a constant without part in the output": lambda x: (x.tolist(), torch.tensor(0.25) * 2, x + 1)[2],
    "a common number": lambda x: x * float((x > 0).all()),
    "shape only": torch.zeros_like,
    "an empty output": lambda x: (x + 1, torch.empty(0)),
    "an empty constant": lambda x: (x.tolist(), torch.cat([torch.tensor([]), x.flatten()]))[1],
    "a list of the outputs": lambda x: [x + 1, x[0]],
}


@pytest.mark.parametrize("function", PROVEN.values(), ids=PROVEN)
def test_what_was_shown_passes(function):
    verdict = verdict_on(function)
    assert verdict.status is Status.PASSED, verdict.words
    assert verdict.unproven == ()
    assert verdict


def test_a_parameter_s_number_is_no_input_s():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.7))

        def forward(self, x):
            return x * self.scale.item()

    assert validate(Scaled(), (X,)).verdict.status is Status.PASSED


def test_a_model_without_inputs_needs_none():
    assert validate(Function(lambda: torch.arange(3) * 2)).verdict.status is Status.PASSED


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (torch.broadcast_shapes, ((2, 1), (1, 3))),
        (lambda x: None, (X,)),
        (lambda: 3, ()),
        (lambda x: x, (X,)),
        (lambda text: text, ("no tensor",)),
    ],
    ids=["shapes alone", "no output", "a number", "its input", "text"],
)
def test_a_model_without_operations_has_a_record_that_can_be_read(function, args):
    verdict = validate(Function(function), args).verdict
    assert (verdict.status, verdict.failed_parts) == (Status.UNPROVEN, ())


def test_a_constant_of_numpy_that_was_there_before_is_no_detour():
    array = torch.from_numpy(TABLE.numpy())
    assert is_foreign(array)
    verdict = verdict_on(lambda x: (x * array) * (1.0 if x.sum().item() > 0 else 2.0))
    assert verdict.status is Status.PASSED, verdict.words


def test_values_that_do_not_exist_are_not_proven():
    verdict = validate(nn.Linear(4, 4).to("meta"), (torch.rand(2, 4, device="meta"),)).verdict
    assert verdict.status is Status.UNPROVEN
    assert verdict.unproven[0].words.startswith("linear_1_1: 1 of 1 activations have no values that could be compared")


def test_the_line_is_named():
    (one,) = verdict_on(lambda x: x + torch.tensor(x.tolist())).unproven
    assert one.operation == "tensor_1_1"
    assert __file__ in one.source_line


# -- a failure that a second look does not see ---------------------------------------------------------------------


class Memory:
    """Writes to a tensor as a C extension does: no torch function, and no version counter, hears of it."""

    @staticmethod
    def clear(tensor, size=8):
        ctypes.memset(tensor.data_ptr(), 0, size)


PARTS = (None, ("observer", "replay"), ("replay",), ("replay", "completeness"))


@pytest.mark.parametrize("parts", PARTS, ids=str)
@pytest.mark.parametrize("read", [True, False], ids=["read", "not read"])
@pytest.mark.parametrize("kind", ["parameter", "buffer"])
def test_a_write_behind_our_back_fails_in_any_choice_of_parts(parts, read, kind):
    class Pruned(nn.Module):
        def __init__(self):
            super().__init__()
            tensor = torch.rand(3) + 1
            if kind == "parameter":
                self.mask = nn.Parameter(tensor)
            else:
                self.register_buffer("mask", tensor)

        def forward(self, x):
            y = x * self.mask if read else x * 2
            Memory.clear(self.mask)
            return y

    verdict = validate(Pruned(), (X,), parts=parts).verdict
    assert verdict.status is Status.FAILED
    messages = [failure.message for part in verdict.parts for failure in part.failures]
    message = f"{kind} 'mask' changed during the forward pass, but no recorded operation wrote to it"
    assert any(found.startswith(message) for found in messages)


def test_a_first_call_unlike_all_later_ones_fails():
    CALLS.clear()  # a global, which no restored state of the model covers

    def forward(x):
        CALLS.append(1)
        return x * (1.0 if len(CALLS) == 1 else 2.0)

    verdict = verdict_on(forward)
    assert verdict.status is Status.FAILED
    message = "output differs between the recorded and the plain run, in the first of three runs only"
    assert (verdict.first_failure.message, verdict.first_failure.cause) == (message, "")


def test_the_watch_is_to_blame_only_if_it_fails_twice():
    """The model asks for a dispatch mode, as a kernel that takes another path under one does."""

    def forward(x):
        watched = torch._C._len_torch_dispatch_stack() > 0
        return x * (3.0 if watched else 2.0)

    verdict = verdict_on(forward)
    assert verdict.status is Status.PASSED
    assert verdict.part("observer").reason.startswith("while the dispatcher was watched: ")


@pytest.mark.parametrize("mebibytes", [0, 20])
def test_a_model_that_notices_saved_activations_fails(mebibytes):
    """It asks whether a tensor is still alive, as caches with weak keys do."""

    def forward(x):
        torch.zeros(mebibytes * 2**18)
        y = x * 2
        alive = weakref.ref(y)
        z = y + 1
        del y
        return z * (1.0 if alive() is None else 5.0)

    verdict = verdict_on(forward)
    assert verdict.status is Status.FAILED
    assert verdict.first_failure.message == (
        "output differs between the recorded and the plain run, if activations are saved"
    )


def test_memory_that_was_given_back_ends_nothing():
    class Staging(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 3)
            self.register_buffer("staging", torch.ones(3))
            self.staging.untyped_storage().resize_(0)

        def forward(self, x):
            return self.fc(x)

    assert validate(Staging(), (X,)).verdict.status is Status.PASSED


def test_what_was_missed_comes_before_what_follows_from_it():
    def forward(x):
        y = x * 2
        torch._C.TensorBase.set_(y, x * 3)
        return y + x

    failure = verdict_on(forward).first_failure
    assert failure.operation == "aten::set_"
    assert failure.cause == "Tensor.set_ gives a tensor other memory, which is not recorded"
    assert __file__ in failure.source_line


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_record_that_lacks_a_call_fails_and_does_not_raise(number):
    recording = record(Function(lambda x: (x * 2, x.cos().sum())), (X,))
    history = ModelHistory(recording)
    del recording.calls[number]
    verdict = validation.verdict_on(check_recording(recording, history), 0.0, history)
    assert verdict.status is Status.FAILED


def test_a_constant_from_before_that_is_viewed_after_a_read_was_not_made_then():
    def forward(x):
        x.sum().item()
        return x + TABLE.view(3)

    assert verdict_on(forward).status is Status.PASSED
