"""An error in our code, anywhere in a recording, is reported, and the call has its usual result."""

from __future__ import annotations

import importlib
import inspect
import threading
import warnings
from time import perf_counter

import pytest
import torch
from torch import nn

from pytest_torchlens.capture.calls import Call
from pytest_torchlens.capture.guarded import GuardedTracer
from pytest_torchlens.capture.guarded import Limits
from pytest_torchlens.capture.guarded import record_guarded
from pytest_torchlens.capture.patches import COMPILES
from pytest_torchlens.capture.threads import SharedTracer
from pytest_torchlens.capture.tracer import Tracer
from tests.models import Function

X = torch.linspace(-2.0, 2.0, 12).reshape(3, 4)


class Doubling(torch.autograd.Function):
    """Looks at its input in NumPy, so it becomes one operation."""

    @staticmethod
    def forward(ctx, x):
        return x.new_tensor(x.detach().numpy() * 2)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def forward(x):
    """Use every kind of call that is recorded in its own way."""
    counted.append(1)
    x = nn.functional.gumbel_softmax(Doubling.apply(x), dim=-1)
    x = x + torch.rand(4)
    if x.sum() > 0:
        x = nn.ReLU(inplace=True)(x)
    x[0] = 5
    return scripted(torch.nn.functional.multi_head_attention_forward(*[x] * 3, 4, 2, *ATTENTION)[0])


ATTENTION = (torch.ones(12, 4), None, None, None, False, 0.0, torch.eye(4), None)
counted: list[int] = []
with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)
    scripted = torch.jit.script(nn.Sequential(nn.Tanh()))


def run(call):
    torch.manual_seed(0)
    counted.clear()
    model = Function(forward)
    result = call(model)
    return result, torch.rand(2), len(counted)


def guarded(model, **limits):
    limits = Limits(**{"calls": 1000, "until": perf_counter() + 60} | limits)
    return record_guarded(nn.Module.__call__, model, (X,), {}, limits)


OURS = [
    "tensor_table.TensorTable.read",
    "tensor_table.TensorTable.add_output",
    "tensor_table.TensorTable.template",
    "tensor_table.TensorTable.recorded_values",
    "tensor_table.TensorTable.add_source",
    "tensor_table.TensorTable.about_to_write",
    "tensor_table.TensorTable.log_writes",
    "tensor_table.TensorTable.close",
    "tensor_table.TensorTable.expose",
    "function_tracer.FunctionTracer._finish",
    "tracer.Tracer._enter",
    "tracer.custom_info",
    "function_tracer.has_drawn",
    "guarded.info_of",
    "guarded.body_of",
    "opaque.OpaqueModule.info",
    "record.ModelMembers.of",
    "record._check_sources",
    "record.name_constants",
    "ambient.AmbientTable.number",
]


def breaks(*_, **__):
    raise RuntimeError("an insect")


@pytest.mark.parametrize("broken", OURS)
def test_an_error_in_our_code_changes_no_result(broken, monkeypatch):
    plain = run(lambda model: model(X))
    module, _, name = broken.partition(".")
    owner = importlib.import_module(f"pytest_torchlens.capture.{module}")
    for part in name.split(".")[:-1]:
        owner = getattr(owner, part)
    monkeypatch.setattr(owner, name.split(".")[-1], breaks)
    found, drawn, count = run(guarded)
    monkeypatch.undo()
    assert "an insect" in found.fault
    assert found.recording is None
    torch.testing.assert_close((found.result, drawn), plain[:2], rtol=0, atol=0)
    assert count == 1


def test_without_an_error_everything_is_recorded():
    plain = run(lambda model: model(X))
    found, drawn, count = run(guarded)
    assert (found.fault, found.stop_reason, count) == ("", "", 1)
    torch.testing.assert_close((found.result, drawn), plain[:2], rtol=0, atol=0)
    assert {"Doubling", "__setitem__", "Sequential"} <= {call.info.name for call in found.recording.calls}
    assert found.recording.missed_operations == []
    assert found.recording.num_dispatched >= len(found.recording.calls)


@pytest.mark.parametrize("calls", range(0, 30, 3))
def test_recording_may_stop_anywhere(calls):
    plain = run(lambda model: model(X))
    found, drawn, _ = run(lambda model: guarded(model, calls=calls))
    assert found.stop_reason == f"it makes more than {calls} calls"
    torch.testing.assert_close((found.result, drawn), plain[:2], rtol=0, atol=0)


def test_an_error_in_our_code_in_a_thread_of_the_model(monkeypatch):
    def in_thread(x):
        results = []
        thread = threading.Thread(target=lambda: results.append(x.cos() + 1))
        thread.start()
        thread.join()
        return results[0] * 2

    class Breaking(Call):
        def __init__(self, info, *rest):
            if info.name == "cos":
                breaks()
            super().__init__(info, *rest)

    monkeypatch.setattr("pytest_torchlens.capture.function_tracer.Call", Breaking)
    found = guarded(Function(in_thread))
    torch.testing.assert_close(found.result, (X.cos() + 1) * 2, rtol=0, atol=0)
    assert "an insect" in found.fault


def in_thread(x):
    """Return a square that another thread computes."""
    results = []
    thread = threading.Thread(target=lambda: results.append(counting_square(x)))
    thread.start()
    thread.join()
    return results[0]


def square(x):
    return x * x


def of_custom(x):
    return Doubling.apply(x) + 1


def of_scripted_function(x):
    return scripted_double(x) + 1


def of_module(x):
    return nn.ReLU()(counting_square(x))


def of_compiled_module(x):
    return torch.compile(nn.ReLU(), backend="eager")(counting_square(x))


def of_vmap(x):
    return torch.vmap(counting_square)(x) + 1


def of_grad(x):
    return torch.func.grad(lambda y: counting_square(y).sum())(x) + 1


def of_vjp(x):
    return torch.func.vjp(counting_square, x)[1](torch.ones_like(x))[0]


def of_pullback_in_vmap(x):
    pull = torch.func.vjp(counting_square, x)[1]
    return torch.vmap(lambda y: pull(y)[0])(torch.ones(2, 3, 4))


def of_scripted_module(x):
    return scripted(x) + 1


def counting_square(x):
    counted.append(1)
    return x * x


with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)
    scripted_double = torch.jit.script(square)


def of_nested(x):
    return torch.nested.nested_tensor([counting_square(x), x]).to_padded_tensor(0.0)


def of_set(x):
    return torch.empty(0).set_(counting_square(x)) + 1


def of_resized_storage(x):
    with torch.no_grad():
        y = counting_square(x) + 1
        z = y * 2
        y.untyped_storage().resize_(0)
        return z


def of_storage_write(x):
    y = counting_square(x)
    y.untyped_storage().fill_(0)
    return y + 1


def of_swap(x):
    with torch.no_grad():
        y, z = counting_square(x), x + 1
        torch.utils.swap_tensors(y, z)
        return y - 2 * z


def of_backward(x):
    leaf = x.detach().clone().requires_grad_()
    counting_square(leaf).sum().backward()
    return leaf.grad * 2


def of_jit_tracing(x):
    return torch.jit.trace(counting_square, x)(x) + 1


cond_op = torch.ops.higher_order.cond


def of_operator(x):
    return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


USES = {
    "call_unseen": [of_nested],
    "call_set": [of_set],
    "call_resize": [of_resized_storage],
    "call_storage_write": [of_storage_write],
    "call_swap": [of_swap],
    "call_backward": [of_backward],
    "call_jit_tracing": [of_jit_tracing],
    "call_operator": [of_operator],
    "call_module": [of_module, of_scripted_module, of_compiled_module],
    "call_custom": [of_custom],
    "call_opaque": [of_scripted_function],
    "call_transform": [of_vmap, of_grad],
    "call_vjp": [of_vjp, of_pullback_in_vmap],
    "call_pullback": [of_vjp],
}
OPAQUE = [of_custom, of_scripted_function, of_vmap, of_grad, of_vjp, of_pullback_in_vmap, of_scripted_module]
EACH = [pytest.param(name, use, id=f"{name}-{use.__name__}") for name, uses in USES.items() for use in uses]


def assert_only_the_recording_stops(use):
    """Run a model with one of our functions broken: its result, and how often its code runs, stay the same."""
    counted.clear()
    found = guarded(Function(use))
    runs = len(counted)
    counted.clear()
    torch.testing.assert_close(found.result, use(X), rtol=0, atol=0)
    assert "an insect" in found.fault or found.stop_reason == COMPILES
    assert found.recording is None
    assert runs == len(counted)


def test_every_call_of_the_tracer_is_guarded():
    calls = {name for name in dir(Tracer) if name.startswith("call_")}
    assert calls == set(USES)
    for name in calls:
        assert getattr(GuardedTracer, name) is not getattr(SharedTracer, name)
        assert list(inspect.signature(getattr(Tracer, name)).parameters)[:4] == ["self", "func", "args", "kwargs"]


@pytest.mark.filterwarnings("ignore:.*nested tensors")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("name", "use"), EACH)
def test_an_error_in_a_call_method_only_stops_the_recording(name, use, when, monkeypatch):
    original = getattr(Tracer, name)

    def breaking(self, *arguments):
        if when == "after":
            original(self, *arguments)
        raise RuntimeError("an insect")

    monkeypatch.setattr(Tracer, name, breaking)
    assert_only_the_recording_stops(use)


NAMES = {of_vmap: "vmap", of_grad: "grad", of_vjp: "vjp", of_custom: "Doubling", of_scripted_function: "square"}


@pytest.mark.parametrize("use", NAMES, ids=lambda use: use.__name__)
def test_an_opaque_operation_has_the_name_of_its_function(use):
    recording = guarded(Function(use)).recording
    assert next(call.info.name for call in recording.calls if call.info.opaque) == NAMES[use]


@pytest.mark.parametrize("use", OPAQUE)
def test_an_error_in_our_facts_about_a_call(use, monkeypatch):
    for module in ("tracer", "opaque"):
        monkeypatch.setattr(f"pytest_torchlens.capture.{module}.custom_info", breaks)
    assert_only_the_recording_stops(use)


@pytest.mark.parametrize("use", [of_vmap, of_grad, of_vjp, of_pullback_in_vmap])
@pytest.mark.parametrize("name", ["info_of", "tensors", "is_functorch_wrapped_tensor", "_InsideTransform.__init__"])
def test_an_error_in_our_code_inside_a_transform(name, use, monkeypatch):
    monkeypatch.setattr(f"pytest_torchlens.capture.opaque.{name}", breaks)
    assert_only_the_recording_stops(use)


@pytest.mark.parametrize("name", ["threads.SharedTracer.for_thread", "dispatch_watch.DispatchWatch.for_thread"])
def test_an_error_in_our_code_where_the_model_starts_a_thread(name, monkeypatch):
    monkeypatch.setattr(f"pytest_torchlens.capture.{name}", breaks)
    assert_only_the_recording_stops(in_thread)


def of_untraced_operation(x):
    with torch._C.DisableTorchFunction():
        return counting_square(x) + 1


@pytest.mark.parametrize("name", ["_name", "_stack", "Makers.note"])
def test_an_error_in_our_code_where_the_dispatcher_is_watched(name, monkeypatch):
    monkeypatch.setattr(f"pytest_torchlens.capture.dispatch_watch.{name}", breaks)
    assert_only_the_recording_stops(of_untraced_operation)


@pytest.mark.parametrize("name", list(USES))
def test_errors_of_the_model_are_raised(name):
    def raises(x):
        raise ArithmeticError("the model's own")

    class Raising(torch.autograd.Function):
        forward = staticmethod(lambda ctx, x: raises(x))

    calls = {
        "call_custom": Raising.apply,
        "call_opaque": lambda x: scripted_double("no tensor"),
        "call_transform": torch.vmap(raises),
        "call_pullback": lambda x: torch.func.vjp(counting_square, x)[1](torch.ones(7)),
        "call_module": lambda x: scripted("no tensor"),
        "call_vjp": lambda x: torch.func.vjp(raises, x),
        "call_unseen": lambda x: torch.nested.nested_tensor([x, "no tensor"]),
        "call_set": lambda x: (x * 2).set_("no storage"),
        "call_resize": lambda x: (x * 2).untyped_storage().resize_("no size"),
        "call_storage_write": lambda x: (x * 2).untyped_storage().fill_("no number"),
        "call_swap": lambda x: torch.utils.swap_tensors(x * 2, 3),
        "call_backward": lambda x: x.sum().backward(),
        "call_operator": lambda x: cond_op(x.sum() > 0, raises, raises, (x.clone().requires_grad_(),)),
    }
    with pytest.raises(Exception) as plainly:  # noqa: PT011 - whatever it is
        calls[name](X)
    with pytest.raises(type(plainly.value)):
        guarded(Function(calls[name]))
