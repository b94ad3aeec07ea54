"""Random programs: recorded as they run plainly, proved right, and with no edge less than the results depend on."""

from __future__ import annotations

import dataclasses

import hypothesis
import pytest
import torch

from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture import record
from pytest_torchlens.capture.leaves import walk
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import Status
from pytest_torchlens.validate import PARTS
from pytest_torchlens.validate import validate
from tests.cases.random_programs import PROGRAMS
from tests.cases.random_programs import RandomProgram
from tests.cases.random_programs import Step
from tests.cases.random_programs import change
from tests.cases.random_programs import runs
from tests.cases.random_programs import sources_of

FITTING = PROGRAMS.filter(runs)
SETTINGS = hypothesis.settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.filter_too_much, hypothesis.HealthCheck.too_slow],
)


def run(program, call=torch.nn.Module.__call__, change_of=None):
    """Return what a call returned and everything it left behind; the named source is changed before."""
    model, inputs = program.build()
    if change_of is not None:
        change(sources_of(model, inputs)[change_of])
    torch.manual_seed(6)
    with program.mode():
        output = call(model, *inputs)
    return output, left_behind(model, inputs, output)


def recorded(model, *inputs):
    return record(model, inputs, watch=True).output


def left_behind(model, inputs, output):
    tensors = [tensor for _, tensor in (*walk(output), *walk(inputs), *model.state_dict(keep_vars=True).items())]
    return {
        "values": [fingerprint(tensor) for tensor in tensors],
        "memory": _memory(tensors),
        "ways": output["ways"],
        "autograd": [(t.requires_grad, type(t.grad_fn).__name__, t._version) for t in tensors],
        "random": fingerprint(torch.get_rng_state()),
        "grads": [_known(parameter.grad) for parameter in model.parameters()],
        "modes": [(module.training, sorted(module.__dict__)) for module in model.modules()],
        "gradients": _gradients(model, inputs, output),
    }


def _known(tensor):
    return None if tensor is None else fingerprint(tensor)


def _memory(tensors):
    """Return for each tensor which is the first that is the same object, that shares its memory, and how it lies."""
    objects, storages = [id(t) for t in tensors], [t.untyped_storage().data_ptr() for t in tensors]
    return [
        (objects.index(id(t)), storages.index(storage), t.storage_offset(), t.stride(), t.shape)
        for t, storage in zip(tensors, storages, strict=True)
    ]


def _gradients(model, inputs, output):
    """Return the gradients of the outputs, or that PyTorch refuses to compute them."""
    wanted = [tensor for tensor in (*inputs, *model.parameters()) if tensor.is_leaf and tensor.requires_grad]
    followed = [tensor.sum() for tensor in output["tensors"] if tensor.grad_fn is not None]
    if not wanted or not followed:
        return []
    try:
        return [_known(grad) for grad in torch.autograd.grad(sum(followed), wanted, allow_unused=True)]
    except RuntimeError:
        return ["refused"]


def history_of(program):
    model, inputs = program.build()
    torch.manual_seed(6)
    with program.mode():
        return ModelHistory(record(model, inputs, keep="all"))


def ancestors(history):
    """Return for each output the inputs, buffers and parameters that lead to it."""
    leading = {}
    inputs = {label: f"input {place}" for place, label in enumerate(history.input_layers)}
    for op in history.operations:
        names = {inputs.get(op.layer_label), op.buffer_address, *op.parent_param_addresses} - {None}
        leading[op.layer_label] = names.union(*(leading[edge.parent] for edge in op.edges))
    return [leading[label] for label in history.output_layers]


def missing_ancestors(program, history):
    """Return output and source, where changing the source changes the output but the graph has no way between them.

    A source whose change turns a branch is not judged: the branch is Python's, and no edge of the graph.
    """
    found = ancestors(history)
    plain, _ = run(program)
    missing = []
    for source in sources_of(*program.build()):
        other, _ = run(program, change_of=source)
        if other["ways"] == plain["ways"]:
            pairs = zip(found, plain["tensors"], other["tensors"], strict=True)
            changed = [fingerprint(one) != fingerprint(two) for _, one, two in pairs]
            missing += [(n, source) for n, is_other in enumerate(changed) if is_other and source not in found[n]]
    return missing


def check(program):
    hypothesis.target(float(len(program.steps)))
    _, plain = run(program)
    _, traced = run(program, recorded)
    assert traced == plain
    check_verdict(program)
    history = history_of(program)
    assert missing_ancestors(program, history) == []
    for label, names in zip(history.output_layers, ancestors(history), strict=True):
        assert history[label].has_input_ancestor >= any(name.startswith("input") for name in names)


def check_verdict(program):
    model, inputs = program.build()
    before = left_behind(model, inputs, {"tensors": [], "ways": []})
    with program.mode():
        verdict = validate(model, inputs, seed=6).verdict
    assert [(part.name, f.operation, f.message) for part in verdict.parts for f in part.failures] == []
    assert [part.name for part in verdict.parts] == list(PARTS)
    assert {part.status for part in verdict.parts} <= {Status.PASSED, Status.NOT_APPLICABLE}
    after = left_behind(model, inputs, {"tensors": [], "ways": []})
    for unversioned in (before, after):
        del unversioned["autograd"]  # what was written is put back by another write
    assert after == before


@hypothesis.settings(SETTINGS, max_examples=60)
@hypothesis.given(FITTING)
def test_random_programs(program):
    check(program)


@pytest.mark.slow
@hypothesis.settings(SETTINGS, max_examples=1000)
@hypothesis.given(FITTING)
def test_many_random_programs(program):
    check(program)
