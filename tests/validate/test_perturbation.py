"""Perturbation: the edges that it finds, and the reasons that excuse an edge, each in both directions."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad

from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture import record
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import Status
from pytest_torchlens.validate import check_recording
from pytest_torchlens.validate import validate
from pytest_torchlens.validate.noise import Noise
from pytest_torchlens.validate.trial import Trial
from tests.models import Function
from tests.models import failures

X = torch.tensor([0.75, 1.25, 2.0])


def perturbed(forward, x=X):
    return validate(Function(forward), (x,), parts=["perturbation"]).verdict.part("perturbation")


NONE = torch.zeros(0, dtype=torch.long)
ONES = torch.ones(2, 5, dtype=torch.long)


def assigned(tensor, index, value):
    tensor[index] = value
    return tensor


def derivative(function, x, tangent):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(function(forward_ad.make_dual(x, tangent))).tangent


WITHOUT_EFFECT = {
    "empty output": [lambda x: x[:0] * x.sum()],
    "empty input": [
        lambda x: torch.dist(x[:, None][:, :0], x[:, None]),
        lambda x: assigned(x[:1] * 2, (x[:1] > 9).nonzero()[:, 0], x.mean()),
        lambda x: (x * 2).index_put((NONE,), x.mean()),
        lambda x: (x * 2).index_put((NONE,), x.mean(), accumulate=True),
        lambda x: (x * 2).index_fill(0, NONE, x.mean()),
        lambda x: (x * 2).scatter(0, NONE, x),
        lambda x: (x * 2).scatter_add(0, NONE, x),
        lambda x: F.embedding_bag(NONE, x.diag(), torch.zeros(3, dtype=torch.long)),
    ],
    "nothing selected": [
        lambda x: assigned(x * 2, slice(3, 3), x.mean()),
        lambda x: assigned(x * 2, [], x[0]),
        lambda x: assigned(x.diag(), (slice(None), []), x.mean()),
    ],
    "shape only": [
        lambda x: x + torch.zeros_like(x),
        lambda x: x.sum().expand_as(x),
        lambda x: x.to(torch.uint8).signbit() + x,
    ],
    "overwritten": [
        lambda x: torch.ones(3).copy_(x),
        lambda x: torch.ones(3).index_fill(0, torch.tensor([0, 1, 2]), 2.0) * x,
        lambda x: torch.slice_scatter(torch.ones(3), x),
        lambda x: F.batch_norm(x[:, None], torch.zeros(1), torch.ones(1), training=True, momentum=1.0),
    ],
    "multiplied by zero": [
        lambda x: x @ torch.zeros(3, 3),
        lambda x: torch.add(torch.ones(3), x, alpha=0),
        lambda x: F.linear(x, torch.zeros(2, 3), torch.ones(2)),
    ],
    "masked": [
        lambda x: torch.where(torch.ones(3, dtype=torch.bool), x, x * 2),
        lambda x: x.masked_fill(torch.ones(3, dtype=torch.bool), 1.0),
        lambda x: x + torch.full((3,), float("-inf")),
        lambda x: ((x > 0) & False) * x,
        lambda x: ((x > 0) | True) * x,
        lambda x: torch.bitwise_and(x > 0, False) * x,
        lambda x: (x > 0) * False + x,
    ],
    "no alignment": [
        lambda x: F.ctc_loss(x.expand(3, 2, 3).log_softmax(2), ONES, (3, 3), (5, 5)),
        lambda x: F.ctc_loss(x.expand(3, 2, 3).log_softmax(2), ONES, [3, 3], [5, 5], zero_infinity=True),
        lambda x: F.ctc_loss(x.expand(1, 2, 3).log_softmax(2), ONES, input_lengths=(1, 1), target_lengths=(5, 5)),
        lambda x: F.ctc_loss(x.expand(1, 3).log_softmax(1), ONES[0], torch.tensor(1), torch.tensor(5)),
    ],
    "not a number": [lambda x: x + torch.full((3,), float("nan"))],
    "tangent": [
        lambda x: derivative(lambda x: x.sin() * x, x, x * 2),
        lambda x: derivative(torch.sin, x, x * 2) + derivative(torch.exp, x, torch.ones(3)),
        lambda x: derivative(lambda x: x.mul_(3).add_(1), x.clone(), x * 2),
    ],
    "single element": [
        lambda x: x[:, None].softmax(-1) + x[:, None],
        lambda x: F.scaled_dot_product_attention(x[None, :], x[None, :], x[None, :]),
        lambda x: F.layer_norm(x[:, None], (1,)),
        lambda x: x[:1].argmax() + x,
        lambda x: x[:1].int().argsort(dim=-1, descending=True, stable=True) + x,
        lambda x: F.multilabel_margin_loss(x[:1], torch.tensor([0])) + x,
        lambda x: torch.linalg.solve_triangular(x[:1, None], x[:1, None], upper=True, unitriangular=True),
    ],
    "saturated": [lambda x: x.clamp(max=-1e6)],
    "comparison": [
        lambda x: (x * 8).to(torch.uint8).any() + x,
        lambda x: (x * 8).to(torch.uint8).all(dim=0, keepdim=True) + x,
        lambda x: (x * 8).to(torch.int32).all() + x,
        lambda x: (x < 1e9) * x,
        lambda x: (x == 7.25) * x,
        lambda x: x.isnan() * x,
        lambda x: (x.long() == 5) * x,
    ],
    "all equal": [
        lambda x: torch.fmod(x.int(), torch.ones(3, dtype=torch.int32)) + x,
        lambda x: x.long() % torch.ones(3, dtype=torch.long) + x,
        lambda x: torch.stack([x, x]).index_select(0, torch.tensor([1, 0, 1])),
        lambda x: x.expand(2, 3)[torch.tensor([1, 0])],
        lambda x: x.clone().index_put_((torch.tensor([1, 0]),), torch.zeros(2), accumulate=True),
    ],
    "integer quantised": [
        lambda x: x.long() // 10**9 + x,
        lambda x: torch.bucketize(x.long() + 100, torch.tensor([1, 2])) + x,
        lambda x: torch.searchsorted(torch.tensor([1, 2]), x.long() + 100) + x,
        lambda x: (x.long().abs() + 1).nonzero() + x,
        lambda x: (x.long().abs() + 1).count_nonzero() + x,
    ],
    "dropped by dropout": [lambda x: F.scaled_dot_product_attention(*[x[:, None]] * 3, dropout_p=1.0)],
}
# constant integers, whose order nothing but another order changes
IN_ORDER = {
    "argmax": lambda i: i.argmax(-1),
    "argmin": lambda i: i.argmin(-1),
    "argmin of columns": lambda i: i.argmin(0),
    "argsort": lambda i: i.argsort(dim=-1, stable=True),
    "sort": lambda i: i.sort(0).indices,
    "diff": lambda i: i.diff(),
    "diff of columns": lambda i: i.diff(dim=0),
    "unique": lambda i: i.unique_consecutive(),
    "min of two": lambda i: torch.min(i - 9, torch.full_like(i, 31)),
    "max of two": lambda i: torch.max(i + 31, torch.full_like(i, -9)),
    "fmin": lambda i: torch.fmin(i - 9, torch.full_like(i, 31)),
}


@pytest.mark.parametrize("number", [0, 1, -3])
@pytest.mark.parametrize("name", IN_ORDER)
def test_constant_integers_are_given_another_order(name, number):
    assert perturbed(IN_ORDER[name], torch.full((2, 4), number)).failures == ()


def test_truth_values_are_given_another_order():
    for number in (True, False):
        assert (
            perturbed(lambda b: b.to(torch.bool).argsort(dim=-1, stable=True), torch.full((2, 4), number)).failures
            == ()
        )


COMPUTED = [torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int64, torch.bool, torch.float16]
COMPUTED += [torch.bfloat16, torch.float64, torch.complex32, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("dtype", COMPUTED, ids=str)
@pytest.mark.parametrize("number", [0, 1, 3])
def test_other_values_are_made_for_every_dtype(dtype, number):
    noise = Noise()
    for tensor in (torch.full((2, 3), number).to(dtype), torch.arange(6).view(3, 2).t().to(dtype)):
        others = [*noise.variants(tensor), *noise.variants(tensor, True), *noise.instead(tensor)]
        others += [*noise.extremes(tensor), *noise.not_finite(tensor)]
        assert {(other.dtype, other.shape, other.stride()) for other in others} == {
            (tensor.dtype, tensor.shape, tensor.stride())
        }
        assert len({fingerprint(other) for other in others}) > 1


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn], ids=str)
def test_dtypes_that_lack_functions_are_perturbed(dtype):
    assert perturbed(lambda x: x.to(dtype).to(torch.float64) * 2 + x).failures == ()
    assert perturbed(lambda x: (x.to(dtype).view(torch.uint8) > 300) + x[0]).failures == ()


def test_a_target_that_is_no_class_has_no_effect():
    part = perturbed(lambda x: F.hinge_embedding_loss(x, torch.full((3,), 2.0)))
    assert part.failures == ()


@pytest.mark.parametrize("edges", [(0.0, 1.0), (-9.0, 9.0), (2.0, 1.0), (math.nan, math.nan)], ids=str)
@pytest.mark.parametrize("histogram", [torch.histogram, torch.histogramdd])
def test_the_share_of_a_single_bin_says_nothing(histogram, edges):
    single = torch.tensor(edges)
    bins = single if histogram is torch.histogram else [single] * 3

    def forward(x):
        values = x.flatten() if histogram is torch.histogram else x.view(1, -1).expand(4, 3)
        return histogram(values, bins, weight=torch.full(values.shape[:1], 2.0), density=True)[0]

    assert perturbed(forward).failures == ()


EXCUSED = [(named, forward) for named, forwards in WITHOUT_EFFECT.items() for forward in forwards]


IDS = [f"{number}: {named}" for number, (named, _) in enumerate(EXCUSED)]


@pytest.mark.parametrize(("named", "forward"), EXCUSED, ids=IDS)
def test_what_is_truly_without_effect_is_excused_by_name(named, forward):
    part = perturbed(forward)
    assert part.failures == ()
    assert part.exempt.get(named, 0) >= 1


def ignoring(name, compute):
    """Return an operator of two tensors that ignores the second, with the name of one of PyTorch's."""
    return torch.library.custom_op(
        f"lens_ignores::{name}",
        lambda x, y: compute(x),
        mutates_args=(),
        schema="(Tensor x, Tensor y) -> Tensor",
    )


# the parent is not what the operation reads, in a setting that would excuse it
WRONG_EDGES = {
    "empty output": lambda x: ignoring("split", lambda x: x.clone())(x, x[:1] + 1),
    "empty input": lambda x: ignoring("index_fill", lambda x: torch.ones(len(x) + 3))(NONE, x + 1),
    "nothing selected": lambda x: assigned(x * 2, [], ignoring("setitem", lambda x: x.mean())(x, x + 1)),
    "shape only": lambda x: ignoring("zeros_like", torch.zeros_like)(x, x + 1),
    "shape of the second": lambda x: ignoring("expand_as", lambda x: x.clone())(x, x + 1),
    "overwritten": lambda x: ignoring("copy", lambda x: x.clone())(x, x + 1),
    "multiplied by zero": lambda x: ignoring("mul", lambda x: x * 0)(torch.zeros(3), x + 1),
    "masked": lambda x: ignoring("masked_fill", lambda x: x.float())(torch.ones(3, dtype=torch.bool), x + 1),
    "masked by infinity": lambda x: ignoring("add", lambda x: x * 1)(torch.full((3,), float("-inf")), x + 1),
    "no alignment": lambda x: ignoring("ctc_loss", lambda x: x * 0)(x.expand(3, 3), x.long()),
    "not a number": lambda x: ignoring("sub", lambda x: x * 1)(torch.full((3,), float("nan")), x + 1),
    "tangent": lambda x: ignoring("make_dual", lambda x: x.clone())(x, x + 1),
    "single element": lambda x: ignoring("softmax", torch.ones_like)(x[:1] + 1, x[:1, None] + 1),
    "saturated": lambda x: ignoring("clamp", lambda x: torch.full_like(x, -1e6))(x, x + 1),
    "comparison": lambda x: ignoring("lt", lambda x: x < 1e9)(x, x + 1) * x,
    "all equal": lambda x: ignoring("index_select", lambda x: x * 1)(torch.ones(3), (x > 1).long()),
    "integer quantised": lambda x: ignoring("floordiv", lambda x: x.long() * 0)(x, x + 1) + x,
    "dropped by dropout": lambda x: ignoring("dropout", torch.zeros_like)(x, x + 1),
    "min of two": lambda x: ignoring("min", lambda x: x.clone())(x.long() - 9, x.long()) + x,
    "mask": lambda x: ignoring("bitwise_and", lambda x: x & False)(x > 0, x > 1) * x,
}


@pytest.mark.parametrize("named", WRONG_EDGES)
def test_a_wrong_edge_in_the_same_setting_is_a_failure(named):
    messages = [failure.message for failure in perturbed(WRONG_EDGES[named]).failures]
    assert any(message.startswith("other values for argument 1 of ") for message in messages)


NO_REASON_NEEDED = {
    "a bias of zeros is no factor": lambda x: F.linear(x, torch.ones(3, 3), torch.zeros(3)),
    "the other choice was taken in one place alone": lambda x: torch.where(x > 1.5, x, x * 2),
    "negative numbers into a relu": lambda x: F.relu(-x),
    "a sum of truth values that turning them round leaves": lambda x: (torch.arange(4.0) > 1.5).sum() + x,
    "the largest of integers, alone at the top": lambda x: (x > 1.9).long().max() + x,
    "the places of a sparse tensor's entries": lambda x: x.diag().to_sparse().coalesce().indices().sum() + x,
    "the rows of a compressed one": lambda x: x.diag().to_sparse_csr().crow_indices().sum() + x,
    "its columns": lambda x: x.diag().to_sparse_csr().col_indices().sum() + x,
    "columns of one by columns": lambda x: x.diag().to_sparse_csc().ccol_indices().sum() + x,
    "its rows": lambda x: x.diag().to_sparse_csc().row_indices().sum() + x,
    "rows of blocks": lambda x: x.diag().to_sparse_bsr((1, 1)).crow_indices().sum() + x,
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8).relu().dequantize() + x,
}


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("forward", NO_REASON_NEEDED.values(), ids=NO_REASON_NEEDED)
def test_no_reason_is_given_where_other_values_have_an_effect(forward):
    part = perturbed(forward)
    assert part.failures == ()
    assert part.exempt == {}


MANY = {
    "cat": torch.cat,
    "stack": torch.stack,
    "block diagonal": lambda parts: torch.block_diag(*parts),
    "sum of a stack": lambda parts: torch.stack(parts).sum(0),
    "truth values": lambda parts: torch.cat([part > 1 for part in parts]).float(),
}


@pytest.mark.parametrize("join", MANY.values(), ids=MANY)
def test_each_of_many_arguments_matters(join):
    part = perturbed(lambda x: join([x * number for number in range(1, 9)]))
    assert (part.failures, part.exempt) == ((), {})


def test_one_of_many_arguments_that_is_ignored_is_found():
    skip = torch.library.custom_op(
        "lens_ignores::cat", lambda xs: torch.cat([*xs[:3], *xs[4:]]), mutates_args=(), schema="(Tensor[] xs) -> Tensor"
    )
    (failure,) = perturbed(lambda x: skip([x * number for number in range(1, 9)])).failures
    assert failure.message == "other values for argument 0.3 of cat leave its result unchanged"


@pytest.fixture
def runs(monkeypatch):
    """The names of the functions that replays run, in order."""
    from pytest_torchlens.replay import Player

    names, run = [], Player.run
    monkeypatch.setattr(Player, "run", lambda self, call, args: names.append(call.info.name) or run(self, call, args))
    return names


def test_the_many_arguments_of_one_call_take_few_runs(runs):
    part = perturbed(lambda x: torch.cat([x * number for number in range(1, 101)]))
    assert part.checked == 200
    assert runs.count("cat") == 3


IMAGE = torch.rand(1, 12, 16, 16) + 0.5
NAMES = ("input", "running_mean", "running_var", "weight", "bias")


def normalised(weight=None):
    """Return a function of five tensors of the graph: the image, and four vectors that are computed from it."""
    weight = torch.ones(12) if weight is None else weight

    def forward(x):
        means = x.mean((0, 2, 3))
        return F.batch_norm(x * 2, means, means + 1, means * weight, means - 1)

    return forward


def test_the_arguments_of_a_normalisation_take_one_run(runs):
    part = perturbed(normalised(), IMAGE)
    assert (part.failures, part.exempt) == ((), {})
    assert runs.count("batch_norm") == 3  # the replay, the crop, and the crop with all arguments changed


def test_an_argument_that_has_no_effect_in_its_channels_is_tried_in_all(runs):
    elsewhere = torch.ones(12)
    elsewhere[::5] = 0  # the channels in which the image is changed
    part = perturbed(normalised(elsewhere), IMAGE)
    assert (part.failures, part.exempt) == ((), {})
    assert runs.count("batch_norm") == 4


def test_what_a_normalisation_ignores_is_found_with_all_arguments_changed_at_once():
    part = perturbed(normalised(torch.zeros(12)), IMAGE)
    assert part.failures == ()
    assert part.exempt == {"multiplied by zero": 2}  # image and mean; a variance below zero gives NaN


def test_a_call_that_returns_its_argument_is_not_run_again(runs):
    part = perturbed(lambda x: F.dropout(x * 2, training=False), IMAGE)
    assert (part.failures, part.exempt) == ((), {})
    assert runs.count("dropout") == 1


@pytest.mark.parametrize("tags", [range(1, 9), [-1, 2, 3, 4], [0.5, 2, 3, 4]])
def test_a_concatenation_that_computes_too_is_not_taken_for_one(tags):
    weights = torch.tensor(list(tags)).repeat_interleave(3)
    part = perturbed(lambda x: torch.cat([x * number for number in range(1, 1 + len(tags))]) * weights)
    assert (part.failures, part.exempt) == ((), {})


VIEWS = {
    "mT": lambda x: x.expand(2, 3).mT,
    "__getitem__": lambda x: x[None, 1:],
    "narrow": lambda x: x.narrow(0, 1, 2),
    "view_as_complex": lambda x: torch.view_as_complex(x[:2]),
    "detach": lambda x: x.detach(),
    "contiguous": lambda x: x.contiguous(),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_proves_its_edge_without_a_run(runs, name):
    part = perturbed(VIEWS[name])
    assert (part.failures, part.exempt) == ((), {})
    assert runs.count(name) == 1  # that of the replay itself


def test_a_result_over_other_memory_needs_noise(runs):
    assert perturbed(lambda x: x.expand(2, 3).reshape(6)).failures == ()
    assert runs.count("reshape") == 2


def test_no_noise_is_tried_on_what_is_read_for_its_shape(runs):
    part = perturbed(lambda x: torch.zeros_like(x) + x.sum().expand_as(x))
    assert (part.failures, part.exempt) == ((), {"shape only": 2})
    assert runs.count("zeros_like") == 1
    assert runs.count("expand_as") == 2  # and one for the tensor that is expanded: its effect is not by memory alone


def test_a_replay_leaves_no_traces_of_seeding():
    waiting = len(torch.cuda._queued_calls)
    assert validate(Function(lambda x: F.dropout(x, training=False) * 2), (X,)).verdict
    assert len(torch.cuda._queued_calls) == waiting


def test_nothing_of_the_models_is_written_to_by_perturbation():
    weight = torch.rand(3, 3)
    before = weight.clone()
    verdict = validate(Function(lambda x: F.relu_(x @ weight).mul_(2).add_(weight[0])), (X,)).verdict
    assert failures(verdict) == []
    assert torch.equal(weight, before)


STORED = ["bits8", "bits16", "int4", "uint3", "float4_e2m1fn_x2"]


@pytest.mark.skipif(torch.__version__ < (2, 7), reason="it can hardly be copied")
@pytest.mark.parametrize("name", [name for name in STORED if hasattr(torch, name)])
def test_a_dtype_that_only_stores_is_perturbed_by_its_bytes(name):
    x = torch.arange(1, 9, dtype=torch.uint8).view(getattr(torch, name))
    verdict = validate(Function(lambda x: x.view(torch.uint8).add_(1)), (x,)).verdict
    assert verdict
    assert verdict.part("perturbation").checked == 2
    assert x.view(torch.uint8)[0] == 1


def keep(boxes):
    torchvision = pytest.importorskip("torchvision")
    corner = torch.arange(boxes, dtype=torch.float32)[:, None] * 30
    return torchvision.ops.nms(torch.cat([corner, corner, corner + 9, corner + 9], 1), corner[:, 0] + 1, 0.5)


@pytest.mark.parametrize("boxes", [1, 2, 40])
def test_boxes_that_are_all_selected_matter(boxes):
    part = perturbed(lambda x: keep(boxes) + x.sum())
    assert part.failures == ()
    assert part.exempt.get("single element", 0) == (2 if boxes == 1 else 0)


def solved(x):
    factors, pivots = torch.linalg.ldl_factor(x[:, None] @ x[None] + torch.eye(len(x)))
    return torch.linalg.ldl_solve(factors, pivots, x[:, None])


@pytest.mark.parametrize("pivots", [[1, -2, -2], [1, 1, 1]])
def test_indices_that_pytorch_does_not_check_stay_in_range(monkeypatch, pivots):
    """PyTorch's own function would read or write outside of its arguments, so this is one that notes what it gets."""
    given = []

    def solve(x, y):
        given.append(sorted(y.tolist()))
        return x + y

    x = torch.tensor(pivots)
    operator = torch.library.custom_op(
        "lens_notes::linalg_ldl_solve", solve, mutates_args=(), schema="(Tensor x, Tensor y) -> Tensor"
    )
    monkeypatch.setattr("pytest_torchlens.validate.exemptions.is_of_torch", lambda func: True)
    assert perturbed(lambda x: operator(X, x), x).failures == ()
    assert given.count(sorted(pivots)) == len(given) > 2


@pytest.mark.parametrize(
    "function",
    [
        solved,
        lambda x: solved(x[:1]) + x,
        lambda x: torch.segment_reduce(x, "sum", lengths=torch.tensor([2, 1])),
        lambda x: torch.segment_reduce(x, "sum", offsets=torch.tensor([0, 1, 3])),
        lambda x: torch.segment_reduce(x[:1], "sum", lengths=torch.tensor([1])) + x,
    ],
    ids=["pivots", "one pivot", "lengths", "offsets", "one length"],
)
def test_functions_of_such_indices_raise_no_alarm(function):
    assert perturbed(function).failures == ()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_quantised_zeros_matter_under_each_default_dtype(dtype):
    def forward(x):
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            return torch.quantize_per_tensor(x * 0, 0.1, 10, torch.quint8).dequantize()
        finally:
            torch.set_default_dtype(before)

    assert perturbed(forward).failures == ()


def test_a_tensor_of_which_pytorch_refuses_views_is_perturbed_whole():
    def forward(x):
        y = torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127) * 1
        y.data = x.detach().view(x.shape)
        return y + 1

    x = torch.linspace(-1, 1, 12).view(3, 4)
    with torch.inference_mode():
        verdict = validate(Function(forward), (x,)).verdict
    assert verdict, verdict
    assert verdict.part("perturbation").checked == 7


@pytest.mark.parametrize("mask", [None, torch.rand(1, 9, 5, 5) + 0.5], ids=["no mask", "mask"])
def test_a_deformable_convolution_reads_its_mask_if_there_is_one(mask):
    ops = pytest.importorskip("torchvision.ops")
    inputs = (torch.rand(1, 3, 5, 5), torch.rand(1, 18, 5, 5), *(() if mask is None else (mask,)))
    verdict = validate(ops.DeformConv2d(3, 4, 3, padding=1), inputs).verdict
    assert verdict, verdict.words
    assert verdict.part("perturbation").exempt == ({"shape only": 1} if mask is None else {})


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
@pytest.mark.parametrize("product", ["of the matrix", "by the matrix"])
def test_a_sparse_matrix_without_entries_may_be_multiplied(layout, product):
    def forward(x):
        empty = (x * 0).to_sparse(layout=layout)
        return empty @ (x * 2) if product == "of the matrix" else (x * 2) @ empty

    with torch.no_grad():
        verdict = validate(Function(forward), (torch.rand(4, 4) + 1,)).verdict
    assert verdict, verdict.words


PLACES = torch.tensor([[0, 1], [1, 0]])
ONLY_ZEROS = {
    "coo": lambda x: torch.sparse_coo_tensor(PLACES, (x * 0)[:2], (3, 3)).to_dense() + x,
    "csr": lambda x: torch.sparse_csr_tensor([0, 1, 2, 2], [1, 0], (x * 0)[:2], (3, 3)).to_dense() + x,
    "nested": lambda x: torch.nested.nested_tensor([x * 0, x[:2] * 0]).to_padded_tensor(0.0) + x,
}


@pytest.mark.parametrize("forward", ONLY_ZEROS.values(), ids=ONLY_ZEROS)
def test_entries_that_are_all_zeros_get_other_values(forward):
    with torch.no_grad():
        assert perturbed(forward).failures == ()


def test_a_large_tensor_and_one_without_dimensions():
    x = torch.arange(4096.0)
    assert validate(Function(lambda x: x / torch.tensor(3.0) * x.sum()), (x,)).verdict.words == "passed"


# -- functions of one tensor, which are tried once -------------------------------------------------------------------


def tried(monkeypatch, forward, x=X):
    """Return the names of the calls that were tried with other values."""
    names = []
    right = Trial.reacts
    monkeypatch.setattr(Trial, "reacts", lambda trial, other: names.append(trial.call.info.name) or right(trial, other))
    part = perturbed(forward, x)
    assert part.status is Status.PASSED
    return names


def test_a_function_that_tells_two_values_apart_is_not_tried_again(monkeypatch):
    assert tried(monkeypatch, lambda x: x.cos().cos().sin().cos().sin()) == ["cos", "sin"]


OTHER_ARGUMENTS = {
    "numbers": ("clamp", lambda x: torch.clamp(torch.clamp(x, 0.0, 1.5), 0.0, 1.75)),
    "shape": ("cos", lambda x: x[:2].cos().sum() + x.cos()),
    "dtype": ("cos", lambda x: x.double().cos() + x.cos()),
    "dimension": ("softmax", lambda x: F.softmax(F.softmax(x[:, None] * x, 0), 1)),
    "zero": ("add", lambda x: (x + 0.0) + -0.0),
}


@pytest.mark.parametrize(("name", "forward"), OTHER_ARGUMENTS.values(), ids=OTHER_ARGUMENTS)
def test_a_function_with_other_arguments_is_tried(monkeypatch, name, forward):
    assert tried(monkeypatch, forward).count(name) == 2


def test_a_function_of_two_tensors_is_tried_each_time():
    part = perturbed(lambda x: x @ torch.eye(3) @ torch.zeros(3, 3))
    assert part.exempt == {"multiplied by zero": 1}


def test_a_call_of_a_function_that_ignores_its_argument_is_found_after_others_of_its_name():
    model = Function(lambda x: x.cos().cos().cos())
    recording = record(model, (X,))
    call = recording.calls[1]
    result = X.cos().cos()
    call.info = copy.copy(call.info)
    call.info.func = lambda _: result.clone()
    part = check_recording(recording, ModelHistory(recording), ["perturbation"])[0]
    assert [failure.operation for failure in part.failures] == ["cos_2_2"]
