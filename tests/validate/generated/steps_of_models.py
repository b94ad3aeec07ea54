"""Steps that call modules, draw random numbers, use custom and scripted functions, other layouts, and Python."""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.validate.generated.program import block
from tests.validate.generated.program import is_float
from tests.validate.generated.program import is_plain
from tests.validate.generated.program import step

# -- modules and state --------------------------------------------------------------------------------------------


@step("modules")
def layer(m, d):
    t = d.rows().float()
    name = d.choice("linear", "tied", "layer_norm", "spectral", "hooked", "layers.a", "layers.b", "linear")
    return m.get_submodule(name)(t)


@step("modules")
def repeated_cell(m, d):
    t = d.matrix().float()
    hidden = torch.zeros_like(t)
    for _ in range(1 + d.number(3)):
        hidden = m.cell(t, hidden)
    return hidden


@step("modules")
def recurrent(m, d):
    output, (hidden, cell) = m.lstm(d.matrix().float()[None])
    return [output[0], hidden[-1], cell[0]]


@step("modules")
def attention(m, d):
    t = d.matrix().float()[None]
    output, weights = m.attention(t, t, t, need_weights=bool(d.number(2)))
    return [output[0]] if weights is None else [output[0], weights[0]]


@step("modules")
def encoder(m, d):
    return m.encoder(d.matrix().float()[None])[0]


@step("modules")
def convolution(m, d):
    return m.convolution(d.matrix().float()[:, None])[:, 0]


@step("modules")
def embedded(m, d):
    ids = d.integer().abs() % 7
    return m.embedding(ids) if d.number(2) else F.embedding_bag(ids.flatten()[None], m.embedding.weight)


@step("modules")
def scaled_dot_product(m, d):
    t = d.matrix()[None]
    mask = torch.ones(t.shape[1], t.shape[1], dtype=torch.bool).tril() if d.number(2) else None
    return F.scaled_dot_product_attention(t, t * 0.5, t + 1, attn_mask=mask)[0]


@step("training")
def batch_norm(m, d):
    t = d.of(lambda one: is_float(one) and one.dim() == 2 and one.shape[1] == 4 and one.shape[0] > 1)
    return m.norm(t.float())


@step("training")
def running_average(m, d):
    t = d.rows()
    name = d.choice("in place", "assigned", "part", "counter", "lerp")
    with torch.no_grad():
        value = t.detach().reshape(-1, 4).mean(0).float()
        if name == "in place":
            m.mean.mul_(0.5).add_(value, alpha=0.5)
        elif name == "assigned":
            m.mean = m.mean * 0.5 + value
        elif name == "part":
            m.mean[1:].copy_(value[1:])
        elif name == "counter":
            m.steps_so_far += 1
            return m.steps_so_far * value
        else:
            m.mean.lerp_(value, 0.1)
    return t - m.mean


@step("training")
def inner_gradient(m, d):
    t = d.rows().detach().float()
    with torch.enable_grad():
        weight = m.weight if d.number(2) else m.weight.detach().clone().requires_grad_()
        loss = (t @ weight).square().mean()
        (gradient,) = torch.autograd.grad(loss, weight, create_graph=bool(d.number(2)))
    return [loss, t @ (weight - 0.1 * gradient)]


@step("training")
def weight_written(m, d):
    t = d.rows().detach().float()
    with torch.no_grad():
        if d.number(2):
            m.scales[0].mul_(0.9)
        else:
            m.frozen.add_(t.reshape(-1, 4)[0], alpha=0.1)
    return t * m.scales[0] + m.frozen


@step("training")
def inner_step(m, d):
    t = d.rows().detach().float()
    with torch.enable_grad():
        weight = nn.Parameter(torch.full((4,), 0.5))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(1 + d.number(2)):
            optimizer.zero_grad()
            (weight.grad,) = torch.autograd.grad((t * weight).square().sum(), weight)
            optimizer.step()
    return t * weight.detach()


# -- random numbers -----------------------------------------------------------------------------------------------


@step("random")
def random_numbers(m, d):
    t = d.float()
    name = d.choice("rand_like", "dropout", "randn", "bernoulli", "normal", "randint", "rand", "gumbel", "alpha")
    functions = {
        "rand_like": lambda: t + torch.rand_like(t),
        "dropout": lambda: F.dropout(t, 0.5),
        "randn": lambda: torch.randn(t.shape) * t,
        "bernoulli": lambda: t * torch.bernoulli(torch.full(t.shape, 0.5)),
        "normal": lambda: torch.normal(t.detach().float(), 0.5),
        "randint": lambda: torch.randint(0, 5, t.shape) + t,
        "rand": lambda: torch.rand(4)[:1] * t,
        "gumbel": lambda: F.gumbel_softmax(t.reshape(-1), dim=0),
        "alpha": lambda: F.alpha_dropout(t, 0.3, training=True),
    }
    return functions[name]()


@step("random")
def random_order(m, d):
    t = d.filled()
    name = d.choice("randperm", "multinomial", "uniform_", "exponential_", "own generator", "module")
    functions = {
        "randperm": lambda: t[torch.randperm(t.shape[0])],
        "multinomial": lambda: t[torch.multinomial(torch.ones(t.shape[0]), 1)],
        "uniform_": lambda: torch.empty(t.shape).uniform_(-1, 1) + t,
        "exponential_": lambda: torch.zeros(t.shape).exponential_() + t,
        "own generator": lambda: t + torch.rand(t.shape, generator=torch.Generator().manual_seed(3)),
        "module": lambda: m.dropout(t.float()),
    }
    return functions[name]()


@step("random")
def reseeded(m, d):
    t = d.float()
    if d.number(2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(11)
            return t + torch.rand(t.shape)
    state = torch.get_rng_state()
    noise = torch.rand(t.shape)
    torch.set_rng_state(state)
    return t + noise - torch.rand(t.shape)


@step("random")
def random_of_python(m, d):
    t = d.float()
    return t * random.random() if d.number(2) else t + float(np.random.rand())  # noqa: NPY002


# -- functions of users -------------------------------------------------------------------------------------------


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t):
        ctx.save_for_backward(t)
        return t * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class SinAndSign(torch.autograd.Function):
    @staticmethod
    def forward(t, scale):
        return t.sin() * scale, t.sign()

    @staticmethod
    def setup_context(ctx, inputs, output):
        t, ctx.scale = inputs
        ctx.save_for_backward(t)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, gradient, _):
        return gradient * ctx.saved_tensors[0].cos() * ctx.scale, None


class AddOneInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t):
        ctx.mark_dirty(t)
        return t.add_(1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class SignOfArray(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t):
        return torch.from_numpy(np.sign(t.detach().float().numpy()))

    @staticmethod
    def backward(ctx, gradient):
        return gradient


apply_early = Double.apply


@step("custom functions")
def custom(m, d):
    t = d.float()
    name = d.choice("double", "early", "several", "in place", "rounded", "nested")
    functions = {
        "double": partial(Double.apply, t),
        "early": partial(apply_early, t),
        "several": lambda: list(SinAndSign.apply(t, 0.5)),
        "in place": lambda: AddOneInPlace.apply(t * 1),
        "rounded": lambda: t + (t.round() - t).detach(),
        "nested": lambda: Double.apply(Double.apply(t) - 1),
    }
    return functions[name]()


@step("training")
def gradient_by_code(m, d):
    t = d.rows().detach().float()
    name = d.choice("function", "hook", "write in a hook", "hook on the node")

    def write(gradient):
        m.mean.mul_(0.5)

    with torch.enable_grad():
        hidden = t @ m.weight
        if name == "function":
            hidden = Double.apply(hidden)
        elif name == "hook on the node":
            hidden.grad_fn.register_prehook(lambda gradients: (gradients[0] * 2,))
        else:
            hidden.register_hook(write if name == "write in a hook" else lambda gradient: gradient * 2)
        (gradient,) = torch.autograd.grad(hidden.square().mean(), m.weight)
    return t @ (m.weight - 0.1 * gradient) - m.mean


@torch.jit.script
def scripted_function(t: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if bool(t.sum() > 0):
        return torch.tanh(t) + s, t * 2
    return torch.sin(t) - s, t * 3


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, t: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            t = torch.tanh(t) * self.scale
        return t


scripted_module = torch.jit.script(Scripted().requires_grad_(False))


@step("custom functions")
def scripted(m, d):
    t = d.float().float()
    return list(scripted_function(t, t)) if d.number(2) else scripted_module(t)


def _row(row: torch.Tensor) -> torch.Tensor:
    return (row * row.tanh()).sum()


@step("custom functions")
def transformed(m, d):
    t = d.matrix().detach().float()
    name = d.choice("vmap", "grad", "jacrev", "functional_call", "jvp", "vmap of grad", "vjp")
    functions = {
        "vmap": lambda: torch.func.vmap(_row)(t),
        "grad": lambda: torch.func.grad(_row)(t),
        "jacrev": lambda: torch.func.jacrev(lambda row: row.sin() * 2)(t[0]),
        "functional_call": lambda: torch.func.functional_call(m.linear, {"weight": m.weight * 2}, (t,)),
        "jvp": lambda: list(torch.func.jvp(torch.sin, (t,), (t * 0.5,))),
        "vmap of grad": lambda: torch.func.vmap(torch.func.grad(_row))(t),
        "vjp": lambda: torch.func.vjp(torch.tanh, t)[1](t)[0],
    }
    return functions[name]()


# -- other layouts ------------------------------------------------------------------------------------------------


@step("sparse")
def sparse(m, d):
    t = d.of(lambda one: is_float(one) and one.dim() == 2 and one.shape[1] == 4).float()
    t = t.relu()
    name = d.choice("mm", "csr", "coo", "add", "values", "sum", "dense", "built", "transposed", "csr result")
    functions = {
        "mm": lambda: torch.sparse.mm(t.to_sparse(), m.weight),
        "csr": lambda: t.detach().to_sparse_csr() @ m.weight.detach(),
        "coo": t.to_sparse,
        "add": lambda: (t.to_sparse() + t.to_sparse()).to_dense(masked_grad=None),
        "values": lambda: [t.detach().to_sparse().coalesce().values(), t.detach().to_sparse().coalesce().indices()],
        "sum": lambda: torch.sparse.sum(t.to_sparse(), 0).to_dense(),
        "dense": lambda: t.to_sparse().to_dense(),
        "built": lambda: torch.sparse_coo_tensor(torch.tensor([[0, 1], [2, 0]]), t.detach().sum(0)[:2], (3, 4)),
        "transposed": lambda: t.to_sparse().t().to_dense(),
        "csr result": lambda: t.detach().to_sparse_csr(),
    }
    return functions[name]()


@step("sparse")
def of_sparse(m, d):
    t = d.of(lambda one: one.layout is not torch.strided)
    name = d.choice("to_dense", "double", "coalesce", "clone", "detach", "neg", "values")
    if name == "values":
        return t.coalesce().values() if t.layout is torch.sparse_coo else [t.values(), t.crow_indices()]
    if name == "coalesce":
        return t.coalesce() if t.layout is torch.sparse_coo else t.clone()
    return t * 2 if name == "double" else getattr(t, name)()


@step("quantised")
def quantised(m, d):
    t = d.float().detach().float()
    q = torch.quantize_per_tensor(t, 0.1, 10, torch.quint8)
    return [[q], [q.dequantize()], [q.int_repr()], [torch.fake_quantize_per_tensor_affine(t, 0.1, 0, -128, 127)]][
        d.number(4)
    ]


@step("quantised")
def of_quantised(m, d):
    q = d.of(lambda one: one.is_quantized)
    return [q.dequantize(), q.int_repr(), q.clone(), q.flatten()][d.number(4)]


# -- Python -------------------------------------------------------------------------------------------------------


@step("numbers in Python")
def number_in_python(m, d):
    t = d.filled_float().float()
    name = d.choice("item", "tolist", "numpy", "index", "float", "shape", "parameter", "max", "array in a function")
    functions = {
        "item": lambda: t * t.mean().item(),
        "tolist": lambda: torch.tensor(t.flatten().tolist()),
        "numpy": lambda: torch.from_numpy(t.detach().numpy() * 2) + t,
        "index": lambda: t.flatten()[int(t.flatten().argmax())],
        "float": lambda: t + float(t.sum()),
        "shape": lambda: t / t.shape[0] + t.numel(),
        "parameter": lambda: t * m.scales[1].item(),
        "max": lambda: max(t.flatten().unbind()),
        "array in a function": lambda: SignOfArray.apply(t),
    }
    return functions[name]()


# -- blocks -------------------------------------------------------------------------------------------------------


@block("loops")
def loop(m, d, run):
    for _ in range(1 + d.number(3)):
        run(d.live)


@block("loops")
def while_small(m, d, run):
    t = d.filled_float().detach().clone()
    turns = 0
    while float(t.abs().sum()) < 20 and turns < 3:
        t = t * 2 + 1
        turns += 1
        run(d.live)
    return t


@block("loops")
def branch(m, d, run):
    t = d.filled_float()
    if (t.sum() if d.number(2) else t.flatten()[0]) > 0.1:
        run(d.live)
        return t * 2
    return t - 1


@block("modes")
def without_gradients(m, d, run):
    with torch.no_grad():
        run(d.live)


@block("modes")
def with_gradients(m, d, run):
    with torch.enable_grad():
        run(d.live)


@block("modes")
def inference(m, d, run):
    with torch.inference_mode():
        inner = [t.clone() for t in d.live[-3:]]
        run(inner)
    return [t.clone() for t in inner[3:] if is_plain(t)][-2:]


@block("modes")
def autocast(m, d, run):
    with torch.autocast("cpu", torch.bfloat16, enabled=d.number(4) > 0):
        run(d.live)


@block("modes")
def default_dtype(m, d, run):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        run(d.live)
    finally:
        torch.set_default_dtype(before)


@block("modules")
def inside_a_module(m, d, run):
    m.inner(run, d.live)


@block("custom functions")
def checkpointed(m, d, run):
    t = d.filled_float()

    def body(one):
        inner = [one * 1]
        run(inner)
        return next(s for s in reversed(inner) if is_float(s))

    return checkpoint(body, t, use_reentrant=bool(d.number(2)))
