from __future__ import annotations

import sys

import pytest

pytestmark = pytest.mark.usefixtures("tiny_zoo")
TORCH_OR_OURS = """
import sys
heavy = {name for name in sys.modules if name.partition(".")[0] in (
    "torch", "numpy", "yaml", "jinja2", "graphviz", "torchvision", "timm", "tabulate", "xxhash")}
ours = {name for name in sys.modules if name.startswith("pytest_torchlens.") and not name.endswith("_options")}
allowed = {"pytest_torchlens.plugin", *("pytest_torchlens.plugin." + name for name in
    ("arguments", "fixtures", "hookspecs", "options"))}
"""


@pytest.mark.parametrize("arguments", [["--co"], [], ["tests"], ["-n2"]])
def test_a_run_that_does_not_use_us_imports_nothing(pytester: pytest.Pytester, arguments: list[str]):
    pytester.mkdir("tests").joinpath("test_mine.py").write_text("def test_mine(): pass")
    pytester.makeconftest(
        f"""
def pytest_unconfigure():
{"".join(f"    {line}" + chr(10) for line in TORCH_OR_OURS.strip().splitlines())}
    with open("seen.txt", "w") as file:
        print(sorted(heavy | (ours - allowed)), file=file)
"""
    )
    result = pytester.runpytest_subprocess(*arguments)
    assert result.ret == 0
    assert pytester.path.joinpath("seen.txt").read_text().strip() == "[]"
    result.stdout.no_fnmatch_line("lens:*")


def test_loading_imports_nothing_that_pytest_has_not_imported(pytester: pytest.Pytester):
    script = """
import pytest, sys
before = set(sys.modules)
import pytest_torchlens.plugin
print({name.partition(".")[0] for name in set(sys.modules) - before})
"""
    assert pytester.run(sys.executable, "-c", script).outlines == ["{'pytest_torchlens'}"]


@pytest.mark.parametrize("plugin", ["cacheprovider", "junitxml", "xdist", "capture", "terminal", "warnings"])
def test_without_a_plugin_of_pytest(pytester: pytest.Pytester, plugin: str):
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp,raises", f"-pno:{plugin}", "--lens-report=out")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert (pytester.path / "out" / "report.json").is_file()
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()


def test_without_ours(pytester: pytest.Pytester):
    pytester.makepyfile("def test_mine(): pass")
    pytester.runpytest_inprocess("-p", "no:lens").assert_outcomes(passed=1)


def test_warnings_as_errors_and_strict_markers(pytester: pytest.Pytester):
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", "-W", "error", "--strict-markers", "--strict-config")
    result.assert_outcomes(passed=1)


def test_models_have_the_marker_lens(pytester: pytest.Pytester):
    pytester.makepyfile(test_mine="def test_mine(): pass")
    arguments = ["test_mine.py", "--lens-zoo=tiny:mlp"]
    pytester.runpytest_inprocess(*arguments, "-m", "lens").assert_outcomes(passed=1, deselected=1)
    pytester.runpytest_inprocess(*arguments, "-m", "not lens").assert_outcomes(passed=1, deselected=1)
    pytester.runpytest_inprocess("--markers").stdout.fnmatch_lines(["@pytest.mark.lens([*], autotrace, *"])


def test_k_deselect_and_durations(pytester: pytest.Pytester):
    models = "--lens-zoo=tiny:linear,mlp,raises"
    pytester.runpytest_inprocess(models, "-k", "mlp or linear").assert_outcomes(passed=2, deselected=1)
    result = pytester.runpytest_inprocess(
        models, "--deselect=model_zoo_configs/tiny.yaml::raises", "--durations=0", "-vv"
    )
    result.assert_outcomes(passed=2, deselected=1)
    result.stdout.fnmatch_lines(["*s call*model_zoo_configs/tiny.yaml::linear"])


def test_quiet(pytester: pytest.Pytester):
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", "-q")
    result.stdout.no_fnmatch_line("*lens*")
    result.stdout.fnmatch_lines([".*100%*"])


def test_quiet_validation_says_one_line_or_what_failed(pytester: pytest.Pytester):
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp,linear", "--lens-validate", "-q")
    assert [line for line in result.stdout.lines if "lens" in line] == ["lens: 2 models: 2 passed"]
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp,linear,raises", "--lens-validate", "-q")
    result.stdout.fnmatch_lines(["tiny:raises *FAILED*", "* and 2 more, none of which failed", "*boom in forward"])
    result.stdout.no_fnmatch_line("*mlp*")
    result.stdout.no_fnmatch_line("*baseline*")


def test_help_teaches_every_option(pytester: pytest.Pytester):
    from pytest_torchlens.validate import PARTS

    text = pytester.runpytest_inprocess("--help").stdout.str()
    block = text.partition("model graph auditing (pytest-torchlens):")[2].partition("\n\n")[0]
    for option in (
        "--lens-zoo=ZOO:NAME",
        "--lens-validate",
        "--lens-parts=PART",
        "--lens-report=DIR",
        "--lens-graph=DIR",
    ):
        assert option in block
    assert all(part in block for part in PARTS)
    for key in ("lens_zoo_paths", "lens_parts", "lens_report", "lens_junit_properties"):
        assert key in text


def test_no_temporary_folder_is_left(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tempfile.tempdir", str(pytester.mkdir("temporary")))
    pytester.runpytest_inprocess("--lens-zoo=tiny:mlp").assert_outcomes(passed=1)
    assert not list((pytester.path / "temporary").glob("pytest-lens-*"))
