"""`pytest-lens ls`, `show`, `diff`, `accept`, `prune`, with no torch."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace

import pytest

from pytest_torchlens.baseline.snapshot_file import to_text
from pytest_torchlens.baseline.store import Store
from pytest_torchlens.cli import main
from tests.baseline.samples import Small
from tests.baseline.samples import an_input
from tests.baseline.samples import filled
from tests.baseline.samples import snapshot_of
from tests.baseline.samples import tampered_snapshot


@pytest.fixture(scope="module")
def snapshots():
    model, x = filled(Small()), an_input(2, 3, 8, 8)
    return snapshot_of(model, x), tampered_snapshot(model, x, "act/gelu", lambda f, a, k: f(*a, **k) * 1.01)


@pytest.fixture
def store(snapshots, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = Store.of(tmp_path)
    store.accept("zoo/small", snapshots[0])
    store.keep("zoo/small", snapshots[1])
    store.keep("zoo/other", snapshots[0])
    return store


def test_ls_says_what_is_stored_and_what_waits(store, capsys):
    assert main(["ls"]) == 0
    told = capsys.readouterr().out
    assert "zoo/other  new, waits to be accepted" in told
    assert "zoo/small  changed, waits to be accepted" in told
    assert "1 baseline, 2 waiting" in told


def test_show_lists_operations_and_environments(store, capsys):
    assert main(["show", "zoo/small"]) == 0
    told = capsys.readouterr().out
    assert "norm/batchnorm(training=False, momentum=0.1, eps=1e-05) float32[2, 8, 8, 8]" in told
    assert "numbers of cpu " in told


def test_diff_tells_what_waits_from_what_is_stored_and_fails_the_build(store, capsys):
    assert main(["diff", "zoo/small"]) == 1
    told = capsys.readouterr().out
    assert told.startswith("zoo/small: regression at act/gelu;")
    assert main(["diff", "zoo/small", "--fail", "none"]) == 0
    assert main(["diff", "zoo/small", "--fail", "regression@conv*"]) == 0


def test_a_model_without_a_baseline_is_new_and_never_identical(store, capsys):
    assert main(["diff", "zoo/other"]) == 0
    assert capsys.readouterr().out == (
        "zoo/other: new: it has no baseline yet, and computes what zoo/small has (renamed?); "
        "store this result with: pytest-lens accept zoo/other\n"
    )
    assert main(["diff", "zoo/other", "--fail", "new"]) == 1
    assert main(["show", "zoo/other"]) == 0
    assert "zoo/other has no baseline yet: this is the result that waits" in capsys.readouterr().out


def test_diff_says_why_nothing_waits(store, capsys):
    store.forget("zoo/small")
    assert main(["diff", "zoo/small"]) == 2
    assert "'zoo/small': its last run gave the baseline's values, or it did not run" in capsys.readouterr().err
    assert main(["diff", "zoo/smal"]) == 2
    assert "'zoo/smal': did you mean 'zoo/small'?" in capsys.readouterr().err


def test_ls_refuses_what_is_not_there(store, capsys):
    assert main(["ls", "zoo/smal"]) == 2
    assert "did you mean 'zoo/small'?" in capsys.readouterr().err
    assert main(["ls", "--root", "nowhere"]) == 2
    assert "--root: expected a folder, got 'nowhere'" in capsys.readouterr().err


def test_ls_says_which_files_cannot_be_used(store, tmp_path, snapshots, capsys):
    path = store.path("zoo/small")
    path.write_text(f"<<<<<<< ours\n{path.read_text()}=======\n>>>>>>> theirs\n")
    store.accept("zoo/whole", snapshots[0])
    whole = to_text(snapshots[0])
    broken = {"cut": whole[:-9], "else": "{}", "empty": "", "version": whole.replace('"version": 2', '"version": 99')}
    broken["step"] = whole.replace('"function":"', '"funktion":"').replace('"out":"float32[', '"out":"float32(')
    broken["names"] = whole.replace('"steps":', '"old_names": {"baseline": 1},\n"steps":')
    for name, text in broken.items():
        (tmp_path / "lens_baselines" / "zoo" / f"{name}.json").write_text(text)
    assert main(["ls"]) == 1
    told = {line.split(" ")[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "changed, waits to be accepted  CANNOT BE USED: " in told["zoo/small"]
    assert "has git's conflict markers (line 1): take one side" in told["zoo/small"]
    for name in broken:
        assert "is not a usable baseline" in told[f"zoo/{name}"]
        assert main(["show", f"zoo/{name}"]) == 2
    assert told["zoo/whole"] == "zoo/whole"
    assert told["8"].startswith("8 baselines, 7 of them cannot be used, 2 waiting")


def test_the_project_is_found_from_a_folder_inside_it(store, tmp_path, monkeypatch, capsys):
    (tmp_path / "package" / "inner").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "package" / "inner")
    assert main(["diff", "zoo:small"]) == 2, "nothing says where the project ends"
    (tmp_path / "package" / "pyproject.toml").touch()
    assert main(["diff", "zoo:small"]) == 2, "the project is the package"
    (tmp_path / ".git").mkdir()
    assert main(["diff", "zoo:small"]) == 1
    capsys.readouterr()
    assert main(["accept", "zoo:small"]) == 0
    assert capsys.readouterr().out == "stored ../../lens_baselines/zoo/small.json\n"
    assert main(["accept", "zoo:other", "--root=."]) == 2


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("pytest.ini", "[pytest]\nlens_baseline_dir = kept/here\naddopts = --cov -p no:nothing\n"),
        ("pyproject.toml", "[tool.pytest.ini_options]\nlens_baseline_dir = 'kept/here'\n"),
    ],
)
def test_the_folder_of_the_ini_key_is_found_from_inside_and_outside(
    file, text, snapshots, tmp_path, monkeypatch, capsys
):
    (tmp_path / file).write_text(text, encoding="utf-8")
    store = Store.of(tmp_path, tmp_path / "kept" / "here")
    store.accept("zoo/small", snapshots[0])
    store.keep("zoo/small", snapshots[1])
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    assert main(["diff", "zoo:small"]) == 1
    assert main(["matrix", "../kept/here", "../kept/here"]) == 0
    assert main(["show", "zoo:small"]) == 0
    assert main(["ls", "--dir=../elsewhere", "--root=.."]) == 0
    assert "0 baselines" in capsys.readouterr().out.splitlines()[-1]
    monkeypatch.chdir(tmp_path.parent)
    assert main(["accept", "zoo:small", f"--root={tmp_path.name}"]) == 0
    assert capsys.readouterr().out == f"stored {tmp_path.name}/kept/here/zoo/small.json\n"
    assert store.load("zoo/small").measured == snapshots[1].measured


def test_settings_that_pytest_cannot_read_are_told(store, tmp_path, capsys):
    (tmp_path / "pytest.ini").write_text("[pytest\nlens_baseline_dir = here\n", encoding="utf-8")
    assert main(["ls"]) == 2
    assert "pytest cannot read the project's settings: " in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_repository_inside_another_changes_nothing_of_the_outer_one(kind, store, tmp_path, monkeypatch, capsys):
    inner = tmp_path / "inner" / "package"
    inner.mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    (tmp_path / "pyproject.toml").touch()
    mark = tmp_path / "inner" / ".git"
    mark.mkdir() if kind == "folder" else mark.write_text("gitdir: ../.git/modules/inner\n")
    monkeypatch.chdir(inner)
    assert main(["prune"]) == 0
    assert capsys.readouterr().out == "0 no longer wait to be accepted, in .lens/pending\n"
    assert main(["accept", "*"]) == 2
    assert store.waiting() == ["zoo/other", "zoo/small"]
    assert main(["prune", "zoo/other", "--root", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"1 no longer waits to be accepted, in {store.pending}\n"


def test_diff_takes_names_of_sets(store, snapshots, tmp_path, capsys):
    for name, snapshot in zip(("torch-2.13", "torch-2.14"), snapshots, strict=True):
        Store.of(tmp_path, None, name).accept("zoo/net", snapshot)
    for first, second in (("torch-2.13", "torch-2.14"), ("@torch-2.13", "lens_baselines/@torch-2.14")):
        assert main(["diff", first, second]) == 1
        assert capsys.readouterr().out.startswith("zoo/net: regression at act/gelu;")
    assert main(["diff", "@torch-2.13/zoo/net", "@torch-2.14/zoo/net"]) == 1
    assert main(["diff", "lens_baselines", "@torch-2.14"]) == 2  # no model of the same name
    Store.of(tmp_path, None, "torch-2.13").keep("zoo/net", snapshots[1])
    for arguments in (["@torch-2.13"], ["--lens-baseline=torch-2.13"], ["zoo:net", "--baseline=@torch-2.13"]):
        assert main(["diff", *arguments]) == 1
        assert "zoo/net: regression at act/gelu" in capsys.readouterr().out
    assert main(["diff", "@torch-2.13/zoo/net"]) == 1
    assert "zoo/net: regression at act/gelu" in capsys.readouterr().out
    for arguments in (["@torch-2.15"], ["@torch-2.15/zoo/net"], ["@torch-2.15/zoo/net", "zoo/small"]):
        assert main(["diff", *arguments]) == 2
        assert "no set 'torch-2.15' in lens_baselines: did you mean 'torch-2.1" in capsys.readouterr().err
    assert main(["diff", "@"]) == 2
    assert "expected the name of a set after '@': known are torch-2.13, torch-2.14" in capsys.readouterr().err
    assert main(["diff", "@torch-2.13", "@torch-2.15"]) == 2
    assert "no set 'torch-2.15' in lens_baselines: did you mean 'torch-2.1" in capsys.readouterr().err
    assert main(["ls", "--baseline=torch-2.12"]) == 2
    assert "--baseline: no set 'torch-2.12' in lens_baselines: did you mean" in capsys.readouterr().err
    assert main(["diff", "@torch-2.13", "zoo/small"]) == 2
    assert "expected two sets or two models, got the set @torch-2.13 and zoo/small" in capsys.readouterr().err


def test_diff_of_what_waits_compares_the_times_of_this_machine(store, capsys):
    for seconds in (0.25, 0.5):
        store.note_time("zoo/small", "this", seconds)
    assert main(["diff", "zoo/small", "--fail", "none,time:+50%"]) == 1
    assert "the fastest pass took 250 ms and takes 500 ms on this machine (+100 %)" in capsys.readouterr().out
    assert main(["diff", "zoo/small", "--fail", "none,time:+150%"]) == 0


def test_accept_and_prune_move_what_waits(store):
    assert main(["accept", "zoo/small"]) == 0
    assert (store.models(), store.waiting()) == (["zoo/small"], ["zoo/other"])
    assert main(["prune"]) == 0
    assert store.waiting() == []


def test_folders_and_files_are_compared_too(store, snapshots, tmp_path, capsys):
    for name, snapshot in zip("ab", snapshots, strict=True):
        (tmp_path / name).mkdir()
        (tmp_path / name / "net.json").write_text(to_text(snapshot), encoding="utf-8")
    assert main(["diff", "a", "b"]) == 1
    assert main(["diff", "a/net.json", "b/net.json"]) == 1
    assert main(["diff", "a", "a"]) == 0
    told = capsys.readouterr().out
    assert "net: identical; all 11 operations compute the same" in told
    assert "accept" not in told, "nothing waits"


def test_a_model_that_one_folder_lacks_is_told_of(store, snapshots, tmp_path, capsys):
    for name, models in (("old", "ab"), ("new", "bc")):
        for model in models:
            Store(tmp_path / name, tmp_path / "waiting").accept(model, snapshots[0])
    assert main(["diff", "old", "new"]) == 1
    told = capsys.readouterr().out.splitlines()
    assert (told[0], told[2]) == ("a: only in old", "c: only in new")
    (tmp_path / "new" / "a.json").write_text(to_text(snapshots[0]), encoding="utf-8")
    assert main(["diff", "old", "new"]) == 0
    assert main(["diff", "old", "new", "--fail=new"]) == 1


def test_it_works_without_torch(store, tmp_path):
    program = "import sys; sys.modules['torch'] = None; from pytest_torchlens.cli import main; sys.exit(main())"
    ran = subprocess.run(
        [sys.executable, "-c", program, "diff", "zoo/small"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1, ran.stderr
    assert "regression at act/gelu" in ran.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "zoo/smal"], "no baseline 'zoo/smal' in lens_baselines: did you mean 'zoo/small'?"),
        (["diff", "zoo/none"], "nothing waits to be accepted for 'zoo/none'"),
        (["accept", "zoo/x*"], "nothing that waits matches 'zoo/x*'"),
        (["diff", "zoo/small", "--fail", "structur"], "expected a condition, got 'structur'"),
        (["diff", "a.json", "b.json"], "a.json cannot be read"),
    ],
)
def test_mistakes_are_explained(arguments, said, store, capsys):
    assert main(arguments) == 2
    assert said.replace("lens_baselines", "") in capsys.readouterr().err.replace(str(store.folder), "").replace(
        "lens_baselines", ""
    )


def test_numbers_of_other_environments_stay_as_long_as_the_steps_do(store, snapshots):
    (block,) = snapshots[0].measured.values()
    elsewhere = replace(snapshots[0], measured={"cpu OTHER 1 thread": block})
    store.accept("zoo/small", elsewhere)
    found = store.load("zoo/small")
    assert set(found.measured) == {*snapshots[0].measured, "cpu OTHER 1 thread"}
    shorter = replace(elsewhere, steps=elsewhere.steps[:-1], measured={})
    store.accept("zoo/small", shorter)
    assert store.load("zoo/small").measured == {}


@pytest.fixture
def sets(snapshots, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, models in (("old", "abc"), ("new", "ab")):
        for model in models:
            changed = name == "new" and model == "b"
            Store.of(tmp_path, name=name).accept(f"zoo/{model}", snapshots[changed])


def test_matrix_has_models_by_environments(sets, tmp_path, capsys):
    assert main(["matrix", "old", "new", "--md", "m.md", "--html", "m.html"]) == 1
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[2:5] == [["zoo/a", "identical"], ["zoo/b", "regression"], ["zoo/c", "error"]]
    assert "| zoo/b | regression |" in " ".join((tmp_path / "m.md").read_text().split())
    assert "act/gelu" in (tmp_path / "m.html").read_text()
    assert main(["matrix", "old", "old"]) == 0
    assert "\nold: the same environment\n" in capsys.readouterr().out


def test_matrix_names_in_what_the_environments_differ(snapshots, tmp_path, capsys):
    ((kind, block),) = snapshots[0].measured.items()
    older = replace(snapshots[0], measured={kind: replace(block, environment=replace(block.environment, torch="2.0"))})
    for name, snapshot in (("older", older), ("newer", snapshots[0])):
        Store.of(tmp_path, name=name).accept("zoo/a", snapshot)
    pages = [tmp_path / "m.md", tmp_path / "m.html"]
    assert main(["matrix", "older", "newer", f"--root={tmp_path}", f"--md={pages[0]}", f"--html={pages[1]}"]) == 0
    for text in (capsys.readouterr().out, *(page.read_text(encoding="utf-8") for page in pages)):
        assert "newer: torch 2.0 → " in text


def test_matrix_tells_of_what_is_the_whole_models(snapshots, tmp_path, capsys):
    larger = replace(snapshots[0], totals={name: 2 * size for name, size in snapshots[0].totals.items()})
    for name, snapshot in (("a", snapshots[0]), ("b", larger)):
        Store.of(tmp_path, name=name).accept("zoo/net", snapshot)
    assert main(["matrix", "a", "b", f"--root={tmp_path}"]) == 0
    assert "zoo/net, b: larger: flops 71,808 → 143,616 (+100 %)" in capsys.readouterr().out
    assert main(["matrix", "a", "b", f"--root={tmp_path}", "--fail=flops:+50%"]) == 1


def test_names_of_files_that_a_terminal_or_a_table_would_obey(snapshots, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for folder in "ab":
        Store(tmp_path / folder, tmp_path / "waiting").accept("net", snapshots[0])
        for name in ("x|y", "\x1b[31m"):
            (tmp_path / folder / f"{name}.json").write_text(to_text(snapshots[0]), encoding="utf-8")
    assert main(["diff", "a", "b"]) == main(["matrix", "a", "b", "--md=m.md"]) == 0
    assert main(["ls", "--dir=a"]) == 0
    assert "\x1b" not in capsys.readouterr().out
    assert r"| x\|y " in (tmp_path / "m.md").read_text(encoding="utf-8")


def test_matrix_of_nothing_is_a_mistake(tmp_path, capsys):
    for name in "ab":
        (tmp_path / name).mkdir()
    assert main(["matrix", str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert "nothing to compare: no baselines in" in capsys.readouterr().err


@pytest.mark.parametrize("given", [["old"], ["old", "none"]])
def test_matrix_explains_mistakes(given, sets, capsys):
    assert main(["matrix", *given]) == 2
    assert given[-1] in capsys.readouterr().err


NET = """
from torch import nn
class Net(nn.Module):
    def forward(self, x):
        return x.relu()
"""


@pytest.fixture
def waits(pytester):
    """A project whose model's result waits to be accepted."""
    pytester.makepyfile(net=NET)
    pytester.makepyfile(
        test_net="""
        import torch
        from net import Net
        def test_net(lens_trace, lens_check):
            lens_check(lens_trace(Net(), torch.arange(3.0)))
        """
    )
    pytester.runpytest_inprocess("-p", "no:randomly").assert_outcomes(passed=1)
    return pytester


def test_accept_is_silent_where_nothing_changed_since_the_run(waits, capsys):
    capsys.readouterr()
    assert main(["accept", "*"]) == 0
    told = capsys.readouterr().out
    assert "warning" not in told
    assert '"code"' not in next(waits.path.glob("lens_baselines/**/*.json")).read_text(encoding="utf-8")


def test_accept_warns_of_code_and_versions_that_changed_since_the_run(waits, capsys):
    waits.makepyfile(net=NET.replace("relu", "exp"))
    pending = next(waits.path.glob(".lens/pending/**/*.json"))
    pending.write_text(re.sub(r'"torch": "[^"]*"', '"torch": "1.0"', pending.read_text(encoding="utf-8")), "utf-8")
    capsys.readouterr()
    assert main(["accept", "*"]) == 0
    told = capsys.readouterr().out
    assert "since its run net.py changed, torch 1.0 → " in told
    assert "stored " in told
    assert list(waits.path.glob("lens_baselines/**/*.json"))


def test_accept_tells_of_a_file_that_is_gone(waits, capsys):
    (waits.path / "net.py").unlink()
    assert main(["accept", "*"]) == 0
    assert "since its run net.py is gone: run it again to be sure" in capsys.readouterr().out
