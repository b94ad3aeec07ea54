from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest

from pytest_torchlens.baseline.snapshot_file import read
from pytest_torchlens.baseline.store import Store
from pytest_torchlens.cli import main

MODELS = """
import json, os, pathlib, torch
from torch import nn

CHANGES = json.loads(pathlib.Path(__file__).with_name("changes.json").read_text())


class Net(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.name = name
        self.norm = nn.LayerNorm(4, eps=CHANGES.get("eps", 1e-5))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        if CHANGES.get("interrupt") == self.name:
            raise KeyboardInterrupt
        return self.head(self.norm(x))


def zoo():
    return {name: (lambda name=name: Net(name)) for name in CHANGES.get("names", ["a", "b", "c"])}
"""
ZOO = """
provider: "python:models.py:zoo"
defaults:
  input: {shape: [2, 4]}
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> Path:
    folder = pytester.mkdir("zoo")
    (folder / "models.py").write_text(MODELS, encoding="utf-8")
    (folder / "net.yaml").write_text(ZOO, encoding="utf-8")
    change(folder)
    return folder


def change(folder: Path, **changes: object) -> None:
    (folder / "changes.json").write_text(json.dumps(changes), encoding="utf-8")


def validate(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess("zoo/net.yaml", "--lens-validate", "--lens-parts=replay", *arguments)


def stored(pytester: pytest.Pytester) -> list[str]:
    folder = pytester.path / "lens_baselines"
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.json"))


def test_a_first_run_passes_says_what_a_baseline_is_for_and_stores_nothing(pytester: pytest.Pytester, project: Path):
    result = validate(pytester)
    result.assert_outcomes(passed=3)
    why = "3 models have no baseline; to keep these results, so that later runs say what changed"
    result.stdout.fnmatch_lines([f"{why}: pytest-lens accept '[*]'"])
    result.stdout.no_fnmatch_line("baselines: *")
    assert stored(pytester) == []
    assert (pytester.path / ".lens" / ".gitignore").read_text() == "*\n"


def test_what_a_run_obtained_is_accepted_without_another(pytester: pytest.Pytester, project: Path):
    validate(pytester)
    assert main(["accept", "net/[ab]", "--root", str(pytester.path)]) == 0
    assert stored(pytester) == ["net/a.json", "net/b.json"]
    validate(pytester).stdout.fnmatch_lines(["baselines: 2 identical, 1 new"])


def test_a_changed_model_fails_and_is_told_of_where_it_changed(pytester: pytest.Pytester, project: Path):
    validate(pytester, "--lens-update=new")
    assert stored(pytester) == ["net/a.json", "net/b.json", "net/c.json"]
    change(project, eps=1e-3)
    result = validate(pytester)
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(
        [
            "net:a: structure at norm/layernorm; * of * operations differ; outputs differ by 0.0* (limit 2e-05)",
            "*norm/layernorm: structure: argument eps=1e-05 → eps=0.001",
            "*at *models.py:*, in forward",
            "*to accept: pytest-lens accept net/a",
            "baselines: 3 structure",
            "*structure in layernorm: net:a, net:b, net:c*",
        ]
    )
    main(["accept", "*", "--root", str(pytester.path)])
    validate(pytester).assert_outcomes(passed=3)


def test_update_changed_stores_what_changed_and_not_what_is_new(pytester: pytest.Pytester, project: Path):
    change(project, names=["a", "b"])
    validate(pytester, "--lens-update=new")
    change(project, names=["a", "b", "c"], eps=1e-3)
    validate(pytester, "--lens-update=changed").assert_outcomes(passed=3)
    assert stored(pytester) == ["net/a.json", "net/b.json"]
    result = validate(pytester)
    result.stdout.fnmatch_lines(["baselines: 2 identical, 1 new"])


def test_unused_baselines_are_named_and_deleted_only_when_asked(pytester: pytest.Pytester, project: Path):
    validate(pytester, "--lens-update=new")
    change(project, names=["a", "b"])
    result = validate(pytester, "--lens-update=new,changed")
    result.stdout.fnmatch_lines(["unused baselines, of models that are gone: net/c; --lens-update=unused deletes them"])
    assert result.ret == 0
    for options in (["--lens-strict"], ["--lens-strict", "-q"]):
        result = validate(pytester, *options)
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        result.stdout.fnmatch_lines(
            ["unused*net/c*", "ERROR: the run fails, for --lens-strict* allows no unused baselines"]
        )
    assert validate(pytester, "--lens-fail-on=structure,unused").ret == pytest.ExitCode.TESTS_FAILED
    assert "net/c.json" in stored(pytester)
    validate(pytester, "--lens-update=unused").stdout.fnmatch_lines(["unused*net/c; deleted"])
    assert stored(pytester) == ["net/a.json", "net/b.json"]


def test_unused_baselines_are_not_looked_for_where_a_part_of_the_models_ran(pytester: pytest.Pytester, project: Path):
    validate(pytester, "--lens-update=new")
    change(project, names=["a", "b"])
    result = validate(pytester, "--deselect=zoo/net.yaml::b", "--lens-strict", "--lens-update=unused")
    result.stdout.fnmatch_lines(["unused baselines were not looked for: 1 of 2 models of net ran"])
    assert result.ret == 0
    assert "net/c.json" in stored(pytester)


def test_strict_fails_what_is_new(pytester: pytest.Pytester, project: Path, monkeypatch: pytest.MonkeyPatch):
    validate(pytester, "--lens-strict").assert_outcomes(failed=3)
    monkeypatch.setenv("CI", "true")
    validate(pytester).assert_outcomes(passed=3)  # the project has no baselines at all
    main(["accept", "net/a", "--root", str(pytester.path)])
    validate(pytester).assert_outcomes(passed=1, failed=2)


def test_ci_stores_nothing_unless_told_to(pytester: pytest.Pytester, project: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CI", "true")
    result = validate(pytester, "--lens-update=all")
    result.stderr.fnmatch_lines(["ERROR: --lens-update under CI would accept any change*--lens-update-in-ci"])
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    validate(pytester, "--lens-update=all", "--lens-update-in-ci").assert_outcomes(passed=3)
    assert len(stored(pytester)) == 3


def test_named_sets_are_kept_apart(pytester: pytest.Pytester, project: Path):
    validate(pytester, "--lens-update=new", "--lens-baseline=torch-2.13")
    assert stored(pytester) == [f"@torch-2.13/net/{name}.json" for name in "abc"]
    validate(pytester).stdout.fnmatch_lines(["3 models have no baseline; *"])
    validate(pytester, "--lens-baseline=torch-2.13").stdout.fnmatch_lines(["baselines: 3 identical"])


@pytest.mark.parametrize(("dir_", "name", "here"), [("", "torch 2.13", "."), ("base/lines", "", "zoo")])
def test_the_command_to_accept_works_as_it_is_told(
    dir_: str, name: str, here: str, pytester: pytest.Pytester, project: Path, monkeypatch: pytest.MonkeyPatch
):
    pytester.makeini(f"[pytest]\nlens_baseline_dir = {dir_}")
    monkeypatch.chdir(here)
    arguments = [str(project / "net.yaml"), "--lens-validate", "--lens-parts=replay", "--lens-strict"]
    arguments += [f"--lens-baseline={name}"] if name else []
    said = pytester.runpytest_inprocess(*arguments).stdout.lines
    hints = [line.partition("pytest-lens ")[2] for line in said if "pytest-lens accept" in line]
    assert len(hints) == 4, "one a model, and one for all"
    for hint in hints[:2]:
        assert main(shlex.split(hint)) == 0
    assert main(shlex.split(hints[-1])) == 0
    folder = pytester.path / (dir_ or "lens_baselines") / (f"@{name}" if name else ".")
    assert sorted(path.name for path in (folder / "net").iterdir()) == ["a.json", "b.json", "c.json"]


def test_what_waits_for_one_folder_is_not_accepted_into_another(pytester: pytest.Pytester, project: Path):
    pytester.makeini("[pytest]\nlens_baseline_dir = elsewhere")
    validate(pytester)
    root = ["--root", str(pytester.path)]
    assert main(["accept", "*", *root, "--dir", str(pytester.path / "lens_baselines")]) == 2
    assert stored(pytester) == []
    assert main(["accept", "*", *root]) == 0
    assert stored(pytester) == []
    assert sorted(path.stem for path in (pytester.path / "elsewhere").rglob("*.json")) == ["a", "b", "c"]


def test_what_fails_can_be_said_in_the_option_and_in_the_zoo_file(pytester: pytest.Pytester, project: Path):
    validate(pytester, "--lens-update=new")
    change(project, eps=1e-3)
    validate(pytester, "--lens-fail-on=none").assert_outcomes(passed=3)
    validate(pytester, "--lens-fail-on=structure@head").assert_outcomes(passed=3)
    rule = "rules:\n  - {match: a, fail_on: none}\n  - {match: b, fail_on: [structure@norm*]}\n"
    (project / "net.yaml").write_text(ZOO + rule, encoding="utf-8")
    validate(pytester).assert_outcomes(passed=1, failed=2)
    (project / "net.yaml").write_text(ZOO + "rules:\n  - {match: a, fail_on: structur}\n", encoding="utf-8")
    validate(pytester).stderr.fnmatch_lines(["*net.yaml:*: fail_on: expected a condition, got 'structur'*structure*"])


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        (
            "--lens-update=newer",
            "*--lens-update: expected new, changed, unused, all, got 'newer' (did you mean 'new'?)",
        ),
        ("--lens-fail-on=own", "*--lens-fail-on: expected a number from 0, as in own:1e-5, got 'own'*"),
        (
            "--lens-fail-on=slower",
            "*--lens-fail-on: expected by how much a pass may be slower, as in time:+20%, got 'slower'",
        ),
        ("--lens-fail-on=output", "*got 'output'; did you mean 'outputs', which fails each output beyond tolerance?"),
        ("--lens-baseline=.a", "*--lens-baseline: expected a plain name such as torch-2.13, got '.a'"),
        ("--lens-baseline=a/b", "*--lens-baseline: expected a plain name such as torch-2.13, got 'a/b'"),
    ],
)
def test_wrong_options_are_usage_errors(argument: str, said: str, pytester: pytest.Pytester, project: Path):
    result = validate(pytester, argument)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([said])


def test_options_of_baselines_ask_for_validation(pytester: pytest.Pytester, project: Path):
    result = pytester.runpytest_inprocess("zoo/net.yaml", "--lens-strict")
    result.stderr.fnmatch_lines(["*--lens-strict needs --lens-validate, which compares models with baselines"])


def test_a_broken_baseline_fails_its_model_and_is_replaced_on_request(pytester: pytest.Pytester, project: Path):
    validate(pytester, "--lens-update=new")
    (pytester.path / "lens_baselines" / "net" / "a.json").write_text("{}")
    result = validate(pytester)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*a.json is not a usable baseline: the file lacks*"])
    validate(pytester, "--lens-update=changed").assert_outcomes(passed=3)
    validate(pytester).stdout.fnmatch_lines(["baselines: 3 identical"])


def test_a_baseline_with_conflict_markers_is_told_and_never_replaced(pytester: pytest.Pytester, project: Path):
    validate(pytester, "--lens-update=new")
    file = pytester.path / "lens_baselines" / "net" / "a.json"
    text = file.read_text().replace('"totals"', '<<<<<<< ours\n"totals"\n=======\n"totals"\n>>>>>>> theirs\n"totals"')
    file.write_text(text)
    for argument in ("--lens-update=changed", "--lens-update=all"):
        result = validate(pytester, argument)
        result.assert_outcomes(passed=2, failed=1)
        result.stdout.fnmatch_lines(["*a.json has git's conflict markers (line *): take one side*"])
    store = Store.of(pytester.path)
    store.keep("net/a", read(file.with_name("b.json")))  # an earlier result still waits
    assert main(["accept", "net/a", "--root", str(pytester.path)]) != 0
    assert file.read_text() == text


def test_an_interrupted_run_keeps_what_it_finished(pytester: pytest.Pytester, project: Path):
    change(project, interrupt="c")
    result = pytester.runpytest_subprocess(
        "zoo/net.yaml", "--lens-validate", "--lens-parts=replay", "--lens-update=new,unused"
    )
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert stored(pytester) == ["net/a.json", "net/b.json"]


def test_a_model_whose_record_does_not_hold_is_not_stored(pytester: pytest.Pytester, project: Path):
    models = project / "models.py"
    noticed = "(2 if torch.overrides._is_torch_function_mode_enabled() else 3)"
    text = models.read_text().replace("return self.head", f"return {noticed} * self.head")
    models.write_text(text)
    result = pytester.runpytest_inprocess("zoo/net.yaml::a", "--lens-validate", "--lens-update=new")
    result.assert_outcomes(failed=1)
    assert stored(pytester) == []


@pytest.mark.parametrize("how", ["-n2", "--lens-isolate"])
def test_other_processes_lose_no_update(how: str, pytester: pytest.Pytester, project: Path):
    if how == "-n2":
        pytest.importorskip("xdist")
    names = [f"m{number}" for number in range(6)]
    change(project, names=names)
    validate(pytester, "--lens-update=new").assert_outcomes(passed=6)
    assert stored(pytester) == [f"net/{name}.json" for name in names]
    change(project, names=names[:5], eps=1e-3)
    result = pytester.runpytest_subprocess(
        "zoo/net.yaml", "--lens-validate", "--lens-parts=replay", how, "--lens-update=all"
    )
    result.assert_outcomes(passed=5)
    assert stored(pytester) == [f"net/{name}.json" for name in names[:5]]
    kept = read(pytester.path / "lens_baselines" / "net" / "m4.json")
    assert any("eps=0.001" in step.arguments for step in kept.steps)


TEST = """
import pytest, torch
from torch import nn


@pytest.mark.lens(fail_on={fail_on!r})
@pytest.mark.parametrize("width", [2, 3])
def test_net(width, lens_trace, lens_check):
    torch.manual_seed(0)
    norm = nn.LayerNorm(4, eps={eps})
    model = nn.Sequential(norm, nn.Linear(4, width)).eval()
    found = lens_check(lens_trace(model, torch.ones(2, 4)))
    assert found.verdict.value in {verdicts!r}
    lens_check(lens_trace(norm, torch.ones(2, 4)), name="norm")
"""


def write_test(pytester: pytest.Pytester, *verdicts: str, eps: float = 1e-5, fail_on: str = "") -> None:
    text = TEST.format(eps=eps, verdicts=list(verdicts), fail_on=fail_on)
    pytester.makepyfile(test_it=text)


def test_lens_check_does_the_same_in_any_test(pytester: pytest.Pytester):
    write_test(pytester, "new")
    pytester.runpytest_inprocess("--lens-validate", "--lens-update=new").assert_outcomes(passed=2)
    assert len(stored(pytester)) == 4
    write_test(pytester, "identical")
    pytester.runpytest_inprocess().assert_outcomes(passed=2)
    write_test(pytester, "structure", eps=1e-3)
    result = pytester.runpytest_inprocess("-q")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["test_it.py/*: structure at 0/layernorm;*", "*argument eps=1e-05 → eps=0.001"])
    write_test(pytester, "structure", eps=1e-3, fail_on="none")
    pytester.runpytest_inprocess().assert_outcomes(passed=2)


def test_lens_check_asks_for_names_where_there_are_two(pytester: pytest.Pytester):
    pytester.makepyfile(
        """
        import torch

        def test_net(lens_trace, lens_check):
            model = torch.nn.ReLU()
            lens_check(lens_trace(model, torch.ones(2)))
            lens_check(lens_trace(model, torch.ones(2)))
        """
    )
    result = pytester.runpytest_inprocess()
    result.stdout.fnmatch_lines(["*lens_check: called twice in one test; give each history a name*"])


def test_lens_check_takes_a_model_that_nobody_else_holds(pytester: pytest.Pytester):
    pytester.makepyfile(
        """
        import gc, weakref, torch
        from pytest_torchlens import log_forward_pass

        def test_inline(lens_trace, lens_check):
            made = []
            def net():
                net = torch.nn.Linear(2, 2)
                made.append(weakref.ref(net))
                return net
            lens_check(lens_trace(net(), torch.ones(2)))
            gc.collect()
            assert made[0]() is None

        def test_gone(lens_check):
            lens_check(log_forward_pass(torch.nn.Linear(2, 2), torch.ones(2)))

        def test_no_history(lens_check):
            lens_check(torch.nn.Linear(2, 2))
        """
    )
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(
        [
            "*lens_check: Linear is gone: hold the model*",
            "*TypeError: lens_check: expected a history, as in lens_check(lens_trace(model, x)), got Linear*",
        ]
    )


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ("failon='none'", "*marker lens: unknown option 'failon'; did you mean 'fail_on'?"),
        ("fail_on='structur'", "*expected a condition, got 'structur'; did you mean 'structure'?"),
        ("fail_on=5", "*fail_on: expected conditions such as *, got 5"),
    ],
)
def test_a_marker_that_says_nothing_we_know_fails_its_test(mark: str, said: str, pytester: pytest.Pytester):
    pytester.makepyfile(f"import pytest\n\n@pytest.mark.lens({mark})\ndef test_it(): pass")
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([said])
    result = pytester.runpytest_inprocess("--lens-validate")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([said])


def test_a_worker_of_xdist_says_what_is_wrong_with_a_marker(pytester: pytest.Pytester):
    pytester.makepyfile("import pytest\n\n@pytest.mark.lens(failon='none')\ndef test_it(): pass")
    result = pytester.runpytest_subprocess("-n1", "--lens-validate")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*marker lens: unknown option 'failon'; did you mean 'fail_on'?"])


def test_a_folder_that_cannot_be_written_to_fails_nothing(pytester: pytest.Pytester, project: Path):
    (pytester.path / ".lens").write_text("a file in the way")
    result = validate(pytester)
    result.assert_outcomes(passed=3)
    assert os.path.isfile(pytester.path / ".lens")  # noqa: PTH113 - the file is still the file
