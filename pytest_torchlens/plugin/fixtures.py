"""Fixtures for any test, and explanations of ``assert left == right`` for tensors and histories.

pytest imports this module in every run: it imports nothing heavy.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING
from typing import Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_torchlens.plugin.zoo_marker import LensModel
    from pytest_torchlens.recorder import Recorder
    from pytest_torchlens.records import ModelReport


def explain(operator: str, left: Any, right: Any) -> list[str] | None:
    """Return lines that explain why tensors or histories differ; None for anything else."""
    torch, view = sys.modules.get("torch"), sys.modules.get("pytest_torchlens.history.view")
    if operator != "==":
        return None
    if torch and isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return _explain_tensors(torch, left, right)
    if view and isinstance(left, view.HistoryView) and isinstance(right, view.HistoryView):
        return _explain_histories(left, right)
    return None


def _explain_tensors(torch: Any, left: Any, right: Any) -> list[str]:
    words = [f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}" for tensor in (left, right)]
    try:
        torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)
    except (AssertionError, RuntimeError, NotImplementedError) as error:
        return [" == ".join(words), *(line for line in str(error).splitlines() if line)]
    return [" == ".join(words), "all elements are equal"]


def _explain_histories(left: Any, right: Any) -> list[str]:
    from pytest_torchlens.history.rerun import graph_differences

    addresses = {module.address for module in left.record().modules}
    found = graph_differences(left.record().operations, right.record().operations, addresses)
    head = f"history of {left.model_name} == history of {right.model_name}: two passes are two histories"
    return [head, *(found or ["their graphs are alike"])]


@pytest.fixture
def lens_trace(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Record one forward pass of a model: every operation, its values, shapes, parents and modules.

    Example::

        def test_shape_of_the_first_layer(lens_trace):
            history = lens_trace(model, x)
            assert history["conv2d_1_1"].tensor_shape == (1, 64, 55, 55)

    It is `pytest_torchlens.log_forward_pass`: a tensor is the only argument of ``forward``, a list or tuple
    holds the positional arguments, `input_kwargs` the others.  The model's state is preserved.  With
    ``--lens-validate`` the record is validated too, like that of each model that a test calls.
    """
    from pytest_torchlens.functions import log_forward_pass
    from pytest_torchlens.plugin.first_call import autotrace_of

    autotrace = autotrace_of(request.config)
    trace = log_forward_pass if autotrace is None else autotrace.with_validation(request.node, log_forward_pass)
    if "lens_check" not in request.fixturenames:
        return trace

    from pytest_torchlens.plugin.check import with_model_alive

    return with_model_alive(trace)


@pytest.fixture
def lens_edit(lens_trace: Callable[..., Any]) -> Callable[..., Any]:
    """Run a forward pass of a model with some activations changed, and return its history.

    The pass without edits is its ``original``; ``changed_by`` says how much each activation changed.

    Example::

        def test_the_head_matters(lens_edit):
            edited = lens_edit(model, x, {"blocks.4.attn": 0.0})
            assert_effect(edited, at_least=0.01)  # from pytest_torchlens; at_most=1e-6 for "this must not matter"
            assert edited.changed_by["output_1_60"] > 0.01

    Inputs are as for `lens_trace`, with `input_kwargs` and `random_seed`; ``lens_edit(history, edits)`` edits a
    recorded pass.  Edits and all other options (``at``, ``inputs``, ``parameters``, ``gradients``, ``expand``,
    ``live``, ``check_decisions``) are those of `ModelHistory.edit`.  The model stays as it was.
    """

    def edit(
        model: Any,
        input_args: Any = (),
        edits: Any = None,
        *,
        input_kwargs: Any = None,
        random_seed: int | None = None,
        **options: Any,
    ) -> Any:
        from pytest_torchlens.history.view import HistoryView

        __tracebackhide__ = True
        if not isinstance(model, HistoryView):
            return lens_trace(model, input_args, input_kwargs, random_seed=random_seed).edit(edits, **options)
        if edits is not None or input_kwargs is not None or random_seed is not None:
            raise TypeError("lens_edit: a history is edited as it was recorded: lens_edit(history, edits)")
        return model.edit(None if isinstance(input_args, tuple) and not input_args else input_args, **options)

    return edit


@pytest.fixture
def lens_validate() -> Callable[..., Any]:
    """Validate one forward pass of a model: the verdict is true if a replay of its graph gives equal values.

    Example::

        def test_graph_holds(lens_validate):
            assert lens_validate(model, x)

    It is `pytest_torchlens.validate_model_activations`, and takes its inputs like `lens_trace`.
    """
    from pytest_torchlens.functions import validate_model_activations

    return validate_model_activations


@pytest.fixture
def lens_report(request: pytest.FixtureRequest) -> Callable[..., ModelReport]:
    """Add a page to the run's report for a model's forward pass, or for a recorded history.

    Example::

        def test_encoder(lens_trace, lens_report):
            history = lens_trace(model, x)
            lens_report(history, name="encoder")

    The page is in the folder of ``--lens-report=DIR``, with graph, layers and modules; without that option there is no
    page.  ``lens_report(model, x)`` records the pass itself, and takes its inputs like `lens_trace`.  It returns a
    `ModelReport`, the data of the page.
    """
    from pytest_torchlens.plugin.called_models import lens_report_function

    add: Callable[..., ModelReport] = lens_report_function(request)
    return add


@pytest.fixture
def lens_draw(tmp_path: Path) -> Callable[..., Path]:
    """Draw a model's forward pass, or a recorded history, and return the picture's path.

    Example::

        def test_encoder_is_drawn(lens_draw):
            path = lens_draw(model, x, focus="encoder", vis_opt="rolled")
            assert "conv2d_1_1" in path.read_text()

    The picture is ``model_graph.svg`` in the test's ``tmp_path``, or `path`, whose ending sets the format.  A
    tensor is the only argument of ``forward``, a list or tuple holds the positional arguments, `input_kwargs` the
    others; ``lens_draw(history)`` needs no inputs.  The other options are those of `pytest_torchlens.DrawOptions`.
    """

    def draw(
        model: Any, input_args: Any = (), input_kwargs: Any = None, *, path: Path | str | None = None, **options: Any
    ) -> Path:
        from pytest_torchlens.functions import get_model_metadata
        from pytest_torchlens.history.view import HistoryView

        history = model if isinstance(model, HistoryView) else get_model_metadata(model, input_args, input_kwargs)
        return history.draw(tmp_path / "model_graph.svg" if path is None else path, **options)

    return draw


@pytest.fixture
def lens_recorder(request: pytest.FixtureRequest) -> Iterator[Recorder]:
    """Record tensors of a model while it trains, and fail at the step that breaks an expectation.

    Example::

        def test_it_learns(lens_recorder):
            lens_recorder.track_layers(model)
            lens_recorder.track_parameters(model)
            lens_recorder.expect(no_nan=True, grad_norm="<1e3", dead_units="<5%", loss_decreases=True)
            for x, y in batches:
                loss = loss_of(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                lens_recorder.step(loss=loss)

    It is a `pytest_torchlens.recorder.Recorder`.  With ``--lens-report=DIR`` curves and videos are in
    ``DIR/training``; ``lens_recorder.configure(folder=..., every=5)`` sets this and other options.  The marker
    ``lens_expect`` does the same for a test without this fixture, and finds its models by itself.
    """
    from pytest_torchlens.plugin.training import recorder_of

    yield from recorder_of(request)


@pytest.fixture
def lens_check(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Compare a model's forward pass with its stored baseline, and fail the test if it changed.

    Example::

        def test_net_computes_what_it_did(lens_trace, lens_check):
            lens_check(lens_trace(model, x, random_seed=0))

    The first run stores no baseline: ``pytest --lens-update=new`` or ``pytest-lens accept`` stores it in
    ``lens_baselines/<test file>/<test>.json``.  A test that checks several histories gives each a `name`.  `fail_on`
    takes conditions, like ``--lens-fail-on``.  The model must still exist, with the values from before the pass:
    `lens_trace` keeps it alive in such a test; with `log_forward_pass` the test must.  It returns a `Comparison`.
    """
    from pytest_torchlens.plugin.check import Check

    return Check(request)


@pytest.fixture
def lens_same(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Check that a model computes the same when it is run another way, and fail the test if it does not.

    Example::

        def test_rows_are_independent(lens_same):
            lens_same(model, x, checks="rows,batch-size")

    The inputs are as for `lens_trace`.  `checks` are names, ``"all"``, or a mapping of names to options such as
    ``{"rows": {"dim": 1}}``; without it those of the marker ``lens(checks=...)``, of ``--lens-checks``, or else the
    cheap ones; ``pytest-lens checks`` lists them.  `build` makes a fresh instance, which some checks need.  The model
    is checked in the mode that it is in, and stays as it was.  The error names what broke, the first operation, its
    line and what to do; without one it returns the results.  (A baseline is another thing: see ``lens_check``.)
    """
    from pytest_torchlens.plugin.same import Same

    return Same(request)


@pytest.fixture
def lens_model(request: pytest.FixtureRequest) -> Iterator[LensModel]:
    """Run a test with each model of a zoo that its mark ``lens_zoo`` names; the model is freed after the test.

    Example::

        @pytest.mark.lens_zoo("timm", include=["test_*", "resnet18"], exclude="*efficientnet*", limit=5)
        def test_gives_a_thousand_classes(lens_model):
            output = lens_model.model(*lens_model.args, **lens_model.kwargs)
            assert output.shape == (1, 1000), lens_model.name

    `include` and `exclude` are names or globs, one or several; `limit` takes the first models by name.  The zoo file's
    weights, inputs, marks and skip reasons apply as with ``--lens-zoo``.
    """
    from pytest_torchlens.plugin.zoo_marker import lend_model

    yield from lend_model(request.param)
