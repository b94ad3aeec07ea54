"""More statements for random programs: memory that moves, results of several tensors, generators, sizes from values."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.capture.random_programs import STATEMENTS
from tests.capture.random_programs import programs_of
from tests.capture.random_programs import statement
from tests.models import Squared


def has_elements(t):
    return t.dim() > 0 and 0 not in t.shape


@statement
def moved(m, t, s, n):
    fresh = t.detach() * 1
    if n % 3 == 0:
        fresh.set_(s.detach())
    elif n % 3 == 1:
        fresh.resize_(max(t.numel() // 2, 1))
    else:
        view = fresh.view(-1)
        fresh.data = s.detach() * 2
        return [fresh, view]
    return [fresh]


@statement
def several(m, t, s, n):
    if not has_elements(t):
        return []
    dim = n % t.dim()
    functions = (
        lambda: t.max(dim),
        lambda: t.sort(dim),
        lambda: t.topk(1, dim),
        lambda: torch.var_mean(t, dim, correction=0),
        lambda: torch.cummax(t, dim),
        lambda: torch.aminmax(t, dim=dim),
    )
    return [tensor.float() for tensor in functions[n % 6]()]


@statement
def several_given(m, t, s, n):
    if not has_elements(t):
        return []
    values, places = torch.empty(0), torch.empty(0, dtype=torch.int64)
    with torch.no_grad():
        torch.max(t.detach(), n % t.dim(), out=(values, places))
    return [values, places.float()]


@statement
def drawn(m, t, s, n):
    generator = torch.Generator().manual_seed(n)
    functions = (
        lambda: torch.rand(t.shape, generator=generator),
        lambda: torch.randn_like(t),
        lambda: t.detach().clone().normal_(generator=generator),
        lambda: torch.bernoulli(t.detach().sigmoid()),
        lambda: t.flatten()[torch.randperm(t.numel())],
        lambda: F.dropout(t, 0.25, training=True),
    )
    return [functions[n % 6]()]


@statement
def overlapping(m, t, s, n):
    if not has_elements(t) or t.shape[-1] < 2:
        return []
    if n % 3 == 0:
        t[..., 1:].copy_(t[..., :-1].flip(-1))
    elif n % 3 == 1:
        t[..., 0].add_(t[..., 1])
    else:
        torch.add(t[..., 0], 1.0, out=t[..., 1])
    return []


@statement
def statistics(m, t, s, n):
    if t.dim() != 2 or t.shape[1] != 3 or t.shape[0] < 2:
        return []
    return [F.batch_norm(t, m.norm.running_mean, m.norm.running_var, training=bool(n % 2), momentum=0.3)]


@statement
def parameter_written(m, t, s, n):
    with torch.no_grad():
        m.weight.mul_(0.5) if n % 2 else m.weight.data[0].copy_(m.weight[1])
    return [m.weight @ m.weight.t()]


@statement
def custom(m, t, s, n):
    return [Squared.apply(t)]


@statement
def sized(m, t, s, n):
    chosen = t[t > 0.2] if n % 2 else t.flatten().index_select(0, (t.flatten() > 0.2).nonzero().flatten())
    return [chosen.sum() if chosen.numel() > n % 4 else t.sum() * 2]


@statement
def decided(m, t, s, n):
    if not t.numel():
        return []
    number = (float, lambda a: a.item(), lambda a: a.tolist(), lambda a: a.detach().numpy()[()])[n % 4](t.sum())
    return [t * 2 if number > 0.1 else t - 1]


@statement
def strided(m, t, s, n):
    if not has_elements(t):
        return []
    functions = (
        lambda: t.as_strided((1,), (1,), t.storage_offset()),
        lambda: t.swapaxes(0, -1),
        lambda: torch.broadcast_to(t, (2, *t.shape)),
        lambda: t.unflatten(0, (1, t.shape[0])),
        lambda: t.view_as(t),
    )
    return [functions[n % 5]()]


PROGRAMS = programs_of(sorted(STATEMENTS))
