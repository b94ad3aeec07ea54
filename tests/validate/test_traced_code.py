"""Forward traces its own code (`make_fx`, export, compile, `fx`, jit), or tries shapes out with fake tensors."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import grad
from torch.func import linearize
from torch.func import vmap
from torch.fx.experimental.proxy_tensor import make_fx

import pytest_torchlens as tl
from pytest_torchlens.capture import record
from pytest_torchlens.records import Status
from pytest_torchlens.validate import validate
from tests.models import Function

pytestmark = pytest.mark.filterwarnings("ignore")
X = torch.tensor([[1.0, -2.0, 0.5], [0.25, 3.0, -1.0]])


class Tracing(nn.Module):
    """Runs a function of itself and the input."""

    def __init__(self, body):
        super().__init__()
        self.body = body
        self.net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        self.scale = torch.tensor(2.0)

    def forward(self, x):
        return self.body(self, x)


def waves(v):
    return v.sin() * 2 + 1


def with_fx(mode, code, **options):
    """Trace code of the model, a function of the model, the input and a computed tensor; then run the graph."""

    def body(model, x):
        y = x.exp()
        traced = make_fx(lambda v: code(model, v, y), tracing_mode=mode, _allow_non_fake_inputs=True, **options)
        return traced(x + 1)(x * 2) + y

    return body


def writes(_model, v, y):
    y.add_(1)
    return v * 2


CODE = {
    "a function": lambda model, v, y: waves(v),
    "a module": lambda model, v, y: model.net(v),
    "a computed tensor": lambda model, v, y: v * y,
    "random numbers": lambda model, v, y: v + torch.rand(3),
    "a size": lambda model, v, y: v * v.shape[1],
    "vmap of grad": lambda model, v, y: vmap(grad(lambda row: row.sin().sum()))(v),
    "a graph": lambda model, v, y: make_fx(waves)(v)(v),
}


def exported(strict):
    return lambda model, x: torch.export.export(model.net, (x,), strict=strict).module()(x * 2)


def sizes_of_fakes(model, x):
    fake = FakeTensorMode()
    return model.net(x) * (fake.from_tensor(model.net[0].weight) @ fake.from_tensor(x).T).shape[0]


def under_a_fake_mode(model, x):
    with FakeTensorMode(allow_non_fake_inputs=True):
        width = (x * 2).shape[1] + nn.Linear(3, 7).out_features
    return model.net(x) * width


def leaked(model, x):
    kept = []
    make_fx(lambda v: (kept.append(v * 2), v)[1], tracing_mode="fake")(x)
    return model.net(x) * kept[0].shape[0]


def leaked_values(model, x):
    kept = []
    make_fx(lambda v: (kept.append(v * 2), v)[1])(x)
    return model.net(x) * kept[0]


def symbolic_of_a_closure(_model, x):
    y = x.exp()
    return torch.fx.symbolic_trace(lambda v: v * y)(x)


def compiled(backend, code):
    def body(model, x):
        torch._dynamo.reset()
        y = x.exp()
        return torch.compile(lambda v: code(model, v, y), backend=backend)(x) + y

    return body


PASS = {
    **{f"make_fx, real, {name}": with_fx("real", code) for name, code in CODE.items()},
    **{f"make_fx, fake, {name}": with_fx("fake", code) for name, code in CODE.items()},
    **{
        f"make_fx, symbolic, {name}": with_fx("symbolic", CODE[name])
        for name in ("a function", "a module", "a size", "random numbers")
    },
    "make_fx, real, a write": with_fx("real", writes),
    "make_fx before dispatch": with_fx("symbolic", CODE["a module"], pre_dispatch=True),
    "symbolic_trace": lambda model, x: torch.fx.symbolic_trace(model.net)(x),
    "symbolic_trace, a computed tensor": symbolic_of_a_closure,
    "an interpreter": lambda model, x: torch.fx.Interpreter(torch.fx.symbolic_trace(model.net)).run(x),
    "export": exported(strict=False),
    "export, not run": lambda model, x: (torch.export.export(model.net, (x,)), model.net(x))[1],
    "export and decompositions": lambda model, x: torch.export.export(model.net, (x,)).run_decompositions().module()(x),
    "sizes of fake tensors": sizes_of_fakes,
    "under a fake mode": under_a_fake_mode,
    "a fake tensor that is kept": leaked,
    "a tensor that is kept": leaked_values,
    "range": lambda model, x: torch.range(0, 2) * x,
    "range into a tensor": lambda model, x: torch.range(2, 0, -1, out=torch.empty(3)) * x,
    "jit.trace, a module": lambda model, x: torch.jit.trace(model.net.eval(), x)(x * 2),
}
COMPILED = {
    "export, strict": exported(strict=True),
    "a write": compiled("eager", writes),
    "a module": compiled("eager", CODE["a module"]),
}
LOWERED = {"a write": compiled("aot_eager", writes), "a module": compiled("aot_eager", CODE["a module"])}


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("body", PASS.values(), ids=PASS)
def test_it_is_proven(body, gradients):
    with torch.set_grad_enabled(gradients):
        verdict = validate(Tracing(body), (X,)).verdict
    assert verdict.status is Status.PASSED, verdict


@pytest.mark.slow
@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("body", COMPILED.values(), ids=COMPILED)
def test_with_the_compiler_it_is_proven(body, gradients):
    with torch.set_grad_enabled(gradients):
        verdict = validate(Tracing(body), (X,)).verdict
    assert verdict.status is Status.PASSED, verdict


@pytest.mark.slow
@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("body", LOWERED.values(), ids=LOWERED)
def test_code_that_the_compiler_lowered_is_other_code(body, gradients):
    """It calls the operators that the code's functions come to: what ran under the watch is not what runs."""
    with torch.set_grad_enabled(gradients):
        verdict = validate(Tracing(body), (X,)).verdict
    assert verdict.status is Status.UNPROVEN, verdict
    assert [part.name for part in verdict.parts if not part.status.ok] in ([], ["completeness"])
    assert verdict.part("completeness").reason == UNWATCHED


def jit_writes_to_a_view(_model, x):
    y = x.exp()
    part = y[0]

    def code(v):
        part.mul_(2)
        return v * 2

    return torch.jit.trace(code, (x,), check_trace=False)(x) + y


def jit_writes_to_an_attribute(model, x):
    def code(v):
        model.scale.mul_(2)
        return v * 2

    torch.jit.trace(code, (x,), check_trace=False)
    return x * model.scale


def jit_trains(model, x):
    return torch.jit.trace(model.net, x, check_trace=False)(x) + model.net(x)


WRITES = {
    "make_fx, fake": with_fx("fake", writes),
    "make_fx, symbolic": with_fx("symbolic", writes),
    "jit, a view": jit_writes_to_a_view,
    "jit, an attribute": jit_writes_to_an_attribute,
    "jit, statistics": jit_trains,
}


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("body", WRITES.values(), ids=WRITES)
def test_a_write_of_traced_code_is_recorded(body, gradients):
    with torch.set_grad_enabled(gradients):
        result = validate(Tracing(body), (X,))
    assert result.verdict.status in (Status.PASSED, Status.UNPROVEN), result.verdict
    assert "copy_" in [call.info.name for call in result.history.recording.calls]


def test_a_parameter_that_traced_code_writes_to_is_recorded():
    def body(model, x):
        bias = model.net[0].bias
        with torch.no_grad():
            make_fx(lambda v: (bias.mul_(0.5), v)[1], tracing_mode="fake", _allow_non_fake_inputs=True)(x)
        return model.net(x)

    assert validate(Tracing(body), (X,)).verdict.status is Status.PASSED


def test_what_traced_code_computes_is_no_operation():
    history = tl.log_forward_pass(Tracing(with_fx("fake", CODE["a module"])), X)
    assert [op.layer_type for op in history.find("*linear*")] == []
    assert not [call for call in history.recording.module_calls if call.address.startswith("net")]


@pytest.mark.parametrize("around", [FakeTensorMode, contextlib.nullcontext])
def test_a_model_of_fake_tensors_is_recorded(around):
    with (fake := FakeTensorMode()):
        model, x = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), torch.ones(2, 3)
    with fake if around is FakeTensorMode else around():
        assert tl.log_forward_pass(model, x).layer_list == ["input_1_0", "linear_1_1", "relu_1_2", "output_1_3"]


@pytest.mark.parametrize("gradients", [True, False])
def test_a_linearized_function_is_not_failed(gradients):
    def body(model, x):
        y, tangent = linearize(lambda v: model.net[0](v).sin(), x)
        return y + tangent(x)

    with torch.set_grad_enabled(gradients):
        verdict = validate(Tracing(body).eval(), (X,)).verdict
    assert verdict.status in (Status.PASSED, Status.UNPROVEN), verdict
    assert any("meta tensors" in one.message for one in verdict.unproven)


def test_a_linearized_batch_norm_is_not_failed():
    def body(model, x):
        y, tangent = linearize(nn.BatchNorm1d(3).eval(), x)
        return y + tangent(x)

    verdict = validate(Tracing(body).eval(), (X,)).verdict
    assert verdict.status is Status.UNPROVEN
    assert all("meta tensors" in one.message for one in verdict.unproven)


FUNCTIONAL = {
    "a write": lambda model, x: torch.func.functionalize(lambda v: v.clone().add_(1).mul_(2))(x),
    "a module": lambda model, x: torch.func.functionalize(lambda v: model.net[0](v).relu_())(x),
    "no views": lambda model, x: torch.func.functionalize(lambda v: v.exp().relu_()[0], remove="mutations_and_views")(
        x
    ),
    "inside vmap": lambda model, x: torch.vmap(torch.func.functionalize(lambda v: v.sin().add_(1)))(x),
}


@pytest.mark.parametrize("body", FUNCTIONAL.values(), ids=FUNCTIONAL)
def test_functional_code_is_one_operation(body):
    assert validate(Tracing(body), (X,)).verdict.status is Status.PASSED


MADE_BEFORE = {
    "function": torch.func.functionalize(lambda v: v.clone().add_(1).mul_(2)),
    "no views": torch.func.functionalize(lambda v: v.exp().relu_()[:2], remove="mutations_and_views"),
    "around vmap": torch.func.functionalize(torch.vmap(lambda v: v.sin() + 1)),
    "module": torch.func.functionalize(nn.Linear(3, 3)),
    "pullback": lambda x: PULLBACK(x)[0],
}
_, PULLBACK = torch.func.vjp(torch.sin, X)


@pytest.mark.parametrize("made", MADE_BEFORE.values(), ids=MADE_BEFORE)
def test_functional_code_made_before_is_not_shown(made):
    verdict = validate(Tracing(lambda model, x: model.net(made(x))), (X,)).verdict
    assert verdict.status is Status.UNPROVEN, verdict.words
    assert "a function transform that was made before the pass" in verdict.words


def test_a_write_of_functional_code_to_its_argument_is_seen():
    def body(_, x):
        y = x * 2
        torch.func.functionalize(lambda v: v.add_(1).sum())(y)
        return y

    found = validate(Tracing(body), (X,))
    assert found.verdict.status is Status.PASSED
    assert found.history["output_1"].parent_layers == ("mul_1_1", "functionalize_1_2")


def test_the_state_of_a_generator_is_no_missed_operation():
    def body(model, x):
        state = torch.clone(torch.random.get_rng_state())
        noise = torch.rand(3)
        torch.random.set_rng_state(state)
        return model.net(x) * noise

    assert validate(Tracing(body).eval(), (X,)).verdict.status is Status.PASSED


@pytest.mark.parametrize("number", [0, 1])
def test_memory_as_large_as_a_state_is_a_missed_operation(number):
    def body(model, x):
        with torch._C.DisableTorchFunction():
            hidden = torch.full(torch.get_rng_state().shape, number, dtype=torch.uint8)
        return model.net(x) + hidden.sum()

    assert validate(Tracing(body).eval(), (X,)).verdict.status is Status.FAILED


def test_a_fake_output_is_unproven():
    def body(model, x):
        return model.net(x), FakeTensorMode().from_tensor(x) * 2

    verdict = validate(Tracing(body), (X,)).verdict
    assert verdict.status is Status.UNPROVEN
    assert [one.message for one in verdict.unproven] == ["output '1' is among the fake tensors, without values"]


def test_a_hidden_operation_beside_traced_code_still_fails():
    def body(model, x):
        y = torch.export.export(model.net, (x,)).module()(x)
        with torch._C.DisableTorchFunction():
            return y + torch.ones(3)

    verdict = validate(Tracing(body), (X,)).verdict
    assert {"aten::add", "aten::ones"} <= {one.operation for part in verdict.failed_parts for one in part.failures}


def by_numpy(graph, inputs):
    def run(*args):
        (x,) = [arg for arg in args if isinstance(arg, torch.Tensor)]
        return (torch.from_numpy(np.maximum(x.numpy() * 2, 0) + 1),)

    return run


def by_same_functions(graph, inputs):
    return lambda *args: [torch.relu(next(arg for arg in args if isinstance(arg, torch.Tensor)) * 2) + 1]


def by_another_number(graph, inputs):
    return lambda *args: [torch.relu(next(arg for arg in args if isinstance(arg, torch.Tensor)) * 3) + 1]


def by_a_hidden_write(graph, inputs):
    def run(*args):
        (result,) = graph.forward(*args)
        with torch._C.DisableTorchFunction():
            return [result.mul_(1.5)]

    return run


BACKENDS = {
    "eager": ("eager", Status.PASSED, ["mul", "relu", "add", "mul"]),
    "the graph": (lambda graph, inputs: graph.forward, Status.PASSED, ["mul", "relu", "add", "mul"]),
    "the same functions": (by_same_functions, Status.PASSED, ["mul", "relu", "add", "mul"]),
    "another number": (by_another_number, Status.UNPROVEN, ["mul", "relu", "add", "mul"]),
    "NumPy": (by_numpy, Status.UNPROVEN, ["mul"]),
}


UNWATCHED = "the model runs compiled code, which PyTorch runs uncompiled while the dispatcher is watched"


@pytest.mark.parametrize(("backend", "status", "layers"), BACKENDS.values(), ids=BACKENDS)
def test_what_a_backend_made_of_the_code_is_judged_and_not_the_code(backend, status, layers):
    """Under a dispatch mode, as completeness needs, PyTorch runs the code itself."""
    torch.compiler.reset()  # it gives up compiling one code for many backends
    compiled = torch.compile(lambda x: torch.relu(x * 2) + 1, backend=backend)
    found = validate(Function(lambda x: compiled(x) * 2), (X,))
    assert found.verdict.status is status, found.verdict.words
    assert [one.layer_type for one in found.history if one.func_applied_name] == layers
    assert (found.verdict.part("completeness").reason == UNWATCHED) is (status is Status.UNPROVEN)


def test_no_backend_gets_what_runs_uncompiled_under_the_watch():
    graphs = []
    compiled = torch.compile(lambda x: torch.relu(x * 2) + 1, backend=lambda graph, _: graphs.append(graph) or graph)
    recording = record(Function(lambda x: compiled(x) * 2), (X,), watch=True)
    assert recording.compiled
    assert graphs == []


def test_a_backend_that_gives_other_values_by_the_same_calls_was_not_watched():
    compiled = torch.compile(lambda x: torch.relu(x * 2) + 1, backend=by_a_hidden_write)
    verdict = validate(Function(lambda x: compiled(x) * 2), (X,), parts=("completeness",)).verdict
    assert verdict.part("completeness").reason == UNWATCHED


def test_compiled_code_that_draws_and_fills_memory_is_judged():
    """Uninitialised memory is another one each time, and random numbers are drawn anew from the seed."""

    def code(x):
        return torch.dropout(x, 0.5, True) * torch.full((3,), float("nan")).nan_to_num(2.0), torch.empty(3)

    compiled = torch.compile(code, backend="eager")
    verdict = validate(Function(lambda x: (*compiled(x), torch.empty(2))), (X,), seed=3).verdict
    assert verdict.part("completeness").status is Status.PASSED, verdict.words


def test_compiled_code_that_cannot_run_again_is_not_proven():
    compiled = torch.compile(lambda x: torch.relu(x * 2) + 1, backend=by_numpy)
    verdict = validate(Function(lambda xs: compiled(next(xs)) * 2), (iter([X]),)).verdict
    assert verdict.part("completeness").reason == UNWATCHED


def test_an_operation_hidden_beside_compiled_code_still_fails():
    compiled = torch.compile(lambda x: torch.relu(x * 2) + 1, backend=by_numpy)

    def forward(x):
        with torch._C.DisableTorchFunction():
            hidden = x + 1
        return compiled(x) + hidden

    assert validate(Function(forward), (X,)).verdict.part("completeness").status is Status.FAILED


@pytest.mark.parametrize(
    "hidden", [torch._dynamo.utils.clone_input, torch.compile(torch.sin, backend="eager")], ids=["a copy", "a function"]
)
def test_what_code_of_the_compiler_makes_for_the_model_is_missed(hidden):
    """The compiler's own operations are excused; not one whose result the model reads."""

    def forward(self, x, indices):
        row = self.embedding(indices)
        with torch._C.DisableTorchFunction():
            made = hidden(row)
        return self.linear(x) + made

    net = type("Net", (nn.Module,), {"forward": forward})()
    net.embedding, net.linear = nn.Embedding(5, 3), nn.Linear(3, 3)
    verdict = validate(net, (X, torch.tensor([1, 2]))).verdict
    assert verdict.part("completeness").status is Status.FAILED


def halved_while_long(v):
    for _ in range(5):
        if v.norm() < 1:  # the graph breaks here
            break
        v = v * 0.5
    return v


@pytest.mark.parametrize("code", [halved_while_long, lambda v: v.exp() + v.sum() + v.mean()], ids=["loop", "three"])
def test_the_compiler_takes_no_function_of_ours_for_another(code):
    """It would compile the frame that makes a recorded call, and run its first function in place of later ones."""
    compiled = torch.compile(code, backend="eager")
    expected = compiled(X)
    model = Function(lambda x: compiled(x) * 2)
    assert torch.equal(tl.log_forward_pass(model, (X,))["output_1"].tensor_contents, expected * 2)
    found = validate(model, (X,))
    assert found.verdict.status is Status.PASSED, found.verdict.words
    assert len(found.history.recording.calls) > 4


class Unseen(nn.Module):
    def forward(self, x):
        with torch._C.DisableTorchFunction():
            return x + 1


def test_a_call_by_functional_call_is_no_transform():
    verdict = validate(Tracing(lambda model, x: torch.func.functional_call(Unseen(), {}, (x,)) * 2), (X,)).verdict
    assert verdict.status is Status.FAILED
    assert "aten::add ran before the first operation" in verdict.words
