"""Quantized, pruned, complex, sparse, recursive and hypernetwork models, each recorded, drawn and validated."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.ao import quantization
from torch.ao.quantization import quantize_fx
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.nn.utils import prune

import pytest_torchlens as tl
from pytest_torchlens.capture import record
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import Status
from pytest_torchlens.validate import check_recording
from pytest_torchlens.validate import validate
from tests.draw.parsed import parse
from tests.models import failures
from tests.models import short_label

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # of torch.ao


def examine(model, *inputs):
    """Validate, record and draw a model; return its history if all is right."""
    verdict = validate(model, inputs).verdict
    assert failures(verdict) == []
    assert verdict.status is Status.PASSED
    history = tl.log_forward_pass(model, list(inputs))
    assert verdict.operations_checked > history.num_operations  # the outputs too
    assert len(parse(history).nodes) == len(history.operations)
    return history


def computed(history):
    """Return what computed: all operations but inputs, buffers and outputs."""
    sources = ("input", "buffer", "output")
    return [operation for operation in history.operations if operation.layer_type not in sources]


def steps(history):
    return " ".join(short_label(operation) for operation in computed(history))


def parameters_read(history):
    """Return the addresses of the parameters by the label of what computes with them."""
    return {short_label(op): op.parent_param_addresses for op in computed(history) if op.computed_with_params}


class TwoLinears(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 6)
        self.second = nn.Linear(6, 4)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


# -- quantized ---------------------------------------------------------------------------------------------------


class BetweenStubs(nn.Module):
    """A convolution with its norm, an addition and a head, as eager quantization wants them."""

    def __init__(self):
        super().__init__()
        self.enter = quantization.QuantStub()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.relu = nn.ReLU()
        self.add = torch.ao.nn.quantized.FloatFunctional()
        self.head = nn.Linear(4, 3)
        self.leave = quantization.DeQuantStub()

    def forward(self, x):
        x = self.relu(self.norm(self.conv(self.enter(x))))
        x = self.add.add(x, x)
        return self.leave(self.head(x.mean((2, 3))))


def quantized_ahead():
    model = BetweenStubs().eval()
    model.qconfig = quantization.get_default_qconfig("fbgemm")
    prepared = quantization.prepare(quantization.fuse_modules(model, [["conv", "norm", "relu"]]))
    prepared(torch.rand(2, 2, 6, 6))
    return quantization.convert(prepared)


def quantized_by_fx():
    example = (torch.rand(2, 8),)
    mapping = quantization.get_default_qconfig_mapping("fbgemm")
    prepared = quantize_fx.prepare_fx(TwoLinears().eval(), mapping, example)
    prepared(*example)
    return quantize_fx.convert_fx(prepared)


def dtypes(history):
    return [operation.tensor_dtype.removeprefix("torch.") for operation in computed(history)]


def test_weights_quantized_at_run_time():
    model = quantization.quantize_dynamic(TwoLinears(), {nn.Linear}, dtype=torch.qint8)
    history = examine(model, torch.rand(2, 8))
    assert steps(history) == "lineardynamic_1 to_1 relu_1 lineardynamic_2 to_2"
    assert set(dtypes(history)) == {"float32"}
    assert parameters_read(history) == {}  # the weights are packed into objects of the library


def test_an_lstm_quantized_at_run_time_is_one_operation_with_three_outputs():
    history = examine(quantization.quantize_dynamic(nn.LSTM(4, 3), {nn.LSTM}, dtype=torch.qint8), torch.rand(5, 1, 4))
    assert steps(history) == "zeros_1 zeros_2 lstm_1 lstm_2 lstm_3"


def test_quantized_ahead():
    history = examine(quantized_ahead(), torch.rand(1, 2, 6, 6))
    assert steps(history) == "quantizepertensor_1 conv2drelu_1 add_1 mean_1 linear_1 dequantize_1"
    assert dtypes(history) == ["quint8"] * 5 + ["float32"]


def test_quantized_by_fx_reads_scales_and_zero_points_from_buffers():
    history = examine(quantized_by_fx(), torch.rand(2, 8))
    assert steps(history) == (
        "quantizepertensor_1 linear_1 dequantize_1 relu_1 quantizepertensor_2 linear_2 dequantize_2"
    )
    buffers = [operation.buffer_address for operation in history.operations if operation.is_buffer_layer]
    assert buffers == ["first_input_scale_0", "first_input_zero_point_0", "_scale_0", "_zero_point_0"]


def test_fake_quantization_in_training_writes_its_statistics():
    model = BetweenStubs().train()
    model.qconfig = quantization.get_default_qat_qconfig("fbgemm")
    history = examine(quantization.prepare_qat(model), torch.rand(2, 2, 6, 6))
    assert history.num_operations == 14
    assert [op.layer_type for op in computed(history)].count("fusedmovingavgobsfakequant") == 7


# -- pruned and parametrized -------------------------------------------------------------------------------------

MASKED = "to_1 mul_1 linear_1 relu_1 linear_2"
PRUNED = {"mul_1": ("first.weight_orig",), "linear_1": ("first.bias",), "linear_2": ("second.weight", "second.bias")}


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        (prune.l1_unstructured, {"amount": 0.5}),
        (prune.random_unstructured, {"amount": 0.3}),
        (prune.ln_structured, {"amount": 2, "n": 2, "dim": 0}),
        (prune.random_structured, {"amount": 2, "dim": 1}),
        (prune.identity, {}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_pruned_weight_is_the_product_of_a_parameter_and_a_buffer(method, arguments):
    model = TwoLinears()
    method(model.first, "weight", **arguments)
    history = examine(model, torch.rand(2, 8))
    assert steps(history) == MASKED
    assert parameters_read(history) == PRUNED
    assert history["mul_1"].parent_layers == ("to_1_1",)
    assert history["buffer_1"].buffer_address == "first.weight_mask"


def test_pruned_for_good_is_a_plain_model():
    model = TwoLinears()
    prune.remove(prune.l1_unstructured(model.first, "weight", amount=0.5), "weight")
    assert steps(examine(model, torch.rand(2, 8))) == "linear_1 relu_1 linear_2"


def test_all_weights_pruned_together():
    model = TwoLinears()
    places = [(model.first, "weight"), (model.first, "bias"), (model.second, "weight")]
    prune.global_unstructured(places, pruning_method=prune.L1Unstructured, amount=0.5)
    history = examine(model, torch.rand(2, 8))
    assert steps(history) == "to_1 mul_1 to_2 mul_2 linear_1 relu_1 to_3 mul_3 linear_2"
    assert parameters_read(history)["linear_2"] == ("second.bias",)


PARAMETRIZED = {
    "weight norm": (parametrizations.weight_norm, "weightnorm_1", 4),
    "spectral norm": (parametrizations.spectral_norm, "flatten_1", 20),
    "orthogonal": (parametrizations.orthogonal, "mt_1", 17),
    "weight norm by a hook": (nn.utils.weight_norm, "weightnorm_1", 4),
    "spectral norm by a hook": (nn.utils.spectral_norm, "reshape_1", 20),
}


@pytest.mark.parametrize(("parametrize", "reader", "number"), PARAMETRIZED.values(), ids=PARAMETRIZED)
def test_a_parametrized_weight_is_computed_in_forward(parametrize, reader, number):
    model = TwoLinears()
    parametrize(model.first)
    history = examine(model, torch.rand(2, 8))
    assert history.num_operations == number
    read = parameters_read(history)
    assert all(address.startswith(("first.weight_", "first.parametrizations.")) for address in read[reader])
    assert read["linear_1"] == ("first.bias",)
    assert history["linear_1"].parent_layers[0] == "input_1_0"
    assert len(history["linear_1"].parent_layers) == 2


# -- complex -----------------------------------------------------------------------------------------------------


class FourierLayer(nn.Module):
    """The layer of a Fourier neural operator: a few modes are mixed by complex weights."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3, dtype=torch.complex64))
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        modes = torch.einsum("bm,mn->bn", torch.fft.rfft(x)[..., :3], self.weight)
        pairs = torch.view_as_real(modes * self.scale)
        return torch.fft.irfft(modes, n=x.shape[-1]) + pairs.sum((1, 2))[:, None]


class ComplexNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2, dtype=torch.complex64)

    def forward(self, x):
        y = self.fc(x)
        y = torch.complex(torch.relu(y.real), torch.relu(y.imag))
        return y.abs(), y.conj() * torch.polar(y.abs(), y.angle())


def test_real_signals_with_complex_weights():
    history = examine(FourierLayer(), torch.rand(2, 6))
    assert steps(history) == ("fftrfft_1 getitem_1 einsum_1 mul_1 viewasreal_1 fftirfft_1 sum_1 getitem_2 add_1")
    assert parameters_read(history) == {"einsum_1": ("weight",), "mul_1": ("scale",)}
    assert dtypes(history) == ["complex64"] * 4 + ["float32"] * 5


def test_complex_signals():
    history = examine(ComplexNetwork(), torch.randn(2, 3, dtype=torch.complex64))
    assert steps(history) == ("linear_1 real_1 relu_1 imag_1 relu_2 complex_1 abs_1 conj_1 abs_2 angle_1 polar_1 mul_1")
    assert history.total_params == 8
    assert history["output_2"].tensor_dtype == "torch.complex64"


# -- sparse ------------------------------------------------------------------------------------------------------

LAYOUTS = {
    "coo": lambda dense: dense.to_sparse(),
    "csr": lambda dense: dense.to_sparse_csr(),
    "csc": lambda dense: dense.to_sparse_csc(),
    "bsr": lambda dense: dense.to_sparse_bsr((2, 2)),
}
ADJACENCY = torch.tensor([[0.0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]])


class GraphNetwork(nn.Module):
    """Two rounds of messages along the edges of a graph."""

    def __init__(self, adjacency):
        super().__init__()
        self.register_buffer("adjacency", adjacency)
        self.fc = nn.Linear(3, 3)

    def forward(self, x):
        for _ in range(2):
            x = torch.relu(self.adjacency @ self.fc(x))
        return x


class FromEdges(nn.Module):
    """A sparse matrix made in forward from places and values, some of which are parameters."""

    def __init__(self):
        super().__init__()
        self.values = nn.Parameter(torch.rand(3) + 0.5)
        self.register_buffer("places", torch.tensor([[0, 1, 1], [2, 0, 2]]))

    def forward(self, x):
        weights = torch.sparse_coo_tensor(self.places, self.values, (2, 3)).coalesce()
        return torch.sparse.mm(torch.sparse.softmax(weights, 1), x)


@pytest.mark.parametrize("layout", LAYOUTS)
@torch.no_grad()
def test_a_sparse_buffer_times_a_dense_tensor(layout):
    history = examine(GraphNetwork(LAYOUTS[layout](ADJACENCY)), torch.rand(4, 3))
    assert steps(history) == "linear_1:1 matmul_1:1 relu_1:1 linear_1:2 matmul_1:2 relu_1:2"
    assert history["buffer_1"].tensor_dtype == "torch.float32"
    assert history["matmul_1:2"].parent_layers == ("buffer_1", "linear_1_1:2")


@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
@torch.no_grad()
def test_a_dense_input_made_sparse(layout):
    class Propagating(nn.Module):
        def forward(self, x, adjacency):
            return torch.tanh(LAYOUTS[layout](adjacency) @ x)

    history = examine(Propagating(), torch.rand(4, 3), ADJACENCY)
    made = {"coo": "tosparse_1", "csr": "tosparsecsr_1", "csc": "tosparsecsc_1"}[layout]
    assert steps(history) == f"{made} matmul_1 tanh_1"


def test_a_sparse_matrix_of_parameters():
    history = examine(FromEdges(), torch.rand(3, 2))
    assert steps(history) == "sparsecootensor_1 coalesce_1 sparsesoftmax_1 sparsemm_1"
    assert parameters_read(history) == {"sparsecootensor_1": ("values",)}


# -- recursive ---------------------------------------------------------------------------------------------------


class TreeNetwork(nn.Module):
    """Folds a tree of numbers from the leaves."""

    def __init__(self):
        super().__init__()
        self.leaf = nn.Linear(1, 4)
        self.join = nn.Linear(8, 4)

    def forward(self, tree):
        if isinstance(tree, torch.Tensor):
            return torch.tanh(self.leaf(tree))
        return torch.tanh(self.join(torch.cat([self(branch) for branch in tree], -1)))


class DividingNetwork(TreeNetwork):
    """Makes a tree of its input: values below the mean to the left, the others to the right."""

    def forward(self, x):
        below = x < x.mean()
        if len(x) == 1 or not below.any():
            return torch.tanh(self.leaf(x[:1, None]))
        return torch.tanh(self.join(torch.cat([self(x[below]), self(x[~below])], -1)))


def passes(history, name):
    return history[name].layer_passes_total


def test_a_tree_is_folded_by_a_module_that_calls_itself():
    one, two, three, four = torch.rand(4, 1)
    history = examine(TreeNetwork(), [[one, two], [three, four]])
    leaves, joins = passes(history, "linear_1:1"), passes(history, "linear_2:1")
    assert (leaves, joins) == (4, 3)
    assert parameters_read(history)["linear_2:3"] == ("join.weight", "join.bias")
    assert history.num_operations == 4 * 2 + 3 * 3
    assert len(history.input_layers) == 4


@pytest.mark.parametrize(
    ("values", "leaves"), [([0.5], 1), ([0.1, 0.9], 2), ([0.1, 0.2, 0.9], 3), ([0.1, 0.2, 0.3, 0.8, 0.9], 5)]
)
def test_values_decide_the_tree(values, leaves):
    history = examine(DividingNetwork(), torch.tensor(values))
    assert passes(history, "linear_1:1" if leaves > 1 else "linear_1") == leaves
    joins = [op for op in computed(history) if op.layer_type == "cat"]
    assert len(joins) == leaves - 1
    conditions = [escape for escape in history.escapes if escape.statement == "if"]
    assert len(conditions) >= leaves - 1


# -- hypernetworks -----------------------------------------------------------------------------------------------


class HyperNetwork(nn.Module):
    """The weights of one layer are made by another, from a context."""

    def __init__(self):
        super().__init__()
        self.maker = nn.Linear(2, 16)
        self.target = nn.Linear(3, 4)

    def forward(self, x, context):
        made = self.maker(context)
        weights = {"weight": made[:12].view(4, 3), "bias": made[12:]}
        return torch.func.functional_call(self.target, weights, (x,))


class Ensemble(nn.Module):
    """Three layers in one call, by a transform over their stacked parameters."""

    def __init__(self):
        super().__init__()
        self.members = nn.ModuleList(nn.Linear(3, 2) for _ in range(3))
        self.form = [nn.Linear(3, 2, device="meta")]

    def forward(self, x):
        stacked = torch.func.stack_module_state(list(self.members))
        return torch.vmap(self._member, in_dims=(0, 0, None))(*stacked, x)

    def _member(self, parameters, buffers, x):
        return torch.func.functional_call(self.form[0], (parameters, buffers), (x,))


class Learner(nn.Module):
    """Takes two steps of gradient descent on examples before it answers."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 1)

    def forward(self, x, y):
        parameters = dict(self.net.named_parameters())
        for _ in range(2):
            gradients = torch.func.grad(self._loss)(parameters, x, y)
            parameters = {name: parameters[name] - 0.1 * gradients[name] for name in parameters}
        return torch.func.functional_call(self.net, parameters, (x,))

    def _loss(self, parameters, x, y):
        return F.mse_loss(torch.func.functional_call(self.net, parameters, (x,)), y)


def test_weights_made_by_another_network():
    history = examine(HyperNetwork(), torch.rand(2, 3), torch.rand(2))
    assert steps(history) == "linear_1 getitem_1 view_1 getitem_2 linear_2"
    assert parameters_read(history) == {"linear_1": ("maker.weight", "maker.bias")}  # none of the target's own
    assert set(history["linear_2"].parent_layers) == {"input_1_0", "view_1_4", "getitem_2_5"}
    assert "target" in history["linear_2"].containing_module_origin


def test_an_ensemble_is_one_call_over_stacked_parameters():
    history = examine(Ensemble(), torch.rand(2, 3))
    assert steps(history) == "stack_1 detach_1 stack_2 detach_2 vmap_1"
    read = {address for addresses in parameters_read(history).values() for address in addresses}
    assert read == {f"members.{number}.{kind}" for number in range(3) for kind in ("weight", "bias")}


def test_parameters_changed_in_forward():
    history = examine(Learner(), torch.rand(4, 3), torch.rand(4, 1))
    gradients = [operation for operation in computed(history) if operation.layer_type == "grad"]
    assert [operation.computed_with_params for operation in gradients] == [True, True, False, False]
    assert "linear_1" not in parameters_read(history)


# -- sabotage ----------------------------------------------------------------------------------------------------


def failed(recording, history):
    """Return the operations that each failed part names."""
    parts = check_recording(recording, history)
    return {part.name: {failure.operation for failure in part.failures} for part in parts if part.failures}


def test_a_made_weight_exchanged_for_the_targets_own_is_found():
    model = HyperNetwork()
    recording = record(model, (torch.rand(2, 3), torch.rand(2)), keep="all")
    history = ModelHistory(recording)
    assert failed(recording, history) == {}
    call = recording.calls[-1]
    call.args = (call.args[0], model.target.weight, *call.args[2:])
    assert "linear_2_6" in failed(recording, history)["invariants"]


@pytest.mark.parametrize("build", [quantized_ahead, quantized_by_fx])
def test_another_scale_is_found(build):
    inputs = (torch.rand(1, 2, 6, 6),) if build is quantized_ahead else (torch.rand(2, 8),)
    recording = record(build(), inputs, keep="all")
    history = ModelHistory(recording)
    assert failed(recording, history) == {}
    call = recording.calls[0]
    call.args = (call.args[0], 0.5, *call.args[2:])
    assert history.label(0) in failed(recording, history)["replay"]


def test_another_value_at_a_leaf_is_found():
    recording = record(DividingNetwork(), (torch.tensor([0.1, 0.2, 0.9]),), keep="all")
    history = ModelHistory(recording)
    assert failed(recording, history) == {}
    number = next(number for number in range(len(recording.calls)) if history.label(number).startswith("linear_1"))
    recording.calls[number].outputs[0].digest ^= 1
    assert history.label(number) in failed(recording, history)["replay"]
