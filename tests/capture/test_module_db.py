"""PyTorch's own database of modules: each module, in training and in evaluation, validated on its first inputs."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch.testing._internal.common_modules import module_db
from torch.utils._pytree import tree_leaves

from pytest_torchlens.validate import validate
from tests.models import failures
from tests.run.traced import assert_equal
from tests.run.traced import traced

MODULES = {module.name: module for module in module_db}
INPUTS_OF_EACH = 3


@pytest.fixture(autouse=True)
def _double_precision():
    """Lazy modules make their parameters late, and fractional pooling draws, in the default dtype."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def cases_of(name, training):
    """Yield model, positional and keyword arguments."""
    module = MODULES[name]
    make = module.module_inputs_func
    samples = make(module, device="cpu", dtype=torch.float64, requires_grad=False, training=training)
    for sample in itertools.islice(samples, INPUTS_OF_EACH):
        made, given = sample.constructor_input, sample.forward_input
        yield module.module_cls(*made.args, **made.kwargs).train(training), given.args, given.kwargs


def failures_of(name, training):
    """Return the number of inputs that were tried, and the failures."""
    found = [validate(*case) for case in cases_of(name, training)]
    return len(found), [failure for validation in found for failure in failures(validation.verdict)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", sorted(MODULES)[3::7])
def test_a_sample_of_modules(name, training):
    assert failures_of(name, training)[1] == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_module(capsys):
    tried = {(name, training): failures_of(name, training) for name in MODULES for training in (False, True)}
    total = sum(number for number, _ in tried.values())
    with capsys.disabled():
        print(f"\n{total} inputs of {len(MODULES)} modules validated")  # noqa: T201
    assert {case: found for case, (_, found) in tried.items() if found} == {}
    assert total > 600


def seeded(call):
    torch.manual_seed(1)
    return call()


def both_modes(test):
    return pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])(test)


@pytest.mark.filterwarnings("ignore")
@both_modes
def test_every_module_under_the_fixture(lens_trace, training):
    for name in MODULES:
        for case in cases_of(name, training):
            (twin, *given), (model, *inputs) = copy.deepcopy(case), case
            plain = seeded(lambda: twin(*given[0], **given[1]))  # noqa: B023 - called at once
            history = seeded(lambda: lens_trace(model, *inputs))  # noqa: B023
            outputs = [history[label].tensor_contents for label in history.output_layers]
            assert_equal(outputs, tree_leaves(plain))
            assert_equal(model.state_dict(), twin.state_dict())
            assert history.num_operations, name


@pytest.mark.filterwarnings("ignore")
@both_modes
def test_every_module_called_in_a_test(training):
    """Lazy modules make their parameters in the first call, which is passed over."""
    tried, failed = 0, []
    for name in MODULES:
        for case in cases_of(name, training):
            _, found = traced(lambda: [case[0](*case[1], **case[2]) for _ in range(2)], every=True)  # noqa: B023
            tried += len(found.results)
            failed += [(name, call) for call in found.results if call.verdict is None or not call.verdict.status.ok]
    assert failed == []
    assert tried > 600
