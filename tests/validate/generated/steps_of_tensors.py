"""Steps that make tensors and views, and steps that write to them."""

from __future__ import annotations

import operator

import torch
import torch.nn.functional as F

from tests.validate.generated.program import UnfitError
from tests.validate.generated.program import is_float
from tests.validate.generated.program import is_plain
from tests.validate.generated.program import step

# -- new tensors --------------------------------------------------------------------------------------------------


@step("arithmetic")
def binary(m, d):
    t = d.float()
    s = d.broadcast_with(t)
    name = d.choice("add", "sub", "mul", "maximum", "atan2", "rsub", "hypot", "fmod", "logaddexp")
    return getattr(torch, name)(t, s)


@step("arithmetic")
def operators(m, d):
    t = d.float()
    name = d.choice("add", "sub", "mul", "truediv", "lt", "ge", "ne", "floordiv")
    number = (0.5, 2, -1.25, 3)[d.number(4)]
    return getattr(operator, name)(*((t, number) if d.number(2) else (number, t)))


@step("arithmetic")
def pointwise(m, d):
    names = "sin tanh abs neg exp sigmoid relu round sign floor erf square isnan signbit nan_to_num positive".split()
    return getattr(torch, d.choice(*names))(d.float())


@step("arithmetic")
def activation(m, d):
    names = "gelu silu softplus leaky_relu elu hardtanh logsigmoid hardswish mish relu6 softsign".split()
    return getattr(F, d.choice(*names))(d.float())


@step("arithmetic")
def clamped(m, d):
    return d.float().clamp(*((-0.5, 0.5), (0.0, None), (None, 0.25))[d.number(3)])


@step("arithmetic")
def reduction(m, d):
    t = d.filled_float()
    names = "sum mean cumsum amax softmax log_softmax logsumexp argmax prod cumprod argsort".split()
    return getattr(t, d.choice(*names))(d.number(t.dim()))


@step("arithmetic")
def whole_reduction(m, d):
    return getattr(d.filled_float(), d.choice("sum", "mean", "max", "norm", "std", "argmin", "any"))()


@step("arithmetic")
def several_outputs(m, d):
    t = d.filled_float()
    name = d.choice("max", "sort", "median", "cummax", "topk", "var_mean", "aminmax", "frexp", "kthvalue")
    dim = d.number(t.dim())
    if name in ("topk", "kthvalue"):
        return list(getattr(t, name)(1, dim))
    if name == "frexp":
        return list(torch.frexp(t))
    return list(torch.var_mean(t, dim) if name == "var_mean" else getattr(t, name)(dim=dim))


@step("arithmetic")
def product(m, d):
    t = d.matrix()
    name = d.choice("matmul", "@", "addmm", "einsum", "bmm", "mv", "outer", "ellipsis")
    functions = {
        "matmul": lambda: torch.matmul(t, m.weight.to(t.dtype)),
        "@": lambda: t @ t.mT,
        "addmm": lambda: torch.addmm(t[0], t, m.weight.to(t.dtype), beta=0.5),
        "einsum": lambda: torch.einsum("ij,kj->ik", t, t),
        "bmm": lambda: torch.bmm(t[None], t.T[None])[0],
        "mv": lambda: torch.mv(t, t[0]),
        "outer": lambda: torch.outer(t[:, 0], t[0]),
        "ellipsis": lambda: torch.einsum("...i,...i->...", t, t),
    }
    return functions[name]()


@step("arithmetic")
def normalised(m, d):
    t = d.rows()
    name = d.choice("layer_norm", "normalize", "softmax", "cosine_similarity", "rms_norm")
    functions = {
        "layer_norm": lambda: F.layer_norm(t, (4,)),
        "normalize": lambda: F.normalize(t, dim=-1),
        "softmax": lambda: F.softmax(t, -1, dtype=torch.float64),
        "cosine_similarity": lambda: F.cosine_similarity(t, t.flip(-1), dim=-1),
        "rms_norm": lambda: F.rms_norm(t, (4,)),
    }
    return functions[name]()


@step("arithmetic")
def losses(m, d):
    t = d.rows()
    name = d.choice("mse_loss", "smooth_l1_loss", "cross_entropy", "huber_loss")
    if name != "cross_entropy":
        return getattr(F, name)(t, t.detach() * 0.5)
    return F.cross_entropy(t.reshape(-1, 4), torch.arange(t.numel() // 4) % 4)


@step("arithmetic")
def joined(m, d):
    t = d.filled()
    s = d.of(lambda one: is_plain(one) and one.shape == t.shape)
    return getattr(torch, d.choice("cat", "stack", "hstack", "vstack", "column_stack"))([t, s, t][: 2 + d.number(2)])


@step("arithmetic")
def chosen(m, d):
    t = d.float()
    s = d.of(lambda one: one.shape == t.shape and one.dtype == t.dtype and is_plain(one))
    name = d.choice("where", "lerp", "addcmul", "heaviside", "isclose")
    if name == "where":
        return torch.where(t > s, t, s * 2)
    return torch.lerp(t, s, 0.25) if name == "lerp" else (
        torch.addcmul(t, s, t, value=0.5) if name == "addcmul" else getattr(torch, name)(t, s)
    )  # fmt: skip


@step("arithmetic")
def picked(m, d):
    t = d.filled()
    dim = d.number(t.dim())
    places = torch.tensor([0, t.shape[dim] - 1, 0])
    name = d.choice("index_select", "take", "gather", "list", "flip", "roll", "tile", "repeat_interleave", "pad")
    functions = {
        "index_select": lambda: t.index_select(dim, places),
        "take": lambda: torch.take(t, places),
        "gather": lambda: t.gather(dim, torch.zeros(t.shape, dtype=torch.int64)),
        "list": lambda: t[[0, -1]],
        "flip": lambda: t.flip(dim),
        "roll": lambda: t.roll(1, dim),
        "tile": lambda: t.tile((2,)),
        "repeat_interleave": lambda: t.repeat_interleave(2, dim),
        "pad": lambda: F.pad(t, (1, 0)),
    }
    return functions[name]()


@step("dtypes")
def cast(m, d):
    names = ("float64", "bfloat16", "float16", "int64", "bool", "complex64", "float32", "int32", "uint8", "float32")
    t = d.any()
    name = d.choice(*names)
    finite = t.nan_to_num(0.0, 9.0, -9.0).clamp(0, 9) if t.is_floating_point() and "int" in name else t
    return finite.to(getattr(torch, name))


@step("dtypes")
def complex_numbers(m, d):
    t = d.rows().float()
    name = d.choice("fft", "rfft", "polar", "conj", "imag", "view_as_real", "complex", "angle")
    z = torch.complex(t, t.flip(-1))
    functions = {
        "fft": lambda: torch.fft.fft(t).abs(),
        "rfft": lambda: torch.fft.irfft(torch.fft.rfft(t)),
        "polar": lambda: torch.polar(t.abs(), t),
        "conj": lambda: [z.conj(), (z.conj() * z).real],
        "imag": lambda: z.conj().imag,
        "view_as_real": lambda: torch.view_as_real(z),
        "complex": lambda: z,
        "angle": lambda: torch.angle(z),
    }
    return functions[name]()


@step("dtypes")
def complex_arithmetic(m, d):
    z = d.of(lambda t: is_plain(t) and t.is_complex())
    return [z.conj() + 1j, (z * z.conj()).real, z.abs(), z.neg().imag][d.number(4) :][:1]


@step("dtypes")
def integers(m, d):
    t = d.integer()
    name = d.choice("add", "floor", "mod", "one_hot", "and", "bincount", "cumsum", "shift", "diff")
    functions = {
        "add": lambda: t + 1,
        "floor": lambda: t // 2,
        "mod": lambda: t % 3,
        "one_hot": lambda: F.one_hot(t.abs() % 4, 4),
        "and": lambda: t & 1,
        "bincount": lambda: torch.bincount(t.flatten().abs() % 4, minlength=4),
        "cumsum": lambda: t.flatten().cumsum(0),
        "shift": lambda: t << 1,
        "diff": lambda: torch.diff(t.flatten()),
    }
    return functions[name]()


@step("dtypes")
def booleans(m, d):
    t = d.of(lambda one: is_plain(one) and one.dtype is torch.bool)
    return [~t, t.any(), t.all(), t.sum(), t | t.logical_not(), t.float(), t ^ True][d.number(7)]


@step("dtypes")
def data_dependent_shape(m, d):
    t = d.filled_float()
    name = d.choice("nonzero", "masked_select", "unique", "mask", "where", "argwhere")
    functions = {
        "nonzero": lambda: torch.nonzero(t > 0.25),
        "masked_select": lambda: t.masked_select(t > 0),
        "unique": lambda: list(torch.unique(t.round(), return_inverse=True)),
        "mask": lambda: t[t > 0.25],
        "where": lambda: list(torch.where(t > 0)),
        "argwhere": lambda: torch.argwhere(t),
    }
    return functions[name]()


@step("dtypes")
def zero_dim(m, d):
    t = d.filled_float()
    return [t.flatten()[0], t.sum() * t, t.mean().expand(2), t.max().reshape(1), t.flatten()[-1].unsqueeze(0)][
        d.number(5)
    ]


@step("dtypes")
def empty(m, d):
    t = d.rows()
    name = d.choice("slice", "sum", "cat", "empty", "mm", "stacked")
    nothing = t.reshape(-1, 4)[:0]
    functions = {
        "slice": lambda: nothing,
        "sum": lambda: nothing.sum(0) + t,
        "cat": lambda: torch.cat([nothing, t.reshape(-1, 4)]),
        "empty": lambda: torch.cat([torch.empty(0, 4), t.reshape(-1, 4).float()]),
        "mm": lambda: nothing @ m.weight.to(t.dtype),
        "stacked": lambda: torch.stack([nothing, nothing * 2]),
    }
    return functions[name]()


@step("constants")
def made(m, d):
    t = d.float()
    name = d.choice("zeros_like", "ones_like", "new_zeros", "full", "arange", "tensor", "eye", "empty", "linspace")
    functions = {
        "zeros_like": lambda: torch.zeros_like(t),
        "ones_like": lambda: torch.ones_like(t) * t,
        "new_zeros": lambda: t.new_zeros(t.shape) + t,
        "full": lambda: torch.full(t.shape, 0.75) - t,
        "arange": lambda: t + torch.arange(t.numel()).view(t.shape),
        "tensor": lambda: t * torch.tensor(0.25),
        "eye": lambda: torch.eye(4)[1] * t[..., :1],
        "empty": lambda: torch.empty(t.shape).copy_(t),
        "linspace": lambda: torch.linspace(0, 1, 4) + t[..., :1],
    }
    return functions[name]()


# -- views --------------------------------------------------------------------------------------------------------


@step("views")
def reshaped(m, d):
    t = d.filled()
    names = "flatten ravel squeeze T mT detach data contiguous view_as alias".split()
    name = d.choice(*names)
    if name == "view_as":
        return t.view_as(t)
    got = torch.ops.aten.alias(t) if name == "alias" else getattr(t, name)
    return got() if callable(got) and not isinstance(got, torch.Tensor) else got


@step("views")
def along_dimension(m, d):
    t = d.filled()
    dim = d.number(t.dim())
    size = t.shape[dim]
    name = d.choice(
        "select", "narrow", "transpose", "unsqueeze", "unfold", "movedim", "slice", "last", "ellipsis", "diff"
    )
    functions = {
        "select": lambda: t.select(dim, size - 1),
        "narrow": lambda: t.narrow(dim, size // 2, size - size // 2),
        "transpose": lambda: t.transpose(dim, 0),
        "unsqueeze": lambda: t.unsqueeze(dim),
        "unfold": lambda: t.unfold(dim, min(size, 2), 1),
        "movedim": lambda: t.movedim(dim, -1),
        "slice": lambda: t[1:] if t.shape[0] > 1 else t[:1],
        "last": lambda: t[-1],
        "ellipsis": lambda: t[..., ::2],
        "diff": lambda: t[..., None, :1],
    }
    return functions[name]()


@step("views")
def strided(m, d):
    t = d.of(lambda one: is_float(one) and one.numel() >= 6 and one.is_contiguous())
    name = d.choice("as_strided", "diagonal", "expand", "broadcast_to", "unflatten", "view", "bytes", "swapaxes")
    functions = {
        "as_strided": lambda: t.as_strided((2, 2), (2, 1), t.storage_offset() + 1),
        "diagonal": lambda: t.view(-1)[:4].view(2, 2).diagonal(),
        "expand": lambda: t.view(-1)[:3].expand(2, 3),
        "broadcast_to": lambda: torch.broadcast_to(t.view(-1)[:4], (3, 4)),
        "unflatten": lambda: t.view(-1)[:6].unflatten(0, (2, 3)),
        "view": lambda: t.view(-1),
        "bytes": lambda: t.detach().view(torch.int16),
        "swapaxes": lambda: t.view(-1)[:6].view(3, 2).swapaxes(0, 1),
    }
    return functions[name]()


@step("views")
def parts(m, d):
    t = d.filled()
    name = d.choice("chunk", "split", "unbind", "iter", "tensor_split", "sections", "hsplit")
    functions = {
        "chunk": lambda: t.chunk(2, d.number(t.dim())),
        "split": lambda: t.split(2),
        "unbind": lambda: t.unbind(0),
        "iter": lambda: iter(t),
        "tensor_split": lambda: t.tensor_split(2, -1),
        "sections": lambda: t.split([1, t.shape[0] - 1]),
        "hsplit": lambda: t.hsplit([1]),
    }
    return list(functions[name]())[:3]


@step("views")
def of_state(m, d):
    name = d.choice("weight", "weight row", "mean", "mean part", "table", "frozen", "running", "data", "scale")
    views = {
        "weight": lambda: m.weight.T,
        "weight row": lambda: m.weight[1],
        "mean": lambda: m.mean,
        "mean part": lambda: m.mean[1:],
        "table": lambda: m.table[:2],
        "frozen": lambda: m.frozen,
        "running": lambda: m.norm.running_mean,
        "data": lambda: m.weight.data[:, 2],
        "scale": lambda: m.scales[0],
    }
    return views[name]()


# -- writes -------------------------------------------------------------------------------------------------------


@step("writes")
def in_place(m, d):
    t = d.float()
    s = d.fitting_into(t)
    return getattr(t, d.choice("add_", "mul_", "copy_", "sub_", "__iadd__", "__imul__", "atan2_"))(s)


@step("writes")
def in_place_alone(m, d):
    t = d.float()
    name = d.choice("zero_", "sin_", "fill_", "clamp_", "relu", "neg_", "masked_fill_", "exp", "addcmul_", "tanh_")
    functions = {
        "fill_": lambda: t.fill_(0.5),
        "clamp_": lambda: t.clamp_(-0.25, 0.75),
        "relu": lambda: F.relu(t, inplace=True),
        "masked_fill_": lambda: t.masked_fill_(t > 0.5, 0.1),
        "exp": lambda: torch.exp(t.clamp(-2, 2), out=torch.empty_like(t)),
        "addcmul_": lambda: t.addcmul_(t, t, value=0.1),
    }
    return functions[name]() if name in functions else getattr(t, name)()


@step("writes")
def item_set(m, d):
    t = d.filled_float()
    name = d.choice("last", "mask", "slice", "column", "element", "list", "none", "augmented")
    if name == "last":
        t[-1] = d.fitting_into(t[-1])
    elif name == "slice":
        t[: t.shape[0] // 2 + 1] *= 0.5
    elif name == "augmented":
        part = t[..., 0]
        part += 0.125
        return part
    else:
        places = {"mask": t > 0.25, "column": (..., 0), "element": (0,) * t.dim(), "list": [0], "none": (None, 0)}
        t[places[name]] = 0.3
    return None


@step("writes")
def scattered(m, d):
    t = d.of(lambda one: is_float(one) and one.dim() == 2 and min(one.shape) > 1)
    name = d.choice(
        "index_put_", "index_add_", "scatter_", "scatter_add_", "index_copy_", "index_fill_", "put_", "masked_scatter_"
    )
    rows, source = torch.tensor([1, 0]), t.detach()[:2] * 0.5
    places = torch.zeros(t.shape, dtype=torch.int64)
    functions = {
        "index_put_": lambda: t.index_put_((rows,), source, accumulate=bool(d.number(2))),
        "index_add_": lambda: t.index_add_(0, rows, source, alpha=0.5),
        "scatter_": lambda: t.scatter_(1, places[:, :1], 0.25),
        "scatter_add_": lambda: t.scatter_add_(0, places, t.detach().clone()),
        "index_copy_": lambda: t.index_copy_(0, rows, source),
        "index_fill_": lambda: t.index_fill_(1, rows[:1], 0.5),
        "put_": lambda: t.put_(rows, source[0, :2]),
        "masked_scatter_": lambda: t.masked_scatter_(t.detach() > 0, t.detach().flip(0).contiguous()),
    }
    return functions[name]()


@step("writes")
def into_given(m, d):
    t = d.float()
    s = d.broadcast_with(t)
    given = torch.zeros_like(t + s)
    whole = given.view(-1).view(given.shape) if d.number(2) else given
    return [getattr(torch, d.choice("add", "mul", "maximum"))(t.detach(), s.detach(), out=whole.detach()), given]


@step("writes")
def through_views(m, d):
    t = d.filled_float()
    view = t.detach() if d.number(2) else t.data
    name = d.choice("row", "row of row", "transposed", "flat", "every second", "later")
    if name == "row":
        view[0].mul_(0.5)
    elif name == "row of row":
        view[:1][0].add_(0.25)
    elif name == "transposed":
        view.transpose(0, -1)[0].neg_()
    elif name == "flat":
        view.view(-1)[-1:].fill_(0.75)
    elif name == "every second":
        view[..., ::2].sub_(0.125)
    else:
        part = view[-1:]
        view.add_(0.5)
        return [part, part * 2]
    return t * 1


@step("writes")
def lists_at_once(m, d):
    t, s = d.float(), d.float()
    name = d.choice("_foreach_add", "_foreach_mul_", "_foreach_add_", "_foreach_tanh")
    got = getattr(torch, name)([t, s], *([] if name == "_foreach_tanh" else [0.5]))
    return None if name.endswith("_") else list(got)


@step("writes")
def metadata_in_place(m, d):
    t = d.of(lambda one: is_plain(one) and one.dim() == 2 and one.numel() > 0 and not one.requires_grad).clone()
    part = t[0]
    name = d.choice(
        "t_", "unsqueeze_", "squeeze_", "transpose_", "resize_", "as_strided_", "requires_grad_", "swapaxes_"
    )
    arguments = {"unsqueeze_": (0,), "transpose_": (0, 1), "resize_": (t.numel(),), "swapaxes_": (0, 1)}
    if name == "as_strided_":
        t.as_strided_((1, 2), (1, 1))
    else:
        getattr(t, name)(*arguments.get(name, ()))
    return [t, part, t * 2] if name != "requires_grad_" or t.is_floating_point() else [t]


@step("memory")
def other_memory(m, d):
    t = d.of(lambda one: is_float(one) and not one.requires_grad and one.numel() > 0)
    s = d.of(lambda one: is_float(one) and one.shape == t.shape and one.dtype == t.dtype)
    fresh = t * 1
    name = d.choice("data", "copy of data")  # Tensor.set_ is not recorded: README.md, limits
    fresh.data = s.detach().clone() if name == "copy of data" else s.detach().view(s.shape)
    return [fresh, fresh + 1]


@step("memory")
def shared(m, d):
    t = d.filled_float().detach().clone()
    row = t[0]
    t.share_memory_()
    t.add_(0.5)
    return [t, row, row * 2]


@step("memory")
def array_over_memory(m, d):
    t = d.of(lambda one: is_float(one) and one.dtype is torch.float32 and one.numel() > 0).detach().clone()
    array = t.numpy()
    name = d.choice("read", "written", "both")
    if name != "read":
        array *= 0.5
    return [t + 1] if name == "written" else [t, torch.from_numpy(array)[..., None] * 2]


@step("containers")
def containers(m, d):
    t, s = d.any(), d.any()
    held = {"a": (t, [s]), 3: {"b": t}}
    name = d.choice("tuple", "dict", "list", "generator")
    if name == "generator":
        return [one * 1 for one in (held["a"][0], held[3]["b"])]
    return {"tuple": [held["a"][0], t], "dict": [held[3]["b"]], "list": [*held["a"][1], s]}[name]


@step("containers")
def swapped_tensors(m, d):
    t = d.filled_float()
    pair = [t * 2, t - 1]
    pair[0], pair[1] = pair[1], pair[0]
    if not pair:
        raise UnfitError
    return pair
