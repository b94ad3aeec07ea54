from __future__ import annotations

import shutil

import pytest

pytestmark = pytest.mark.usefixtures("tiny_zoo")
FILE = "model_zoo_configs/tiny.yaml"


def collected(result: pytest.RunResult) -> list[str]:
    return [line for line in result.outlines if "::" in line]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--lens-zoo=tiny:mlp"], ["mlp"]),
        (["--lens-zoo", "tiny:mlp,linear"], ["linear", "mlp"]),
        (["--lens-zoo=tiny:mlp*"], ["mlp", "mlp_tanh"]),
        (["--lens-zoo=tiny:mlp", "--lens-zoo=tiny:linear,mlp"], ["linear", "mlp"]),
        (["--lens-zoo=tiny:*[xp]"], ["mlp"]),
    ],
)
def test_names_and_globs_are_items_in_order(pytester: pytest.Pytester, options: list[str], names: list[str]):
    result = pytester.runpytest_inprocess(*options, "--co", "-q")
    assert collected(result) == [f"{FILE}::{name}" for name in names]


def test_a_zoo_alone_is_all_its_models(pytester: pytest.Pytester):
    result = pytester.runpytest_inprocess("--lens-zoo=tiny", "--co", "-q")
    assert len(collected(result)) == 8


def test_an_item_runs_and_stands_in_the_table(pytester: pytest.Pytester):
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["lens: 1 model, torch *, record only*", "*= lens =*", "*mlp *not-validated*"])


def test_a_plain_run_collects_no_zoo(pytester: pytest.Pytester):
    pytester.makepyfile("def test_mine(): pass")
    for arguments in ([], ["."]):
        result = pytester.runpytest_inprocess(*arguments)
        result.assert_outcomes(passed=1)
        result.stdout.no_fnmatch_line("*lens*tiny*")
        result.stdout.no_fnmatch_line("lens:*")


def test_the_zoo_is_run_and_not_the_testpaths(pytester: pytest.Pytester):
    pytester.makeini("[pytest]\ntestpaths = tests")
    pytester.mkdir("tests").joinpath("test_mine.py").write_text("def test_mine(): pass")
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", "--co", "-q")
    assert collected(result) == [f"{FILE}::mlp"]
    result.stdout.no_fnmatch_line("testpaths:*")


@pytest.mark.parametrize("path", [".", "test_mine.py"])
def test_the_zoo_is_added_to_named_paths(pytester: pytest.Pytester, path: str):
    pytester.makepyfile(test_mine="def test_mine(): pass")
    result = pytester.runpytest_inprocess(path, "--lens-zoo=tiny:mlp", "--co", "-q")
    assert sorted(collected(result)) == [f"{FILE}::mlp", "test_mine.py::test_mine"]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ([f"{FILE}::mlp"], ["mlp"]),
        ([f"{FILE}::mlp", f"{FILE}::linear"], ["linear", "mlp"]),
        ([f"{FILE}::mlp", "--lens-zoo=tiny:linear"], ["linear", "mlp"]),
    ],
)
def test_node_ids_can_be_given_back(pytester: pytest.Pytester, arguments: list[str], names: list[str]):
    result = pytester.runpytest_inprocess(*arguments, "--co", "-q")
    assert collected(result) == [f"{FILE}::{name}" for name in names]


@pytest.mark.parametrize("argument", [FILE, "model_zoo_configs"])
def test_a_named_file_or_folder_is_all_its_models(pytester: pytest.Pytester, argument: str):
    result = pytester.runpytest_inprocess(argument, "--co", "-q")
    assert len(collected(result)) == 8


def test_a_zoo_file_may_lie_anywhere(pytester: pytest.Pytester, tiny_zoo):
    elsewhere = pytester.mkdir("elsewhere")
    for path in tiny_zoo.parent.iterdir():
        if path.is_file():
            path.rename(elsewhere / path.name)
    result = pytester.runpytest_inprocess("elsewhere/tiny.yaml::mlp", "--co", "-q")
    assert collected(result) == ["elsewhere/tiny.yaml::mlp"]
    pytester.makeini("[pytest]\nlens_zoo_paths = elsewhere")
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:linear", "--co", "-q")
    assert collected(result) == ["elsewhere/tiny.yaml::linear"]


@pytest.mark.parametrize(
    "arguments", [["model_zoo_configs", "other/tiny.yaml"], ["--lens-zoo=tiny", "other/tiny.yaml"]]
)
def test_two_zoo_files_of_one_name_are_a_usage_error(arguments: list[str], pytester: pytest.Pytester, tiny_zoo):
    shutil.copytree(pytester.path / "model_zoo_configs", pytester.path / "other")
    result = pytester.runpytest_inprocess(*arguments, "--co", "-q")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *tiny.yaml and *tiny.yaml are both the zoo 'tiny': rename one of the files"])


def test_yaml_of_others_is_left_alone(pytester: pytest.Pytester):
    pytester.path.joinpath("other.yaml").write_text("steps: [1, 2]")
    result = pytester.runpytest_inprocess("other.yaml")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*not found: *other.yaml"])


@pytest.mark.parametrize("text", ["", "birds", "# provider: timm", "- provider"])
@pytest.mark.parametrize("argument", ["empty.yaml", "empty.yaml::mlp"])
def test_a_yaml_file_that_nobody_collects_is_told_why(pytester: pytest.Pytester, text: str, argument: str):
    pytester.path.joinpath("empty.yaml").write_text(text)
    result = pytester.runpytest_inprocess(argument)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [f"ERROR: *{argument}", "(it is not a zoo file of pytest-torchlens: it has no key 'provider')"]
    )


@pytest.mark.parametrize("argument", ["nowhere.yaml", "nowhere.py"])
def test_a_file_that_is_not_there_is_pytests_own_error(pytester: pytest.Pytester, argument: str):
    result = pytester.runpytest_inprocess(argument)
    result.stderr.fnmatch_lines([f"ERROR: *{argument}"])
    result.stderr.no_fnmatch_line("*zoo file*")


def test_an_empty_yaml_file_of_another_plugin_is_its_own(pytester: pytest.Pytester):
    pytester.makeconftest(
        """
        import pytest

        class Steps(pytest.File):
            def collect(self):
                yield Step.from_parent(self, name="step")

        class Step(pytest.Item):
            def runtest(self):
                pass

        def pytest_collect_file(file_path, parent):
            if file_path.suffix == ".yaml":
                return Steps.from_parent(parent, path=file_path)
        """
    )
    pytester.path.joinpath("empty.yaml").write_text("")
    pytester.runpytest_inprocess("empty.yaml").assert_outcomes(passed=1)


def test_a_quoted_key_is_one(pytester: pytest.Pytester):
    pytester.path.joinpath("mine.yaml").write_text('"provider": tim\n')
    result = pytester.runpytest_inprocess("mine.yaml")
    result.stderr.fnmatch_lines(["ERROR: *mine.yaml:1: unknown provider 'tim': did you mean 'timm'?"])


def test_the_shipped_zoo_needs_no_file_in_the_project(pytester: pytest.Pytester):
    nodeid = "model_zoo_configs/torchvision.yaml::alexnet"
    by_option = pytester.runpytest_inprocess("--lens-zoo=torchvision:alexnet", "--co", "-q")
    assert collected(by_option) == [nodeid]
    given_back = pytester.runpytest_inprocess(nodeid, "--co", "-q")
    assert collected(given_back) == [nodeid]


def test_the_users_file_wins_over_the_shipped(pytester: pytest.Pytester, tiny_zoo):
    tiny_zoo.rename(tiny_zoo.with_name("torchvision.yaml"))
    result = pytester.runpytest_inprocess("--lens-zoo=torchvision:mlp", "--co", "-q")
    assert collected(result) == ["model_zoo_configs/torchvision.yaml::mlp"]


def test_a_rootdir_elsewhere(pytester: pytest.Pytester, tmp_path):
    result = pytester.runpytest_inprocess(
        f"--rootdir={tmp_path}", f"{FILE}::mlp", "--lens-zoo=torchvision:alexnet", "--co", "-q"
    )
    assert "model_zoo_configs/torchvision.yaml::alexnet" in collected(result)
    assert len(collected(result)) == 2


@pytest.mark.parametrize(
    ("zoo", "message"),
    [
        ("tinny:mlp", "*unknown zoo 'tinny': did you mean 'tiny'?"),
        ("tiny:mpl", "*zoo 'tiny' has no model 'mpl': did you mean 'mlp'?"),
        ("tiny:q*", "*no model of zoo 'tiny' matches 'q[*]': 8 are known, for example broken, dies, drifts"),
        ("tiny:mlp,", "*zoo 'tiny' has no model ''*"),
    ],
)
def test_what_is_unknown_is_a_usage_error(pytester: pytest.Pytester, zoo: str, message: str):
    result = pytester.runpytest_inprocess(f"--lens-zoo={zoo}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])
    result.stdout.no_fnmatch_line("*Traceback*")


@pytest.mark.parametrize(("asked", "run"), [("ok", "ok.yaml"), ("ok:net", "ok.yaml::net"), ("ok:n*", "ok.yaml")])
def test_a_file_of_the_name_beside_is_named(pytester: pytest.Pytester, asked: str, run: str):
    (pytester.path / "ok.yaml").write_text('provider: "python:models.py:zoo"\n')
    result = pytester.runpytest_inprocess(f"--lens-zoo={asked}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*unknown zoo 'ok': ok.yaml lies here, and is run by file: pytest {run}"])


def test_an_unknown_model_of_a_node_id_is_a_usage_error(pytester: pytest.Pytester):
    result = pytester.runpytest_inprocess(f"{FILE}::linaer")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*no model 'linaer': did you mean 'linear'?"])


@pytest.mark.parametrize(("library", "extra"), [("timm", "zoo"), ("diffusers", "diffusers"), ("peft", "peft")])
def test_a_missing_library_names_the_extra(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, library: str, extra: str
):
    monkeypatch.setitem(__import__("sys").modules, library, None)
    result = pytester.runpytest_inprocess(f"--lens-zoo={library}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    remedy = f"install the extra '{extra}' of pytest-torchlens: pip install 'pytest-torchlens[[]{extra}]'"
    result.stderr.fnmatch_lines([f"*{library} is not installed: {remedy}*"])


def test_a_wrong_key_is_a_usage_error_with_its_line(pytester: pytest.Pytester, tiny_zoo):
    tiny_zoo.write_text("provider: timm\ndefaults:\n  wieghts: init\n")
    result = pytester.runpytest_inprocess("--lens-zoo=tiny")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*tiny.yaml:3: unknown key 'wieghts': did you mean 'weights'?"])


def test_a_rule_about_no_model_is_a_warning(pytester: pytest.Pytester, tiny_zoo):
    tiny_zoo.write_text(tiny_zoo.read_text() + "rules:\n  - {match: 'mlq*', seed: 1}\n")
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", "--co")
    result.stdout.fnmatch_lines(["*ZooWarning: *tiny.yaml:6: no model of zoo 'tiny' matches 'mlq[*]'*"])
    strict = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", "--co", "-W", "error")
    assert strict.ret == pytest.ExitCode.USAGE_ERROR
    strict.stderr.fnmatch_lines(["ERROR: *tiny.yaml:6: no model of zoo 'tiny' matches 'mlq[*]'*"])


def test_a_zoo_file_without_provider_is_told_so(pytester: pytest.Pytester):
    pytester.path.joinpath("mine.yaml").write_text("defaults: {seed: 1}\n")
    result = pytester.runpytest_inprocess("mine.yaml")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: *mine.yaml:1: provider: expected the source of the models, such as timm, got *"]
    )


def test_marks_of_the_file_select_items(pytester: pytest.Pytester, tiny_zoo):
    pytester.makeini("[pytest]\nmarkers = nightly")
    tiny_zoo.write_text(tiny_zoo.read_text() + "rules:\n  - {match: mlp, marks: nightly}\n")
    result = pytester.runpytest_inprocess("--lens-zoo=tiny", "-m", "nightly", "--co", "-q", "--strict-markers")
    assert collected(result) == [f"{FILE}::mlp"]


def test_an_unexpected_pass_fails(pytester: pytest.Pytester, tiny_zoo):
    rules = "rules:\n  - {match: [mlp, raises], xfail: known to fail}\n  - {match: linear, skip: not now}\n"
    tiny_zoo.write_text(tiny_zoo.read_text() + rules)
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp,raises,linear", "-rs")
    result.assert_outcomes(failed=1, xfailed=1, skipped=1)
    result.stdout.fnmatch_lines(["[[]XPASS(strict)[]] known to fail", "SKIPPED *not now"])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cdua", "--lens-device: expected a device, got 'cdua'; did you mean 'cuda'?"),
        ("meta", "--lens-device: expected a device such as cpu or cuda, got 'meta', *"),
        ("cuda:77", "--lens-device: torch * has no device cuda:77 on this machine: *"),
    ],
)
def test_a_device_that_is_not_there(pytester: pytest.Pytester, name: str, said: str):
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", f"--lens-device={name}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {said.replace('[', '[[]')}"])


ODD = """
from torch import nn

def zoo():
    names = ["net", "net2", "net[v2]", "net[v2]_b", "a*", "abc", "x,y", "x", "y", "y,z", "q?", "qq", "k:v"]
    return {name: lambda: nn.Linear(4, 2) for name in names}
"""


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ("net[v2]", ["net[v2]"]),
        ("net[[]v2]*", ["net[v2]", "net[v2]_b"]),
        ("net[12]", ["net2"]),
        ("a*", ["a*"]),
        ("[a]*", ["a*", "abc"]),
        ("q?", ["q?"]),
        ("x,y", ["x,y"]),
        ("y,x", ["x", "y"]),
        ("x, x,y, y,z,net?", ["net2", "x", "x,y", "y,z"]),
        ("k:v", ["k:v"]),
    ],
)
def test_an_exact_name_wins_over_the_glob_and_the_list_that_it_looks_like(
    pytester: pytest.Pytester, tiny_zoo, asked: str, names: list[str]
):
    tiny_zoo.with_name("models.py").write_text(ODD)
    result = pytester.runpytest_inprocess(f"--lens-zoo=tiny:{asked}", "--co", "-q")
    assert collected(result) == [f"{FILE}::{name}" for name in names]


def test_such_a_model_runs_in_a_worker_and_has_a_page(pytester: pytest.Pytester, tiny_zoo):
    tiny_zoo.with_name("models.py").write_text(ODD)
    asked = ["--lens-zoo=tiny:net[v2],a*,x,y", "--lens-isolate", "--lens-validate", "--lens-report=report"]
    pytester.runpytest_inprocess(*asked).assert_outcomes(passed=3)
    assert len(list((pytester.path / "report" / "models" / "tiny").glob("*.html"))) == 3


def test_near_names_of_such_are_given(pytester: pytest.Pytester, tiny_zoo):
    tiny_zoo.with_name("models.py").write_text(ODD)
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:net[v3]")
    result.stderr.fnmatch_lines(["*no model of zoo 'tiny' matches 'net[[]v3]': did you mean 'net[[]v2]' or *"])
