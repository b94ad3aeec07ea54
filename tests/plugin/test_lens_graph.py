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


def test_flops_are_measured_to_be_drawn(pytester: pytest.Pytester):
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", "--lens-graph=graphs,format=dot,color_by=flops")
    result.assert_outcomes(passed=1)
    assert "flops: " in (pytester.path / "graphs" / "tiny" / "mlp.dot").read_text(encoding="utf-8")


def test_a_switch_needs_no_value(pytester: pytest.Pytester):
    pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", "--lens-graph=graphs,legend,format=dot")
    assert "Legend" in (pytester.path / "graphs" / "tiny" / "mlp.dot").read_text(encoding="utf-8")


def test_a_folder_in_the_ini_file_is_under_rootdir(pytester: pytest.Pytester):
    pytester.makeini("[pytest]\nlens_graph = graphs,format=dot\n")
    pytester.runpytest_inprocess("--lens-zoo=tiny:mlp")
    assert (pytester.path / "graphs" / "tiny" / "mlp.dot").exists()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("graphs,format=gif", "--lens-graph: format: expected 'svg', 'pdf', 'png', 'dot', got 'gif'"),
        ("graphs,format=sgv", "--lens-graph: format: expected 'svg', *, got 'sgv' (did you mean 'svg'?)"),
        ("graphs,fromat=pdf", "--lens-graph: expected a drawing setting, got 'fromat'; did you mean 'format'"),
        ("graphs,theme=drak", "--lens-graph: theme: expected *, got 'drak' (did you mean 'dark'?)"),
        ("graphs,thme=dark", "--lens-graph: expected a drawing setting, got 'thme'; did you mean 'theme'"),
        ("graphs,rolled", "--lens-graph: expected NAME=VALUE such as vis_opt=rolled, got 'rolled'"),
        (
            "graphs,vis_nesting_depth=deep",
            "--lens-graph: vis_nesting_depth: expected a whole number of at least 1, * or None, got 'deep'",
        ),
        ("graphs,legend=maybe", "--lens-graph: legend: expected True or False, got 'maybe'"),
        ("graphs,repeats=twice", "--lens-graph: repeats: expected True, False or None, got 'twice'"),
        (
            "graphs,color_by=tiem",
            "--lens-graph: color_by: expected a metric that records have, got 'tiem'; did you mean",
        ),
        ("graphs,focus=a,focus=b", "--lens-graph: focus: expected one value, got two"),
        ("graphs,legend,legend=false", "--lens-graph: legend: expected one value, got two"),
        ("graphs,vis_opt=none", "--lens-graph: vis_opt: expected 'unrolled' or 'rolled' to draw a picture"),
        ("graphs,color_by=flosp", "--lens-graph: color_by: expected a metric *got 'flosp'; did you mean 'flops'"),
        (
            "format=svg",
            "--lens-graph: expected a folder before the settings, as in graphs,format=svg, got 'format=svg'",
        ),
        (",format=svg", "--lens-graph: expected a folder before *, as in graphs,format=svg, got ',format=svg'"),
        ("taken", "--lens-graph: *taken cannot be written: Not a directory; a file stands where a folder is needed: *"),
        ("/proc/graphs", "--lens-graph: /proc/graphs cannot be written: Permission denied; *"),
    ],
)
def test_mistakes_are_said_before_anything_runs(pytester: pytest.Pytester, value: str, message: str):
    (pytester.path / "taken").write_text("", encoding="utf-8")
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", f"--lens-graph={value}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{message}*"])


def test_mistakes_leave_no_folder(pytester: pytest.Pytester):
    pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", "--lens-graph=graphs,format=gif")
    pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", "--lens-graph=format=svg")
    assert not [path for path in pytester.path.iterdir() if path.name.startswith(("graphs", "format"))]


def test_a_module_that_only_some_models_have(pytester: pytest.Pytester):
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:linear,mlp", "--lens-graph=graphs,focus=0")
    result.assert_outcomes(passed=2)
    assert result.ret == pytest.ExitCode.OK
    line = "no graph of 1 of 2 models: --lens-graph does not fit: focus: expected a module that was called, got '0'*"
    result.stdout.fnmatch_lines(["graphs: file://*/graphs", line])


@pytest.mark.parametrize("options", [[], ["-q"]], ids=["told", "quiet"])
def test_a_module_that_no_model_has_is_a_usage_error(pytester: pytest.Pytester, options: list[str]):
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:linear,mlp", "--lens-graph=graphs,focus=head", *options)
    result.assert_outcomes(passed=2)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines(
        ["ERROR: no graph of 2 of 2 models: --lens-graph does not fit: focus: expected a module that was called*"]
    )


def test_without_graphviz_models_pass_and_it_is_said(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTEST_LENS_DOT", "/nowhere/dot")
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", "--lens-graph=graphs")
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["no graph of 1 of 1 model: *no drawing: /nowhere/dot does not start*"])


def test_beside_a_report(pytester: pytest.Pytester):
    pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", "--lens-graph=graphs", "--lens-report=out")
    assert (pytester.path / "graphs" / "tiny" / "mlp.svg").exists()
    assert (pytester.path / "out" / "models" / "tiny" / "mlp.svg").exists()
