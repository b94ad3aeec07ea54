"""`--lens-graph`: a drawing of each model."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.usefixtures("tiny_zoo")


def test_each_model_is_drawn_into_a_file(pytester: pytest.Pytester):
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:linear,mlp", "--lens-graph=graphs")
    result.assert_outcomes(passed=2)
    files = sorted(path.name for path in (pytester.path / "graphs" / "tiny").iterdir())
    assert files == ["linear.svg", "mlp.svg"]
    assert b"input_1_0" in (pytester.path / "graphs" / "tiny" / "mlp.svg").read_bytes()
    result.stdout.fnmatch_lines(["graphs: file://*/graphs"])


def test_options_of_the_drawings(pytester: pytest.Pytester):
    pytester.runpytest_inprocess(
        "--lens-zoo=tiny:mlp", "--lens-graph=graphs,format=dot,direction=right,legend=true,max_nodes=3"
    )
    dot = (pytester.path / "graphs" / "tiny" / "mlp.dot").read_text(encoding="utf-8")
    assert "rankdir=LR" in dot
    assert "Legend" in dot
    assert "are not drawn" in dot


def test_a_folder_in_the_ini_file_is_under_rootdir(pytester: pytest.Pytester):
    pytester.makeini("[pytest]\nlens_graph = graphs,format=dot\n")
    pytester.runpytest_inprocess("--lens-zoo=tiny:mlp")
    assert (pytester.path / "graphs" / "tiny" / "mlp.dot").exists()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("graphs,format=gif", "--lens-graph: format is 'gif'; it can be 'svg', 'pdf', 'png', 'dot'"),
        ("graphs,theme=drak", "--lens-graph: theme is 'drak'; it can be"),
        ("graphs,thme=dark", "--lens-graph: a drawing has no option 'thme'; did you mean 'theme'"),
        ("graphs,rolled", "--lens-graph: 'rolled' is no setting; write NAME=VALUE"),
        ("graphs,vis_nesting_depth=deep", "--lens-graph: vis_nesting_depth is 'deep'; it takes a whole number"),
        ("taken", "--lens-graph: *taken is a file; name a folder"),
    ],
)
def test_mistakes_are_said_before_anything_runs(pytester: pytest.Pytester, value: str, message: str):
    (pytester.path / "taken").write_text("", encoding="utf-8")
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", f"--lens-graph={value}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{message}*"])


def test_what_cannot_be_drawn_is_said_and_the_model_passes(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:linear,mlp", "--lens-graph=graphs,focus=head")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["no graph of 2 models: focus is 'head', and no such module was called*"])
    monkeypatch.setenv("PYTEST_LENS_DOT", "/nowhere/dot")
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", "--lens-graph=graphs")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["no graph of 1 model: no drawing: /nowhere/dot does not start*"])


def test_beside_a_report(pytester: pytest.Pytester):
    pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", "--lens-graph=graphs", "--lens-report=out")
    assert (pytester.path / "graphs" / "tiny" / "mlp.svg").exists()
    assert (pytester.path / "out" / "models" / "tiny" / "mlp.svg").exists()
