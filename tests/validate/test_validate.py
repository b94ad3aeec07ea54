"""Right records pass, and the model is restored."""

from __future__ import annotations

import collections
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pytest_torchlens as tl
from pytest_torchlens.capture import record
from pytest_torchlens.records import Status
from pytest_torchlens.validate import validate
from pytest_torchlens.validate.observer import RunDigests
from pytest_torchlens.validate.observer import compare
from tests.models import DemoNetwork
from tests.models import Function
from tests.models import SmallConvNet
from tests.models import Views
from tests.models import failures


class Memory(nn.Module):
    """State besides parameters and buffers: a counter, a cache, a reassigned buffer."""

    def __init__(self):
        super().__init__()
        self.calls = 0
        self.cache = {}
        self.seen = collections.deque(maxlen=3)
        self.register_buffer("last", torch.zeros(3))

    def forward(self, x):
        self.calls += 1
        self.seen.append(self.calls)
        scale = self.cache.setdefault("scale", x.abs().max() + self.calls)
        self.last = self.last + x.mean(0)
        return x / scale + self.last


MODELS = {
    "demo": (DemoNetwork, (5, 5)),
    "conv, training": (SmallConvNet, (4, 3, 6, 6)),
    "views": (Views, (2, 3)),
    "memory": (Memory, (2, 3)),
    "lstm": (lambda: nn.LSTM(3, 4, 2, dropout=0.5), (5, 2, 3)),
    "transformer": (lambda: nn.TransformerEncoderLayer(8, 2, 16), (5, 2, 8)),
    "masked": (lambda: Function(lambda x: x.masked_fill(x < 0, -1e9).softmax(-1)), (4, 4)),
    "written input": (lambda: Function(lambda x: x.mul_(2) + 1), (4,)),
    "empty": (lambda: Function(lambda x: x[:0] * x.sum()), (4,)),
    "sparse": (lambda: Function(lambda x: torch.sparse.mm(x.to_sparse(), x)), (3, 3)),
    "set item": (lambda: Function(lambda x: F.pad(x, (1, 1)).index_fill_(0, torch.tensor([0]), 3.0)), (3, 3)),
}


@pytest.mark.parametrize(("build", "shape"), MODELS.values(), ids=MODELS)
def test_right_records_pass_and_the_model_is_restored(build, shape):
    torch.manual_seed(0)
    model, x = build(), torch.randn(shape)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    attributes = [{k: repr(v) for k, v in module.__dict__.items()} for module in model.modules()]
    inputs, rng = x.clone(), torch.get_rng_state()
    verdict = validate(model, (x,)).verdict
    assert failures(verdict) == []
    assert verdict
    assert torch.equal(x, inputs)
    assert torch.equal(rng, torch.get_rng_state())
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    assert [{k: repr(v) for k, v in module.__dict__.items()} for module in model.modules()] == attributes


def test_counts():
    verdict = validate(DemoNetwork(), (torch.rand(5, 5),)).verdict
    assert verdict.part("replay").checked == 9 + 1  # operations and the output
    assert verdict.part("perturbation").checked == 13
    assert verdict.operations_checked == 10
    assert verdict.edges_checked == 13


def test_parts_can_be_chosen():
    verdict = validate(nn.ReLU(), (torch.ones(1),), parts=["replay", "observer"]).verdict
    assert [part.name for part in verdict.parts] == ["observer", "replay"]
    with pytest.raises(ValueError, match=r"parts: expected .*, got 'reply' .did you mean 'replay'"):
        validate(nn.ReLU(), (torch.ones(1),), parts=["reply"])


def test_the_public_function_is_true_when_it_passed():
    assert tl.validate_model_activations(nn.Linear(2, 2), torch.ones(1, 2))


def test_the_models_own_error_passes_through_and_the_model_is_restored():
    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x):
            self.count.add_(1)
            raise ZeroDivisionError("mine")

    model = Fails()
    with pytest.raises(ZeroDivisionError, match="mine"):
        validate(model, (torch.ones(1),))
    assert model.count.item() == 0


# -- models that do not repeat themselves ----------------------------------------------------------------------------


def test_observer_sees_a_model_that_notices_being_recorded():
    def forward(x):
        return x + (1 if torch.overrides._is_torch_function_mode_enabled() else 0)

    verdict = validate(Function(forward), (torch.ones(2),)).verdict
    assert failures(verdict)[0] == ("observer", "", "output differs between the recorded and the plain run")
    assert verdict.part("replay").status is Status.PASSED


def test_uninitialised_outputs_are_known_by_their_path():
    verdict = validate(Function(lambda x: {"output a ": torch.empty(4), "b": x * 2}), (torch.ones(2),)).verdict
    assert failures(verdict) == []
    traced, plain = RunDigests("dict", {"output a ": "1"}, {}), RunDigests("dict", {"output a ": "2"}, {})
    assert compare(traced, plain, {"output a "}).status is Status.PASSED
    assert compare(traced, plain, {"a"}).num_failures == 1


def test_arrays_are_compared_by_their_values():
    def digests(item):
        return RunDigests.of(nn.Identity(), {}, item).outputs

    one, other = ([np.array([object()]), np.array([(1, [])], dtype="i4,O")] for _ in range(2))
    assert digests(one) == digests(other)
    assert digests(np.array([1.0])) == digests(np.array([1.0])) != digests(np.array([2.0]))


def test_observer_sees_changed_state():
    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("traced", torch.zeros(1))

        def forward(self, x):
            if torch.overrides._is_torch_function_mode_enabled():
                self.traced.fill_(1)
            return x * 1

    verdict = validate(Hidden(), (torch.ones(2),)).verdict
    assert [message for _, _, message in failures(verdict)] == [
        "buffer traced differs between the recorded and the plain run"
    ]


def test_writes_through_an_array_from_before_the_pass_are_reported():
    class Silent(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("held", torch.zeros(3))
            self.array = self.held.numpy()

        def forward(self, x):
            y = x + self.held
            self.array[0] += 1
            return y

    verdict = validate(Silent(), (torch.ones(3),)).verdict
    found = verdict.part("replay").failures[0].message
    assert found == "buffer 'held' changed during the forward pass, but no recorded operation wrote to it"


# -- completeness ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("build", "shape"), MODELS.values(), ids=MODELS)
def test_the_dispatcher_ran_nothing_unrecorded(build, shape):
    verdict = validate(build(), (torch.randn(shape),), parts=["completeness"]).verdict
    part = verdict.part("completeness")
    assert part.failures == ()
    assert part.checked > 0 or build is nn.Identity


def test_operations_called_past_torch_functions_are_missed_by_name_and_line():
    class Bound(nn.Module):
        def forward(self, x):
            y = x + 1
            with torch._C.DisableTorchFunction():
                y = torch.cos(y)
            return y * 2

    verdict = validate(Bound(), (torch.ones(2),)).verdict
    (failure,) = verdict.part("completeness").failures
    assert failure.operation == "aten::cos"
    assert (
        failure.message == "aten::cos ran after add_1_1, in the model's own forward, but no recorded operation did it"
    )
    assert failure.source_line.startswith(f"{__file__}:")
    assert failure.source_line.endswith("in forward")


def test_what_a_thread_computes_past_torch_functions_is_missed_by_name():
    def compute(x, results):
        with torch._C.DisableTorchFunction():
            results.append(torch.relu(x))

    def forward(x):
        results = []
        thread = threading.Thread(target=compute, args=(x, results), name="helper")
        thread.start()
        thread.join()
        return results[0] * 2

    (failure,) = validate(Function(forward), (torch.ones(2),)).verdict.part("completeness").failures
    assert (
        failure.message
        == "aten::relu ran before the first operation, in thread 'helper', but no recorded operation did it"
    )


def test_a_thread_older_than_the_pass_is_found_by_the_tensors_it_makes():
    with ThreadPoolExecutor(1) as pool:
        pool.submit(torch.ones, 1).result()  # the thread is there now
        forward = lambda x: pool.submit(torch.relu, x).result() + 1  # noqa: E731
        (failure,) = validate(Function(forward), (torch.ones(2),)).verdict.part("completeness").failures
    assert failure.operation == "add_1_1"
    assert failure.message == "a tensor of shape (2,) that it reads was made during the pass by no recorded operation"
    assert failure.source_line.startswith(f"{__file__}:")


def test_a_tensor_of_an_older_thread_stays_unknown_where_an_operation_that_is_not_recorded_passes_it_on():
    with ThreadPoolExecutor(1) as pool:
        pool.submit(torch.ones, 1).result()

        def forward(x):
            made = pool.submit(torch.relu, x).result()
            with torch._C.DisableTorchFunction():
                made = made.detach()
            return made + 1

        (failure,) = validate(Function(forward), (torch.ones(2),)).verdict.part("completeness").failures
    assert failure.operation == "add_1_1"
    assert failure.message == "a tensor of shape (2,) that it reads was made during the pass by no recorded operation"


def test_a_tensor_of_an_older_thread_stays_unknown_where_it_has_other_memory_at_the_end():
    with ThreadPoolExecutor(1) as pool:
        pool.submit(torch.ones, 1).result()

        def forward(x):
            made = pool.submit(torch.relu, x).result()
            y = made + x
            made.data = y * 3
            return y + made

        (failure,) = validate(Function(forward), (torch.ones(2),)).verdict.part("completeness").failures
    assert failure.operation == "add_1_1"
    assert failure.message == "a tensor of shape (2,) that it reads was made during the pass by no recorded operation"


def gradient_read_back(x):
    weight = x.detach().clone().requires_grad_()
    with torch.enable_grad():
        engine = torch.autograd.Variable._execution_engine
        engine.run_backward(((weight * x).sum(),), (torch.ones(()),), False, False, (), accumulate_grad=True)
    return weight.grad


def test_what_the_engine_of_autograd_computes_in_the_pass_is_missed():
    failures = validate(Function(gradient_read_back), (torch.ones(2),)).verdict.part("completeness").failures
    assert "aten::mul" in {failure.operation for failure in failures}
    assert all(failure.source_line.startswith(f"{__file__}:") for failure in failures)


LEGACY = {
    "Tensor of numbers": lambda x: x + torch.Tensor([1.0, 2.0]),
    "Tensor of a size": lambda x: x + torch.Tensor(2).zero_(),
    "FloatTensor": lambda x: x + torch.FloatTensor([1.0, 2.0]),
    "LongTensor": lambda x: x[torch.LongTensor([1, 0])],
    "Parameter": lambda x: x * nn.Parameter(torch.Tensor([1.0, 2.0])),
    "frombuffer": lambda x: x + torch.frombuffer(bytearray(8), dtype=torch.float32),
}


@pytest.mark.parametrize("forward", LEGACY.values(), ids=LEGACY)
def test_tensors_made_of_python_data_by_what_no_mode_sees_are_constants(forward):
    found = validate(Function(forward), (torch.ones(2),))
    assert found, found.verdict
    assert [source.kind for source in found.history.recording.sources] == ["input", "constant"]


TABLE = torch.ones(2)
OLD = {
    "global": lambda x: x + TABLE,
    "array": lambda x: x + torch.from_numpy(np.ones(2, dtype="float32")),
    "slice of a global": lambda x: x + TABLE[:1],
}


@pytest.mark.parametrize("forward", OLD.values(), ids=OLD)
def test_constants_from_before_the_pass_are_known(forward):
    part = validate(Function(forward), (torch.ones(2),)).verdict.part("completeness")
    assert part.failures == ()


def test_values_handed_to_python_are_counted_with_their_line():
    forward = lambda x: x * x.sum().item() if x.sum() > 0 else x  # noqa: E731
    notes = validate(Function(forward), (torch.ones(2),)).verdict.part("completeness").notes
    assert [note.partition(" (")[0] for note in notes] == [
        "__bool__ handed 1 value to Python",
        "item handed 1 value to Python",
    ]
    assert all(f"first at {__file__}:" in note for note in notes)


def generating(x):
    yield x * 2
    yield x + 1


def test_what_a_generator_yields_is_said_to_be_unrecorded():
    found = validate(Function(generating), (torch.ones(2),))
    assert found.verdict.part("completeness").notes == (
        "it returned a generator: what that yields was not recorded (exhaust=True does)",
    )
    assert len(found.history.recording.calls) == 0


def test_a_generator_is_run_under_the_trace_on_demand():
    found = validate(Function(generating), (torch.ones(2),), exhaust=True)
    assert found.verdict
    assert found.history.layer_list == ["input_1_0", "mul_1_1", "add_1_2", "output_1_3", "output_2_4"]


def test_a_model_that_cannot_bear_the_watch_is_validated_without():
    def forward(x):
        if torch.utils._python_dispatch._get_current_dispatch_mode() is not None:
            raise RuntimeError("no dispatch mode, please\nmore text")
        return x + 1

    verdict = validate(Function(forward), (torch.ones(2),)).verdict
    assert verdict.status is Status.UNPROVEN
    part = verdict.part("completeness")
    assert part.status is Status.NOT_RUN
    assert part.reason == "the model raises while the dispatcher is watched: RuntimeError: no dispatch mode, please"


def test_a_model_that_does_not_repeat_itself_is_not_judged_by_a_second_run():
    counter = iter(range(100))
    verdict = validate(Function(lambda x: x + next(counter)), (torch.ones(2),)).verdict
    part = verdict.part("observer")
    assert part.status is Status.NOT_APPLICABLE
    assert part.reason == (
        "two plain runs in a row differ, for what the model changes could not be put back: "
        "attribute 'function.counter' (range_iterator)"
    )
    assert verdict.part("replay").status is Status.PASSED


def test_opaque_code_may_ignore_an_argument():
    class Ignores(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            return torch.from_numpy(x.detach().numpy() * 2)

    forward = lambda x, y: Ignores.apply(x, y)  # noqa: E731, PLW0108 - looked up while recording, as models do
    verdict = validate(Function(forward), (torch.rand(3), torch.rand(3))).verdict
    assert verdict.part("perturbation").exempt == {"inside not seen": 1}


STATES = {
    "average": lambda s, x: setattr(s, "held", s.held * 0.9 + x.mean(0) * 0.1),
    "queue": lambda s, x: setattr(s, "held", torch.cat([s.held[1:], x.mean().reshape(1)])),
    "copy": lambda s, x: s.held.copy_(s.held * 0.9 + x.mean(0)),
}


@pytest.mark.parametrize("update", STATES.values(), ids=STATES)
def test_a_buffer_updated_from_the_input_and_not_read_again(update):
    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("held", torch.zeros(3))

        def forward(self, x):
            update(self, x)
            return x + 1

    assert failures(validate(Keeps(), (torch.rand(2, 3),)).verdict) == []


@pytest.mark.parametrize("grad", [True, False])
def test_an_embedding_that_rescales_its_table(grad):
    with torch.set_grad_enabled(grad):
        model = nn.Embedding(5, 4, max_norm=1.0)
        assert failures(validate(model, (torch.tensor([1, 3]),)).verdict) == []


def test_a_forbidden_view_elsewhere_in_the_process_is_no_concern():
    base = torch.ones(2, 2, requires_grad=True) * 1
    with torch.no_grad():
        view = base[0]
    base.mul_(2)
    with pytest.raises(RuntimeError, match="no_grad mode"):
        _ = view.is_leaf
    assert validate(Function(lambda x: x + TABLE), (torch.ones(2),)).verdict


class CallsForwardOfATracedChild(nn.Module):
    def __init__(self):
        super().__init__()
        self.child = torch.jit.trace(nn.Linear(4, 4), torch.ones(2, 4))

    def forward(self, x):
        return self.child.forward(x) * 2


FILL = torch._C.StorageBase.fill_
UNTRACED = {
    "forward of a traced child": (CallsForwardOfATracedChild, (2, 4)),
    "a storage that is filled past torch": (
        lambda: Function(lambda x: FILL((x * 2).untyped_storage(), 0).size() + x),
        (4,),
    ),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
@pytest.mark.parametrize(("build", "shape"), UNTRACED.values(), ids=UNTRACED)
def test_the_watch_adds_nothing_to_the_record_and_reports_what_it_lacks(build, shape):
    model, x = build(), torch.rand(shape)
    names = [[call.info.name for call in record(model, (x,), watch=watch).calls] for watch in (False, True)]
    assert names[0] == names[1]
    verdict = validate(model, (x,)).verdict
    assert verdict.part("completeness").status is Status.FAILED
    assert not verdict
