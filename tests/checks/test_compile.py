from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo import utils
from torch._dynamo.backends.registry import lookup_backend
from torch._dynamo.backends.registry import register_backend

from pytest_torchlens.checks.compile import run
from pytest_torchlens.checks.output_gradients import moved
from pytest_torchlens.checks.pieces import Difference
from pytest_torchlens.checks.pieces import smallest
from pytest_torchlens.checks.pieces import unexplained
from pytest_torchlens.records import CheckStatus
from tests.checks.subjects import TwoLayers
from tests.checks.subjects import check
from tests.checks.subjects import line_of
from tests.checks.subjects import subject_of

X = torch.rand(2, 8, generator=torch.Generator().manual_seed(0))


def replacing(target: str, other: Callable[..., Any]) -> Callable[..., Any]:
    """Return a backend that compiles another function in place of those of a name."""

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        for node in graph.graph.nodes:
            if node.op in ("call_function", "call_method") and getattr(node.target, "__name__", node.target) == target:
                node.op, node.target = "call_function", other
        graph.recompile()
        return lookup_backend("aot_eager")(graph, inputs)

    return backend


def refuses_sin(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """A backend that lacks an operation."""
    if any("sin" in str(node.target) for node in graph.graph.nodes):
        raise NotImplementedError("sin has no kernel\nand more lines")
    return graph.forward


class WrongGradient(torch.autograd.Function):
    """Cosine with the gradient of the sine."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(x)
        return x.cos()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient * ctx.saved_tensors[0].cos()


def cos_with_wrong_gradient(x: torch.Tensor) -> torch.Tensor:
    return WrongGradient.apply(x)  # type: ignore[no-any-return]


def interpreted(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """A backend that runs a graph as it is, but for the gradient of the cosine."""
    for node in graph.graph.nodes:
        if getattr(node.target, "__name__", node.target) == "cos":
            node.op, node.target = "call_function", cos_with_wrong_gradient
    graph.recompile()
    return graph.forward


register_backend(replacing("tanh", lambda x: x.tanh() + 1e-3), name="lens_test_tanh")  # type: ignore[arg-type]
register_backend(replacing("tanh", lambda x: x.tanh() * (1 + 1e-7)), name="lens_test_rounds")  # type: ignore[arg-type]
register_backend(refuses_sin, name="lens_test_refuses")  # type: ignore[arg-type]
register_backend(interpreted, name="lens_test_gradient")  # type: ignore[arg-type]


class Waves(TwoLayers):
    """Layers with a tanh, a sine and a cosine between them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).relu()
        x = torch.tanh(x)  # the tanh
        x = x.sin()  # the sine
        x = x.cos()  # the cosine
        return self.last(x)


class Breaks(Waves):
    """Breaks the graph, and is compiled anew for each of its blocks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        torch._dynamo.graph_break()  # the break
        return y.exp()


class Untraceable(Waves):
    """Raises when it is compiled."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        if torch.compiler.is_compiling():
            y = y @ x  # wrong shapes
        return y


class Chooses(nn.Module):
    """Chooses between the tanh of its input and a number as large, but for rounding."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.tanh()
        one = torch.exp(x) - torch.exp(-x)
        other = torch.exp(x) + torch.exp(-x)
        chosen = y > one / other  # the choice
        return torch.where(chosen, x, -x)


def test_an_operation_that_is_compiled_to_another_is_found() -> None:
    result = check("compile", Waves().eval(), X, backend="lens_test_tanh")
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# the tanh")
    assert result.failure is not None
    assert "compiled alone: this operation" in result.failure.cause


def test_an_operation_that_is_another_one_when_compiled_is_found() -> None:
    class Approximate(Waves):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            torch._dynamo.graph_break()
            x = x * (3 if torch.compiler.is_compiling() else 2)  # the factor
            return self.last(x.sin())  # type: ignore[no-any-return]

    result = check("compile", Approximate().eval(), X)
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# the factor")
    assert result.unseen == ()
    assert result.failure is not None
    assert "captures does something else" in result.failure.cause


def test_an_operation_whose_gradient_is_compiled_to_another_is_found() -> None:
    result = check("compile", Waves().eval(), X, backend="lens_test_gradient")
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# the cosine")
    assert result.failure is not None
    assert result.failure.message.startswith("the gradient of 'first.weight' differs")
    assert (
        check("compile", Waves().eval(), X, backend="lens_test_gradient", gradients=False).status is CheckStatus.PASSED
    )


class OffWhenPlain(TwoLayers):
    """Has the wrong gradient where it is not compiled."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).cos()
        if not torch.compiler.is_compiling() and x.requires_grad:
            x.register_hook(lambda gradient: gradient * 1.5)  # type: ignore[no-untyped-call]
        return self.last(x)  # type: ignore[no-any-return]


def test_differences_in_float64_say_which_gradient_is_off() -> None:
    compiled_off = check("compile", Waves().eval(), X, backend="lens_test_gradient").failure
    plain_off = check("compile", OffWhenPlain().eval(), X).failure
    assert compiled_off is not None
    assert plain_off is not None
    assert compiled_off.message.endswith(": the plain one is what differences give in float64")
    assert plain_off.message.endswith("what differences give in float64, so the plain one is off")


def test_a_backend_that_raises_fails_at_the_operation_that_it_lacks() -> None:
    result = check("compile", Waves().eval(), X, backend="lens_test_refuses")
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# the sine")
    assert result.failure is not None
    assert result.failure.message == (
        "torch.compile with backend lens_test_refuses raised NotImplementedError: sin has no kernel"
    )


def test_a_line_that_cannot_be_traced_is_named() -> None:
    result = check("compile", Untraceable().eval(), X)
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# wrong shapes")


def test_a_model_that_is_compiled_to_the_same_passes() -> None:
    result = check("compile", Waves().eval(), X)
    assert result.status is CheckStatus.PASSED
    assert result.compared == 5
    assert result.notes == ("2 graphs, 0 graph breaks, 0 recompilations",)


def test_rounding_passes() -> None:
    assert check("compile", Waves().eval(), X, backend="lens_test_rounds").status is CheckStatus.PASSED


def test_graph_breaks_are_counted_with_their_lines_and_fail_a_full_graph() -> None:
    result = check("compile", Breaks().eval(), X, gradients=False)
    assert result.status is CheckStatus.PASSED
    assert result.notes[0] == "2 graphs, 1 graph break, 0 recompilations"
    assert "test_compile.py:" in result.notes[1]
    with_gradients = check("compile", Breaks().eval(), X)
    assert with_gradients.notes[0] == "4 graphs, 1 graph break, 0 recompilations"  # the second time with gradients
    full = check("compile", Breaks().eval(), X, fullgraph=True)
    assert full.status is CheckStatus.FAILED
    assert line_of(full).endswith("# the break")


def test_functions_that_are_compiled_anew_are_counted() -> None:
    class Block(nn.Module):
        def __init__(self, factor: int) -> None:
            super().__init__()
            self.factor = factor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch._dynamo.graph_break()
            return x * self.factor

    result = check("compile", nn.Sequential(Block(2), Block(3)), X)
    assert result.status is CheckStatus.PASSED
    assert result.notes[0] == "2 graphs, 1 graph break, 1 recompilation"
    assert any(note.startswith("recompiled") and "in forward" in note and "factor" in note for note in result.notes)


def test_the_compiler_and_the_model_stay_as_they_were() -> None:
    model = Breaks().eval()
    compiled = torch.compile(model, backend="aot_eager")
    with torch.no_grad():
        expected = compiled(X)
    counters = {key: dict(counts) for key, counts in utils.counters.items()}
    attributes = {name: {*vars(tensor)} for name, tensor in model.named_parameters()}
    with torch.compiler.set_stance("force_eager"):
        assert check("compile", model, X, gradients=False).status is CheckStatus.PASSED
    assert check("compile", model, X, backend="lens_test_tanh").status is CheckStatus.FAILED
    assert {key: dict(counts) for key, counts in utils.counters.items()} == counters
    assert {name: {*vars(tensor)} for name, tensor in model.named_parameters()} == attributes
    with torch.no_grad(), torch.compiler.set_stance("fail_on_recompile"):
        assert torch.equal(compiled(X), expected)


def test_outputs_are_compared_though_no_time_is_left_for_gradients() -> None:
    subject = subject_of(Waves().eval(), X)

    def last(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        subject.deadline = 0.0
        return graph.forward

    register_backend(last, name="lens_test_last")  # type: ignore[arg-type]
    with torch.no_grad():
        result = run(subject, backend="lens_test_last")
    assert result.status is CheckStatus.PASSED
    assert result.compared == 1
    assert result.unseen[0].startswith("gradients: it did not end within its limit of time")


def test_a_decision_on_a_gap_below_rounding_is_a_tie() -> None:
    result = check("compile", Chooses(), X, backend="lens_test_rounds")
    assert result.status is CheckStatus.TIE
    assert line_of(result).endswith("# the choice")


def test_nothing_compiled_is_not_applicable() -> None:
    class Eager(Waves):
        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x)

    result = check("compile", Eager().eval(), X)
    assert result.status is CheckStatus.NOT_APPLICABLE
    assert "nothing was compiled" in result.reason


@pytest.mark.slow
def test_inductor_without_a_compiler_is_not_applicable() -> None:
    import torch._inductor.config as inductor

    with inductor.patch({"cpp.cxx": ("no-such-compiler",), "force_disable_caches": True}):
        result = check("compile", Waves().eval(), X, backend="inductor")
    assert result.status is CheckStatus.NOT_APPLICABLE
    assert "no C++ compiler" in result.reason


def test_an_unknown_backend_is_named() -> None:
    result = check("compile", Waves().eval(), X, backend="aot_egaer")
    assert result.status is CheckStatus.ERROR
    assert result.failure is not None
    assert "did you mean 'aot_eager'" in result.failure.message


def test_random_numbers_are_not_applicable() -> None:
    result = check("compile", nn.Sequential(nn.Linear(8, 4), nn.Dropout()).train(), X)
    assert result.status is CheckStatus.NOT_APPLICABLE


@pytest.mark.parametrize(("needed", "found"), [({5}, [5]), ({2, 6}, [2, 3, 4, 5, 6]), ({0}, [0]), ({9}, [9])])
def test_halving_ends_at_the_smallest_run_that_differs(needed: set[int], found: list[int]) -> None:
    result = smallest(range(10), lambda piece: Difference("", "") if needed <= {*piece} else None)
    assert [*result.numbers] == found
    nothing = smallest(range(10), lambda piece: None)
    assert nothing.difference is None
    assert len(nothing.numbers) == 10


def test_a_jump_of_a_gradient_that_rounding_makes_too_is_explained() -> None:
    plain = {"weight": torch.rand(2000)}
    jump = torch.zeros(2000).index_fill_(0, torch.tensor([7]), 0.5)
    other = {"weight": plain["weight"] + jump}

    def exact() -> dict[str, torch.Tensor]:
        return {"weight": plain["weight"].double()}

    assert [found.name for found in unexplained(other, plain, exact)] == ["weight"]
    assert not [*unexplained(other, plain, exact, lambda seed: other if seed == 3 else plain)]
    assert [*unexplained(other, plain, exact, lambda seed: {"weight": plain["weight"] + jump / 4})]


def test_numbers_move_by_one_unit_in_the_last_place() -> None:
    tensor = torch.rand(100) + 1
    (there, again) = (moved({"x": tensor}, seed)["x"] for seed in (0, 0))
    assert torch.equal(there, again)
    distance = (there - tensor).abs() / torch.finfo(torch.float32).eps
    assert float(distance.min()) >= 1
    assert float(distance.max()) <= 2


class TwiceWhenCompiled(torch.autograd.Function):
    """Has no form in fx, so that no float64 reference is there."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient * (2.0 if torch.compiler.is_compiling() else 1.0)


def test_a_gradient_that_is_far_off_fails_without_a_reference_in_float64() -> None:
    class Custom(TwoLayers):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(TwiceWhenCompiled.apply(self.first(x)).sin())  # type: ignore[no-any-return]

    result = check("compile", Custom().eval(), X)
    assert result.status is CheckStatus.FAILED
    assert result.failure is not None
    assert result.failure.message.startswith("the gradient of 'first.weight' differs")
