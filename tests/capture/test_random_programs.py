"""Random programs: the recorded run equals a plain run, validates, and has every edge that the results depend on."""

from __future__ import annotations

import hypothesis
import pytest
import torch

from pytest_torchlens.capture import Aliased
from pytest_torchlens.capture import Value
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture import record
from pytest_torchlens.capture.leaves import walk
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import Status
from pytest_torchlens.validate import PARTS
from pytest_torchlens.validate import validate
from tests.capture.random_programs import PROGRAMS
from tests.capture.random_programs import RandomProgram
from tests.capture.random_programs import Step
from tests.capture.random_programs import change
from tests.capture.random_programs import runs
from tests.capture.random_programs import sources_of

FITTING = PROGRAMS.filter(runs)
SETTINGS = hypothesis.settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.filter_too_much, hypothesis.HealthCheck.too_slow],
)


def run(program, call=torch.nn.Module.__call__, change_of=None):
    """Change the named source, run, and return the result and the whole state afterwards."""
    model, inputs = program.build()
    if change_of is not None:
        change(sources_of(model, inputs)[change_of])
    torch.manual_seed(6)
    with program.mode():
        output = call(model, *inputs)
    return output, left_behind(model, inputs, output)


def recorded(model, *inputs):
    return record(model, inputs).output


def left_behind(model, inputs, output):
    tensors = [tensor for _, tensor in (*walk(output), *walk(inputs), *model.state_dict(keep_vars=True).items())]
    return {
        "values": [fingerprint(tensor) for tensor in tensors],
        "memory": _memory(tensors),
        "ways": output["ways"],
        "autograd": [(t.requires_grad, _gradfunc(t), t._version) for t in tensors],
        "random": fingerprint(torch.get_rng_state()),
        "grads": [_known(parameter.grad) for parameter in model.parameters()],
        "modes": [(module.training, sorted(module.__dict__)) for module in model.modules()],
        "gradients": _gradients(model, inputs, output),
    }


def _known(tensor):
    return None if tensor is None else fingerprint(tensor)


def _gradfunc(tensor):
    """Return the name of the autograd node; PyTorch refuses it for some views after writes."""
    try:
        return type(tensor.grad_fn).__name__
    except RuntimeError:
        return "refused"


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
    try:
        followed = [tensor.sum() for tensor in output["tensors"] if tensor.grad_fn is not None]
        if not wanted or not followed:
            return []
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
        leading[op.label] = names.union(*(leading[edge.parent] for edge in op.edges))
    return [leading[label] for label in history.output_layers]


def missing_ancestors(program, history):
    """Return output and source, where changing the source changes the output but the graph has no way between them.

    A source whose change turns a branch, or the number of results, is not judged: these are Python's, and no edges.
    """
    found = ancestors(history)
    plain = run(program)[0]
    missing = []
    for source in sources_of(*program.build()):
        other = run(program, change_of=source)[0]
        if other["ways"] != plain["ways"] or len(other["tensors"]) != len(plain["tensors"]):
            continue
        for place, (one, two) in enumerate(zip(plain["tensors"], other["tensors"], strict=True)):
            if fingerprint(one) != fingerprint(two) and not _descends(history, place, source, found[place]):
                missing.append((place, source))
    return missing


def _descends(history, place, source, found):
    from_input = history[history.output_layers[place]].has_input_ancestor
    return source in found and (from_input or not source.startswith("input"))


def check(program):
    _, plain = run(program)
    _, traced = run(program, recorded)
    assert [name for name in plain if traced[name] != plain[name]] == []
    check_verdict(program)
    history = history_of(program)
    missing = missing_ancestors(program, history)
    assert missing == []


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
    assert [name for name in before if after[name] != before[name]] == []


@hypothesis.settings(SETTINGS, max_examples=60)
@hypothesis.given(FITTING)
def test_random_programs(program):
    check(program)


def test_views_of_parameters_written_without_gradients():
    steps = (Step("state_itself", number=3), Step("view", first=2, number=5), Step("overwritten", first=3))
    check(RandomProgram(steps))


SABOTAGED = {
    "view": ((Step("view", number=5), Step("pointwise", first=2, number=1)), 1, "input 0"),
    "write": ((Step("copies"), Step("view", first=2, number=5), Step("written", first=3, second=1)), 3, "input 1"),
    "parameter": ((Step("with_parameter", number=0),), 1, "weight"),
    "buffer": ((Step("state_itself"), Step("pointwise", first=2, number=1)), 1, "mean"),
}


@pytest.mark.parametrize(("steps", "returned", "source"), SABOTAGED.values(), ids=SABOTAGED)
def test_a_removed_edge_is_missed(steps, returned, source):
    program = RandomProgram(steps, returned)
    assert missing_ancestors(program, history_of(program)) == []
    history = history_of(program)
    for call in history.recording.calls:
        call.args = tuple(without(source, history.recording, arg) for arg in call.args)
    assert source in {name for _, name in missing_ancestors(program, history)}


def without(source, recording, arg):
    """Return an argument, or None in place of a read of the named source."""
    read = value_of(arg) if isinstance(arg, Value | Aliased) else None
    return None if any(read is s.value and s.name == source.removeprefix("input ") for s in recording.sources) else arg


@pytest.mark.slow
@hypothesis.settings(SETTINGS, max_examples=1000)
@hypothesis.given(FITTING)
def test_many_random_programs(program):
    check(program)
