from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from pytest_torchlens.recorder import ExpectationError
from pytest_torchlens.recorder import Recorder
from tests.recorder.training import small_model
from tests.recorder.training import train


class Sabotaged(nn.Module):
    """Trains well until a step, from which on its hidden layer is multiplied by a factor."""

    def __init__(self, step: int, factor: float):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.relu, self.last = nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)
        self.step, self.factor, self.calls = step, factor, 0

    def forward(self, x):
        self.calls += 1
        hidden = self.relu(self.first(x))
        return self.last(hidden * self.factor if self.calls > self.step else hidden)


def failure(model: nn.Module, steps: int = 30, lr: float = 0.05, **expected) -> ExpectationError:
    recorder = Recorder()
    recorder.track_layers(model)
    recorder.track_parameters(model)
    recorder.expect(**expected)
    with pytest.raises(ExpectationError) as caught, recorder:
        train(model, steps, recorder, lr)
    return caught.value


def test_what_holds_is_silent():
    with Recorder() as recorder:
        model = small_model()
        recorder.track_layers(model)
        recorder.track_parameters(model)
        recorder.expect(
            no_nan=True,
            grad_norm="<1e3",
            grad_growth="<100",
            dead_units="<90%",
            update_ratio="1e-8..1e-1",
            output_norm="<1e4",
            gradients_arrive=True,
            parameters_move=True,
            loss="<10",
            loss_decreases=">20%",
        )
        train(model, 30, recorder)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_nan_fails_at_its_step_with_layer_and_value(bad: float):
    error = failure(Sabotaged(7, bad), no_nan=True)
    # The step is none of the recorded ones, which are every tenth: what is expected is looked at in each.
    assert (error.step, error.item, error.expectation, error.value) == (7, "last", "no_nan", 6)
    assert "step 7, output of 'last': 6 of 6 values are NaN or infinite; expected no_nan=True" in str(error)


def test_an_exploding_gradient():
    error = failure(Sabotaged(7, 1e4), grad_norm="<1e3")
    assert (error.step, error.expectation) == (7, "grad_norm")
    assert error.value > 1e3
    assert "step 7, output gradient of 'last': gradient norm" in str(error)
    assert "expected grad_norm=<1e3" in str(error)
    assert "before: " in str(error)
    assert failure(Sabotaged(7, math.inf), grad_norm="<1e3").value == math.inf


def test_a_gradient_that_grows_in_one_step():
    error = failure(Sabotaged(12, 1e3), grad_growth="<100")
    assert error.step == 12
    assert "times the median of the last 10" in str(error)


def test_dead_units_count_when_they_were_zero_for_the_whole_window():
    error = failure(Sabotaged(0, 1.0), dead_units="<5%", window=4, layers="relu")
    assert (error.step, error.item) == (3, "relu")
    assert error.value == pytest.approx(4 / 8)
    assert "dead units 50.00%; expected dead_units=<5%" in str(error)


def test_updates_too_large_and_too_small():
    error = failure(small_model(), lr=5.0, update_ratio="1e-5..1e-1")
    assert (error.step, error.item) == (0, "0.weight.update")
    assert failure(small_model(), lr=1e-9, update_ratio="1e-5..1e-1").value < 1e-5


def test_a_parameter_that_stands_still():
    model = small_model()
    model[2].bias.requires_grad_(False)
    error = failure(model, parameters_move=True, window=3)
    assert (error.step, error.item) == (2, "2.bias.update")
    error = failure(model, gradients_arrive=True, window=3)
    assert (error.step, error.item) == (2, "2.bias.grad")
    assert "the gradient was zero, not finite, or did not come in 3 steps" in str(error)


def test_a_loss_out_of_range_fails_at_its_step():
    error = failure(Sabotaged(4, 1e3), loss="<10")
    assert (error.step, error.item) == (4, "loss")
    assert error.value > 10


def test_a_loss_that_is_nan():
    recorder = Recorder()
    recorder.expect(no_nan=True)
    recorder.step(loss=1.0)
    with pytest.raises(ExpectationError, match="step 1, loss: 1 of 1 values are NaN"):
        recorder.step(loss=math.nan)


def test_a_layer_is_named_before_the_loss_that_comes_of_it():
    model = small_model()
    with Recorder(every=1) as recorder:
        recorder.track_layers(model)
        recorder.expect(no_nan=True)
        loss = model(torch.full((3, 4), math.nan)).sum()
        with pytest.raises(ExpectationError, match="step 0, output of '0': 24 of 24 values are NaN"):
            recorder.log(loss=loss)
    assert recorder.series["0"].nans.tolist() == [24]


def test_values_before_are_those_that_are_judged():
    model = small_model()
    recorder = Recorder()
    recorder.track_layers(model)
    recorder.expect(dead_units="<5%", window=2)
    for bias in (100.0, -100.0):
        with torch.no_grad():
            model[0].bias.fill_(bias)
        model(torch.ones(3, 4))
        recorder.step()
    model(torch.ones(3, 4))
    with pytest.raises(ExpectationError, match=r"dead units 100.00%.*\n.*\n  before: 0.00%, 0.00%$"):
        recorder.step()
    recorder.abandon()


@pytest.mark.parametrize(("expected", "fails"), [(True, False), (">5%", False), (">90%", True)])
def test_a_decrease_is_from_the_first_to_the_last_quarter(expected: object, fails: bool):
    recorder = Recorder()
    recorder.expect(loss_decreases=expected)
    for loss in (4.0, 9.0, 1.0, 2.0):
        recorder.step(loss=loss)
    if not fails:
        recorder.close()
        return
    with pytest.raises(ExpectationError, match=r"expected loss_decreases=>90%, got 50\.00%"):
        recorder.close()


def test_a_loss_that_does_not_decrease():
    recorder = Recorder()
    recorder.expect(loss_decreases=True)
    for _ in range(10):
        recorder.step(loss=torch.tensor(2.0))
    with pytest.raises(ExpectationError, match="the first 2 have the mean 2, the last 2 2"):
        recorder.close()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("place", range(4))
def test_losses_that_are_not_finite_do_not_decrease(bad: float, place: int):
    recorder, losses = Recorder(), [4.0, 3.0, 2.0, 1.0]
    losses[place] = bad
    recorder.expect(loss_decreases="<100%")
    for loss in losses:
        recorder.step(loss=loss)
    with pytest.raises(ExpectationError, match=f"1 of 4 losses are not finite, the first of them {bad}; expected loss"):
        recorder.close()


@pytest.mark.parametrize(
    ("expected", "hint"),
    [
        ({"no_nan": True}, "nothing was read"),
        ({"grad_norm": "<1"}, "no gradient was read"),
        ({"dead_units": "<5%"}, "no output of a layer"),
        ({"update_ratio": "<1"}, "no update of a weight"),
        ({"parameters_move": True}, "no update was read"),
        ({"loss_decreases": True}, "pass the loss of each step"),
        ({"loss": "<1"}, "pass it: rec.step"),
    ],
)
def test_an_expectation_that_looked_at_nothing_fails(expected: dict, hint: str):
    recorder = Recorder()
    recorder.expect(**expected)
    recorder.step()
    with pytest.raises(ExpectationError, match=hint):
        recorder.close()


def test_it_is_about_the_layers_named():
    model = Sabotaged(7, 1e4)
    with Recorder() as recorder:
        recorder.track_layers(model)
        recorder.expect(output_norm="<1e3", layers="first")
        train(model, 8, recorder)


def test_an_exception_of_training_is_not_hidden_by_an_expectation():
    def training():
        with Recorder() as recorder:
            recorder.expect(loss_decreases=True)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        training()


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({"grad_norms": "<1"}, "unknown expectation 'grad_norms'; did you mean 'grad_norm'"),
        ({"grad_norm": "1e3"}, r"grad_norm: expected a range such as '<1e3'.*, got '1e3'"),
        ({"grad_norm": 1e3}, "expected a range such as"),
        ({"grad_norm": "<nan"}, "expected a range such as"),
        ({"update_ratio": "1e-1..1e-5"}, "expected a range with its lower end first"),
        ({"dead_units": True}, "dead_units: expected a range such as '<5%', got True"),
        ({"no_nan": "<1"}, "no_nan: expected True or False, got '<1'"),
        ({"loss_decreases": "much"}, "expected a range such as"),
        ({"dead_units": "<500%"}, "dead_units: expected a range that excludes part of 0% to 100%, got '<500%'"),
        ({"dead_units": ">=0"}, "expected a range that excludes part"),
        ({}, "expected at least one expectation such as"),
        ({"no_nan": False}, "expected at least one expectation"),
        ({"no_nan": False, "grad_norm": None, "layers": "fc*"}, "expected at least one expectation"),
        ({"no_nan": True, "layers": 5}, "layers: expected one glob of names .*, got 5"),
        ({"no_nan": True, "layers": ["a", "b"]}, "expected one glob"),
        *(
            ({"no_nan": True, "window": bad}, "window: expected a whole number of at least 1, got ")
            for bad in (0, -3, True, 2.5, "5")
        ),
    ],
)
def test_what_cannot_be_expected(expected: dict, message: str):
    with pytest.raises((TypeError, ValueError), match=message):
        Recorder().expect(**expected)


def test_what_is_expected_false_is_not_expected():
    recorder = Recorder()
    recorder.expect(no_nan=False, loss="<10")
    recorder.step(loss=1.0, other=math.nan)
    recorder.close()


RANGES = {
    "loss": ("<10", ">-10", "-1e9..1e9"),
    "update_ratio": ("<1e9", ">=0"),
    "grad_norm": ("<1e9", ">1e-9", "0..inf"),
    "output_norm": ("<1e9", ">1e-9"),
    "grad_growth": ("<1e9", ">1e-9"),
}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(("name", "wanted"), [(name, one) for name, wanted in RANGES.items() for one in wanted])
def test_what_is_not_finite_is_in_no_range(name: str, wanted: str, bad: float):
    error = failure(Sabotaged(2, bad), **{name: wanted})
    assert (error.step, error.expectation) == (2, name)
    assert not math.isfinite(error.value)
    assert error.item in {"loss", "first.weight.update", "last.grad", "last"}
    assert f"{error.value:.4g}; expected {name}={wanted}" in str(error)


def test_a_gradient_of_nothing_but_nan_is_said_to_be_that():
    error = failure(Sabotaged(2, math.nan), grad_norm=">1e-9", layers="last.weight.grad")
    assert str(error).splitlines()[1] == "  2×8 float32: not finite: 16 of 16"


def test_parameters_that_are_all_nan_do_not_move():
    error = failure(Sabotaged(2, math.nan), parameters_move=True, window=3)
    assert error.step == 4
    assert failure(Sabotaged(2, math.nan), gradients_arrive=True, window=3).step == 4


@pytest.mark.parametrize(
    ("expected", "hint"),
    [
        ({"no_nan": True, "layers": "nosuch*"}, r"no tracked item matches 'nosuch\*'; 19 are known"),
        ({"dead_units": "<90%", "layers": "rely"}, "no tracked item matches 'rely'; did you mean 'relu'"),
        ({"grad_norm": "<1e3", "layers": "last"}, "no tracked item matches 'last'; did you mean 'last.grad'"),
        ({"loss": "<10", "layers": "last"}, "no tracked item matches 'last'; known are loss"),
        ({"update_ratio": "<1", "layers": "*.bias.update"}, "no update of a weight"),
    ],
)
def test_layers_that_fit_nothing_that_is_looked_at(expected: dict, hint: str):
    recorder, model = Recorder(), Sabotaged(9, 1.0)
    recorder.track_layers(model)
    recorder.track_parameters(model)
    recorder.expect(**expected)
    train(model, 2, recorder)
    with pytest.raises(ExpectationError, match=f"had nothing to check: {hint}"):
        recorder.close()


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_tensors_without_elements_are_left_out():
    class Empty(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.none = nn.Linear(4, 2), nn.Linear(4, 0)

        def forward(self, x):
            return self.first(x) + self.none(x).sum()

    model = Empty()
    with Recorder(every=1) as recorder:
        recorder.track_layers(model)
        recorder.track_parameters(model)
        recorder.expect(no_nan=True, update_ratio="<1", output_norm="<1e4", dead_units="<=50%", grad_norm="<1e3")
        train(model, 2, recorder)
        assert len(recorder.series["first.weight.update"]) == 2
        assert not any(len(rows) for name, rows in recorder.series.items() if name.startswith("none"))
