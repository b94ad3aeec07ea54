"""The fixture ``lens_recorder`` and the marker ``lens_expect``."""

from __future__ import annotations

import pytest

TRAINING = """
import pytest
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(4, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.fc(x).relu())

def train(model, steps=12, lr=0.05, worse=False, spoil=None, loss=nn.MSELoss(), tell=lambda **told: None):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, maximize=worse)
    for step in range(steps):
        optimizer.zero_grad()
        error = loss(model(torch.ones(3, 4)), torch.zeros(3, 2))
        if step == spoil:
            error = error * float("inf")
        error.backward()
        optimizer.step()
        tell(loss=error)

"""


def run(pytester: pytest.Pytester, tests: str, *arguments: str) -> pytest.RunResult:
    pytester.makepyfile(TRAINING + tests)
    return pytester.runpytest_inprocess(*arguments)


def test_the_fixture_fails_a_test_at_the_step(pytester: pytest.Pytester):
    result = run(
        pytester,
        """
def test_good(lens_recorder):
    model = Net()
    lens_recorder.track_layers(model)
    lens_recorder.track_parameters(model)
    lens_recorder.expect(no_nan=True, grad_norm="<1e3", loss_decreases=True)
    train(model, tell=lens_recorder.step)
    assert len(lens_recorder.series["loss"]) == 12

def test_bad(lens_recorder):
    model = Net()
    lens_recorder.track_parameters(model)
    lens_recorder.expect(no_nan=True)
    train(model, spoil=7)

def test_worse_at_the_end(lens_recorder):
    lens_recorder.expect(loss_decreases=True)
    for loss in (1.0, 2.0, 3.0):
        lens_recorder.step(loss=loss)

def test_left_as_found():
    model = Net()
    train(model)
    from torch.optim import optimizer
    assert not optimizer._global_optimizer_post_hooks
""",
    )
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(
        [
            "*ExpectationError: step 7, parameter gradient of 'fc.weight': * of 32 values are NaN or infinite*",
            "loss: of 3 losses, the first 1 have the mean 1, the last 1 3;*",
        ]
    )
    # The frames of the recorder are no part of what a person has to read.
    result.stdout.no_fnmatch_line("*recording.py*")


def test_a_marker_of_one_parameter_set_gives_no_other_a_recorder(pytester: pytest.Pytester):
    result = run(
        pytester,
        """
MARKED = pytest.param(True, marks=pytest.mark.lens_expect(no_nan=True))

@pytest.mark.parametrize("marked", [MARKED, False])
def test_recorder(marked, request):
    train(Net())
    assert ("lens_recorder" in request.node.fixturenames) == marked
""",
    )
    result.assert_outcomes(passed=2)


def test_the_marker_finds_model_and_loss_by_itself(pytester: pytest.Pytester):
    result = run(
        pytester,
        """
@pytest.mark.lens_expect(no_nan=True, loss_decreases=True, update_ratio="1e-9..1e-1")
def test_good():
    train(Net())

@pytest.mark.lens_expect(no_nan=True, layers="*.weight*")
def test_bad():
    train(Net(), spoil=3)

@pytest.mark.lens_expect(loss_decreases=True)
@pytest.mark.parametrize("worse", [False, True])
def test_loss(worse):
    train(Net(), worse=worse)

@pytest.mark.lens_expect(grad_norm="<1e3")
class TestSeveral:
    def test_two(self):
        train(Net())
        train(Net())

    @pytest.mark.lens_expect(every=3)
    def test_named(self, lens_recorder):
        model = Net()
        lens_recorder.track_parameters(model, "fc.weight")
        train(model)
        assert lens_recorder.series["fc.weight"].step.tolist() == [0, 3, 6, 9]

@pytest.mark.lens_expect(no_nan=True)
def test_nothing():
    pass

@pytest.fixture
def tracked(lens_recorder):
    model = Net()
    lens_recorder.track_parameters(model)
    return model

@pytest.mark.lens_expect(no_nan=True)
@pytest.mark.parametrize("number", range(2))
def test_by_a_fixture(tracked, number, request):
    train(tracked)
    assert set(request.getfixturevalue("lens_recorder").series) >= {"fc.weight"}
    assert not any(name.startswith("Net") for name in request.getfixturevalue("lens_recorder").series)
""",
    )
    result.assert_outcomes(passed=6, failed=3)
    result.stdout.fnmatch_lines(
        [
            "*ExpectationError: step 3, parameter gradient of 'Net.fc.weight': * of 32 values*",
            "loss: of 12 losses*",
            "no_nan had nothing to check*",
        ]
    )


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("no_nam=True", "marker lens_expect: unknown expectation or option 'no_nam'; did you mean 'no_nan'*"),
        ("no_nan=True, evry=3", "marker lens_expect: unknown expectation or option 'evry'; did you mean 'every'*"),
        ("grad_norm=3", "marker lens_expect: grad_norm: expected a range *, got 3*"),
        ("every=0", "marker lens_expect: every: expected a whole number *, got 0*"),
        ("no_nan=True, size=5", "marker lens_expect: size: expected width and height*, got 5*"),
        ("no_nan=True, folder=5", "marker lens_expect: folder: expected a path*, got 5*"),
        ("no_nan=True, title=5", "marker lens_expect: title: expected a string, got 5*"),
        ("no_nan=True, videos='no'", "marker lens_expect: videos: expected True or False, got 'no'*"),
        ("no_nan=True, layers=5", "marker lens_expect: layers: expected one glob*, got 5*"),
        ("", "marker lens_expect: expected keywords such as no_nan=True, got none"),
        ("no_nan=False", "marker lens_expect: expected at least one expectation*"),
        ("True", "marker lens_expect: expected keywords such as no_nan=True, got True"),
    ],
)
def test_a_wrong_marker_is_said(pytester: pytest.Pytester, marker: str, message: str):
    result = run(pytester, f"@pytest.mark.lens_expect({marker})\ndef test_it(): pass\n")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([message])
    result.stdout.no_fnmatch_line("During handling of*")


def test_a_failure_names_the_layer_that_a_nan_comes_of_and_says_where_the_recording_is(pytester: pytest.Pytester):
    result = run(
        pytester,
        """
@pytest.mark.lens_expect(no_nan=True, every=1, videos=False, page=False)
def test_nan():
    model = Net()
    train(model, steps=2)
    with torch.no_grad():
        model.fc.weight[0, 0] = float("nan")
    train(model, steps=2)

@pytest.mark.lens_expect(loss_decreases=True, videos=False, page=False)
def test_still():
    train(Net(), lr=0.0)
""",
        "--lens-report=report",
    )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "*ExpectationError: step 2, output of 'Net.fc': 3 of 24 values are NaN*",
            "recorder: *test_nan-*",
            "loss: of 12*",
        ]
    )
    result.stdout.no_fnmatch_line("*automatic.py*")
    result.stdout.no_fnmatch_line("All traceback entries are hidden*")


def test_a_marker_that_needs_a_package_that_is_missing(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tensorboard" else find(name))
    test = '@pytest.mark.lens_expect(no_nan=True, folder="out", tensorboard=True)\ndef test_it(): pass\n'
    result = run(pytester, test)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["marker lens_expect: tensorboard needs the package 'tensorboard', which is not*"])


def test_the_report_has_curves_and_videos(pytester: pytest.Pytester):
    pytest.importorskip("av")
    result = run(
        pytester,
        """
@pytest.mark.lens_expect(no_nan=True, every=1, policy="block")
@pytest.mark.parametrize("name", ["<b>", "plain"])
def test_it(name):
    train(Net(), steps=3)
    assert name == "plain"
""",
        "--lens-report=out",
        "-rA",
    )
    result.assert_outcomes(passed=1, failed=1)
    index = (pytester.path / "out" / "training" / "index.html").read_text(encoding="utf-8")
    assert "test_it[&lt;b&gt;]" in index
    pages = sorted((pytester.path / "out" / "training").glob("*/index.html"))
    assert len(pages) == 2
    assert all(page.parent.name in index for page in pages)
    assert all("data:video/mp4" in page.read_text(encoding="utf-8") for page in pages)
    result.stdout.fnmatch_lines(["recorder: * frames of * tensors, 0 dropped: *", "lens: recordings of training: *"])


@pytest.mark.slow
def test_under_xdist_the_list_is_whole(pytester: pytest.Pytester):
    pytest.importorskip("xdist")
    tests = """
@pytest.mark.lens_expect(no_nan=True, videos=False)
@pytest.mark.parametrize("number", range(4))
def test_it(number):
    train(Net(), steps=1)
"""
    run(pytester, tests, "--lens-report=out", "-n2").assert_outcomes(passed=4)
    index = (pytester.path / "out" / "training" / "index.html").read_text(encoding="utf-8")
    assert index.count("<li>") == 4


def test_warnings_as_errors_and_strict_markers(pytester: pytest.Pytester):
    tests = "@pytest.mark.lens_expect(no_nan=True, videos=False)\ndef test_it():\n    train(Net())\n"
    result = run(pytester, tests, "-W", "error", "--strict-markers", "--lens-report=out")
    result.assert_outcomes(passed=1)


def test_the_marker_is_told_of(pytester: pytest.Pytester):
    pytester.runpytest_inprocess("--markers").stdout.fnmatch_lines(["@pytest.mark.lens_expect(no_nan=True*"])
    lines = pytester.runpytest_inprocess("--fixtures").outlines
    place = next(number for number, line in enumerate(lines) if line.startswith("lens_recorder --"))
    assert lines[place + 1].strip().startswith("Record tensors of a model while it trains")
