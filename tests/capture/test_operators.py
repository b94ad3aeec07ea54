"""Operators of other libraries, and writes that only their schemas declare."""

from __future__ import annotations

import torch

from tests.capture.programs import Programs
from tests.capture.programs import check

PROGRAMS = Programs()


@torch.library.custom_op("lens_tests::store_", mutates_args=("cache",))
def store_(key: torch.Tensor, cache: torch.Tensor) -> None:
    cache.add_(key)


@torch.library.custom_op("lens_tests::count_", mutates_args=("cache",))
def count_(cache: torch.Tensor) -> int:
    cache.add_(1)
    return 1


@torch.library.custom_op("lens_tests::noisy", mutates_args=())
def noisy(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand(6)


LIBRARY = torch.library.Library("lens_tests_by_keyword", "DEF")
LIBRARY.define("put(Tensor key, *, Tensor(a!) cache) -> ()")
LIBRARY.impl("put", lambda key, *, cache: (cache.add_(key), None)[1], "CPU")


@PROGRAMS.add(
    """
    input_1
    zeros_1
    store_1: input_1 zeros_1
    mul_1: store_1
    add_1: mul_1 input_1
    output_1: add_1
    """,
    mode="no_grad",
)
def named_as_if_it_wrote_its_first_argument(x):
    cache = torch.zeros(6)
    store_(x, cache)
    return cache * 2 + x


@PROGRAMS.add(
    """
    input_1
    zeros_1
    put_1: input_1 zeros_1
    mul_1: put_1
    output_1: mul_1
    """,
    mode="no_grad",
)
def writes_what_it_is_given_by_keyword(x):
    cache = torch.zeros(6)
    torch.ops.lens_tests_by_keyword.put(x, cache=cache)
    return cache * 2


@PROGRAMS.add(
    """
    input_1
    clone_1: input_1
    count_1: clone_1
    add_1: count_1
    output_1: add_1
    """,
    mode="no_grad",
)
def writes_and_returns_a_number(x):
    cache = x.clone()
    return cache + count_(cache)


@PROGRAMS.add(
    """
    input_1
    noisy_1: input_1
    noisy_2: input_1
    add_1: noisy_1 noisy_2
    output_1: add_1
    """,
    mode="no_grad",
)
def draws_without_saying_so(x):
    return noisy(x) + noisy(x)


@PROGRAMS.add(
    """
    input_1
    mul_1: input_1
    getitem_1: mul_1
    clamp_1: mul_1
    add_1: getitem_1 ~clamp_1
    output_1: add_1
    """,
    mode="no_grad",
)
def target_given_by_its_name(x):
    y = x * 1
    first = y[:1]
    torch.clamp_(min=5, input=y)
    return first + 1


@PROGRAMS.add(
    """
    input_1
    zeros_1
    ones_1
    view_1: input_1
    batchnormupdatestats_1: view_1 zeros_1 ones_1
    batchnormupdatestats_2: view_1 zeros_1 ones_1
    add_1: zeros_1 ~batchnormupdatestats_1 ones_1
    output_1: add_1
    """,
    mode="no_grad",
)
def statistics_updated_by_themselves(x):
    mean, variance = torch.zeros(3), torch.ones(3)
    torch.batch_norm_update_stats(x.view(2, 3), mean, variance, 0.1)
    return mean + variance


@PROGRAMS.parametrize()
def test_graph(program, mode):
    check(program, mode)
