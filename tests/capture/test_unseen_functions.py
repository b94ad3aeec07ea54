"""Functions that no mode sees, and that are recorded all the same: `set_`, `swap_tensors`, strided nested tensors."""

from __future__ import annotations

import gc
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nested import nested_tensor as bound_early
from torch.nn.utils import parametrize

import pytest_torchlens as tl
from pytest_torchlens.capture import record
from pytest_torchlens.capture.origins import TensorsBefore
from pytest_torchlens.records import Status
from pytest_torchlens.validate import validate
from tests.models import Function

X = torch.tensor([[1.0, 2.0], [3.0, 4.5]])


def names(model, *args):
    return [call.info.layer_type for call in record(model, args).calls]


def bytes_of(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


LOADED = bytes_of({"w": torch.full((2, 2), 3.0), "t": torch.arange(6.0).view(2, 3).T})
PICKLED = pickle.dumps(torch.eye(2))


def views_of_a_loaded_storage(x):
    loaded = torch.load(io.BytesIO(bytes_of([(t := torch.ones(2, 2)), t[0]])))
    loaded[1].mul_(5)
    return x @ loaded[0]


def weights_of_a_loaded_module(x):
    original, copy = nn.Linear(2, 2), nn.Linear(2, 2)
    copy.load_state_dict(torch.load(io.BytesIO(bytes_of(original.state_dict()))))
    return copy(x)


LOADS = {
    "torch.load": lambda x: x @ torch.load(io.BytesIO(LOADED))["w"],
    "a transposed one": lambda x: x @ torch.load(io.BytesIO(LOADED))["t"].T,
    "pickle": lambda x: x @ pickle.loads(PICKLED),  # noqa: S301 - ours
    "a view of another tensor": lambda x: torch.empty(0).set_((x * 2)[0]) + 1,
    "another storage": lambda x: torch.empty(0).set_((x * 2).untyped_storage(), 1, (2,), (2,)) + 1,
    "its own method": lambda x: torch.Tensor.set_(torch.empty(0), x * 2).sum(),
    "two over one storage": views_of_a_loaded_storage,
    "weights of a module": weights_of_a_loaded_module,
    "bytes of a constructor": lambda x: x + torch.ByteTensor(torch.ByteStorage._from_buffer(b"\1\2")).sum(),
}


@pytest.mark.parametrize("name", LOADS)
def test_a_tensor_that_set_put_over_memory(name):
    assert validate(Function(LOADS[name]), (X,)).verdict.status is Status.PASSED


def test_a_loaded_tensor_is_a_source():
    recording = record(Function(LOADS["torch.load"]), (X,))
    found = [(source.value.shape, source.name) for source in recording.sources if source.kind == "constant"]
    assert found == [((2, 2), "memory from Tensor.set_"), ((3, 2), "memory from Tensor.set_")]


def test_set_to_a_computed_tensor_keeps_the_edge():
    history = tl.log_forward_pass(Function(LOADS["a view of another tensor"]), X)
    assert history["add_1"].has_input_ancestor


OUTLIVED = {
    "set_": lambda tensor: torch.empty(0).set_(tensor.detach()),
    "a storage": lambda tensor: tensor.untyped_storage(),
    "a parameter": lambda tensor: nn.Parameter(tensor, requires_grad=False),
    "an array": lambda tensor: tensor.numpy(),
}


@pytest.mark.parametrize("outlived_by", OUTLIVED.values(), ids=OUTLIVED)
def test_memory_that_outlives_its_tensor_keeps_the_edge(outlived_by):
    def forward(x):
        left = [outlived_by(x * number) for number in range(100)]
        others = [x + number for number in range(400)]  # some are objects at the addresses of those that are gone
        return [tensor_over(one) for one in left], others[-1]

    history = tl.log_forward_pass(Function(forward), X, layers_to_save=None)
    assert [source.kind for source in history.recording.sources] == ["input"]


def tensor_over(left):
    if isinstance(left, torch.UntypedStorage):
        return torch.empty(0).set_(left, 0, X.shape)
    return left if isinstance(left, torch.Tensor) else torch.from_numpy(left)


class LoadsAtTheFirstCall(nn.Module):
    w = None

    def forward(self, x):
        if self.w is None:
            self.w = torch.load(io.BytesIO(LOADED))["w"]
        return x @ self.w


def test_weights_from_a_file_at_the_first_call():
    model = LoadsAtTheFirstCall()
    assert validate(model, (X,)).verdict.status is Status.PASSED
    model(X)
    assert validate(model, (X,)).verdict.status is Status.PASSED


def test_values_that_go_through_pickle_are_not_shown():
    through = Function(lambda x: pickle.loads(pickle.dumps(x)) + 1)  # noqa: S301 - ours
    assert validate(through, (X,)).verdict.status is Status.UNPROVEN


class SetsItsParameter(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(2))

    @torch.no_grad()
    def forward(self, x):
        self.w.set_(x.sum(1))
        return self.w * 2


def test_a_parameter_that_set_gave_other_memory_is_no_source_any_more():
    (multiplied,) = [call for call in record(SetsItsParameter(), (X,)).calls if call.info.layer_type == "mul"]
    assert multiplied.args[0].call >= 0
    verdict = validate(SetsItsParameter(), (X,)).verdict
    assert "parameter 'w'" in verdict.words


SET = {
    "itself": lambda w: w.set_(w),
    "its storage": lambda w: w.set_(w.untyped_storage(), 0, (2,)),
    "a tensor over its memory": lambda w: w.set_(w.detach()),
}


@pytest.mark.parametrize("setting", SET.values(), ids=SET)
def test_a_parameter_that_set_gave_its_own_memory_stays_that_parameter(setting):
    class SetsItself(SetsItsParameter):
        def __init__(self):
            super().__init__()
            self.constants = [torch.ones(2)]

        @torch.no_grad()
        def forward(self, x):
            x = x + self.constants[0]  # looks for parameters over the memory of the constant
            setting(self.w)
            return self.w * x

    recording = record(SetsItself(), (X,))
    (multiplied,) = [call for call in recording.calls if call.info.layer_type == "mul"]
    source = recording.sources[multiplied.args[0].position]
    assert (source.kind, source.name) == ("parameter", "w")
    assert validate(SetsItself(), (X,)).verdict


def test_a_parametrization_registered_in_forward_reads_the_parameter():
    class Parametrizes(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, x):
            parametrize.register_parametrization(self.fc, "weight", nn.Tanh())
            y = self.fc(x + torch.ones(2))
            parametrize.remove_parametrizations(self.fc, "weight", leave_parametrized=False)
            return y

    history = tl.log_forward_pass(Parametrizes(), X)
    (tanh,) = [operation for operation in history.operations if operation.layer_type == "tanh"]
    assert len(tanh.parent_param_addresses) == 1
    assert validate(Parametrizes(), (X,)).verdict


@torch.no_grad()
def swapped(x):
    a, b = x * 2, x.sum(0) + 1
    torch.utils.swap_tensors(a, b)
    return a + 1, b - 1


class SwapsParameters(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.ones(2))
        self.b = nn.Parameter(torch.full((2,), 3.0))

    @torch.no_grad()
    def forward(self, x):
        y = x * self.a
        torch.utils.swap_tensors(self.a, self.b)
        return y + self.a - self.b * 7


def test_swapped_tensors():
    plain = swapped(X)
    assert validate(Function(swapped), (X,)).verdict.status is Status.PASSED
    assert names(Function(swapped), X).count("swap_tensors") == 1
    assert all(map(torch.equal, plain, record(Function(swapped), (X,)).output))


def test_swapped_parameters_are_swapped_in_the_model_and_put_back():
    model = SwapsParameters()
    tl.log_forward_pass(model, X)
    assert model.a.tolist() == [3, 3]
    assert validate(model, (X,)).verdict.status is Status.PASSED
    assert (model.a.tolist(), model.b.tolist()) == ([3, 3], [1, 1])


def test_weights_that_a_conversion_swaps(monkeypatch):
    monkeypatch.setattr(torch.__future__, "_swap_module_params_on_conversion", True)

    class Converts(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        @torch.no_grad()
        def forward(self, x):
            return self.layer.to(torch.float64)(x.double())

    assert validate(Converts(), (X,)).verdict.status is not Status.FAILED


def test_what_pytorch_refuses_to_swap_is_refused():
    def refused(x):
        y = x * 2
        view = y[0]  # which holds its base
        with pytest.raises(RuntimeError):
            torch.utils.swap_tensors(y, x + 1)
        return y + view

    assert validate(Function(refused), (X,)).verdict.status is Status.PASSED


NESTED = {
    "rows": lambda x: torch.nested.nested_tensor([x[0], x[1, :1]]).to_padded_tensor(0.0),
    "bound early": lambda x: bound_early([x[0] * 2, x[1]]).to_padded_tensor(-1.0),
    "numbers": lambda x: torch.nested.nested_tensor([[1.0, 2.0], [3.0]]).to_padded_tensor(0.0) * x,
    "dtype": lambda x: torch.nested.nested_tensor([x[0], x[1]], dtype=torch.float64).to_padded_tensor(0.0) + 1,
    "multiplied": lambda x: (torch.nested.nested_tensor([x[0], x[1, :1]]) * 2).to_padded_tensor(0.0),
    "as_nested_tensor": lambda x: torch.nested.as_nested_tensor([x[0], x[1, :1]]).to_padded_tensor(0.0),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NESTED)
def test_a_nested_tensor_made_in_forward(name):
    assert validate(Function(NESTED[name]), (X,)).verdict.status is Status.PASSED


@pytest.mark.filterwarnings("ignore")
def test_a_nested_tensor_has_edges_from_its_rows():
    assert "nested_tensor" in names(Function(NESTED["rows"]), X)


def test_torch_is_as_before():
    record(Function(swapped), (X,))
    assert "set_" not in vars(torch.Tensor)
    assert torch.utils.swap_tensors.__module__ == "torch.utils"
    assert type(torch._C._nested.nested_tensor).__name__ == "builtin_function_or_method"


class Hidden:
    __slots__ = ("tensor",)


FROZEN = Hidden()


@pytest.fixture
def _frozen():
    FROZEN.tensor = torch.arange(2.0)
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("_frozen")
def test_a_tensor_from_before_gc_freeze_existed_before_the_pass():
    assert validate(Function(lambda x: x + FROZEN.tensor), (X,)).verdict.status is Status.PASSED


@pytest.mark.usefixtures("_frozen")
def test_a_tensor_frozen_since_may_be_new():
    before = TensorsBefore()
    new = torch.Tensor([1.0, 2.0])
    recording = record(Function(lambda x: x + new), (X,))
    gc.freeze()
    assert [source.live is new for source in before.unknown_sources(recording.sources)] == [True]


class HasMemoryInTheCallOnly(nn.Module):
    """What FSDP does: a flat parameter gets its memory before it is used, and gives it back."""

    def __init__(self, frees=True):
        super().__init__()
        self.flat = nn.Parameter(torch.zeros(6))
        self.frees = frees
        self.flat.data.untyped_storage().resize_(0)
        self.register_buffer("shard", torch.arange(6.0))

    @torch.no_grad()
    def forward(self, x):
        self.flat.data.untyped_storage().resize_(24)
        self.flat.data.copy_(self.shard)
        y = x @ self.flat[:4].view(2, 2) + self.flat[4:]
        if self.frees:
            self.flat.data.untyped_storage().resize_(0)
        return y


@pytest.mark.parametrize("frees", [True, False])
def test_weights_that_have_memory_in_the_call_only(frees):
    model = HasMemoryInTheCallOnly(frees)
    assert validate(model, (X,)).verdict.status is Status.PASSED
    assert model.flat.untyped_storage().size() == 0
    output = record(model, (X,)).output
    assert torch.equal(output, HasMemoryInTheCallOnly()(X))


class FreesItsWeight(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([2.0, 3.0]))

    @torch.no_grad()
    def forward(self, x):
        y = x * self.w
        self.w.untyped_storage().resize_(0)
        return y


def test_a_weight_that_forward_frees_is_put_back():
    model = FreesItsWeight()
    assert validate(model, (X,)).verdict.status is Status.PASSED
    assert model.w.tolist() == [2, 3]


def grown(x):
    y = x * 2
    first = y[0]
    y.untyped_storage().resize_(64)
    first.add_(1)
    return y + first


def freed(x):
    y = x * 2
    z = y + 1
    y.untyped_storage().resize_(0)
    return z * 3


@pytest.mark.parametrize("forward", [grown, freed])
@pytest.mark.parametrize("layers", ["all", "none"])
def test_a_storage_that_is_resized(forward, layers):
    with torch.no_grad():
        assert validate(Function(forward), (X,)).verdict.status is Status.PASSED
        history = tl.log_forward_pass(Function(forward), X, layers_to_save=layers)
        assert torch.equal(history.recording.output, forward(X))
        if layers == "all":
            assert torch.equal(history["mul_1"].tensor_contents, X * 2)


class SharesMemory(nn.Module):
    """Two parameters over one memory, read by transforms, which may write."""

    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.ones(4))
        self.b = nn.Parameter(self.a.data[:2])

    def forward(self, x):
        whole = torch.func.vmap(lambda row, w: row * w.sum(), in_dims=(0, None))(x, self.a)
        part = torch.func.vmap(lambda row, w: (row * w).sum(), in_dims=(0, None))(x, self.b)
        return whole + part[:, None]


def test_parameters_over_one_memory_are_not_said_to_be_overwritten():
    assert validate(SharesMemory(), (X,)).verdict.status is Status.PASSED
