"""``pytest-lens zoo``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from pytest_torchlens.cli import main
from pytest_torchlens.zoo import load_zoo
from pytest_torchlens.zoo.catalog import covering_globs

MODELS = """
import torch
from torch import nn

class Fixed(nn.Module):
    def __init__(self, img_size=96):
        super().__init__()
        self.head = nn.Linear(img_size * img_size, 2)
    def forward(self, x):
        return self.head(x.flatten(2))

class Coarse(nn.Module):
    def forward(self, x):
        assert x.shape[-1] >= 64, "too small"
        return x.mean()

class Fails(nn.Module):
    def forward(self, x):
        raise ValueError("never")

def zoo():
    return {"any_a": nn.Identity, "any_b": nn.Identity, "fixed": Fixed, "coarse": Coarse, "fails": Fails}
"""
ZOO = """
provider: "python:models.py:zoo"
defaults: {input: {shape: [1, 3, 96, 96]}}
rules:
  - {match: fails, xfail: it never works, size: slow}
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "model_zoo_configs"
    folder.mkdir()
    (folder / "models.py").write_text(MODELS)
    (folder / "mine.yaml").write_text(ZOO)
    monkeypatch.chdir(tmp_path)
    return folder


def said(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert main(["zoo", *arguments]) == status
    captured = capsys.readouterr()
    return captured.err if status else captured.out


def test_zoos_are_listed(capsys, project: Path):
    (project / "wrong.yaml").write_text("provider: nowhere\n")
    lines = said(capsys, "list").splitlines()
    assert "mine 5 model_zoo_configs/mine.yaml" in [" ".join(line.split()) for line in lines]
    assert any(line.startswith("torchvision ") for line in lines)
    assert any("unknown provider 'nowhere'" in line for line in lines)


def test_models_are_listed_with_what_the_file_says(capsys):
    lines = [" ".join(line.split()) for line in said(capsys, "list", "mine", "f*").splitlines()]
    assert lines[2:] == [
        "fails fails slow float32[1, 3, 96, 96] xfail: it never works",
        "fixed fixed fast float32[1, 3, 96, 96]",
    ]


def test_rules_of_what_was_measured(capsys, project: Path):
    out = said(capsys, "probe", "mine", "--out", "small.yaml", "--sizes=32,64")
    assert "# 4 of 5: fails: ValueError: never" in out
    written = yaml.safe_load(Path("small.yaml").read_text())
    rules = {tuple(rule.pop("match")): rule for rule in written["rules"]}
    assert rules == {
        ("any*",): {"input": {"shape": [1, 3, 32, 32]}},
        ("coarse",): {"input": {"shape": [1, 3, 64, 64]}},
        ("fixed",): {"input": {"shape": [1, 3, 32, 32]}, "kwargs": {"img_size": 32}},
    }
    Path("small.yaml").rename(project / "small.yaml")
    case = load_zoo(project / "small.yaml").case("fixed")
    model = case.build()
    assert model(*case.make_inputs(model).args).shape == (1, 3, 2)


PLUGIN = """
def pytest_configure(config):
    config.birds = "birds/birds.yaml"

def pytest_lens_register_zoo(config):
    return config.birds
"""


@pytest.fixture
def plugin(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a plugin that registers a zoo, and that ``addopts`` names; return its file."""
    (project.parent / "birds").mkdir()
    (project.parent / "birds" / "birds.yaml").write_text('provider: "python:../model_zoo_configs/models.py:zoo"\n')
    (project.parent / "pytest.ini").write_text(
        "[pytest]\naddopts = -v -p bird_plugin --log-file=mine.log --no-such-option\n"
    )
    (project.parent / "bird_plugin.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(project.parent)
    yield project.parent / "bird_plugin.py"
    sys.modules.pop("bird_plugin", None)


def test_a_plugin_that_addopts_names_registers_zoos(capsys, plugin: Path):
    (plugin.parent / "mine.log").write_text("keep\n")
    assert "any_a" in said(capsys, "list", "birds")
    assert (plugin.parent / "mine.log").read_text() == "keep\n"


def test_a_plugin_that_cannot_be_imported_is_named(capsys, plugin: Path):
    plugin.unlink()
    told = said(capsys, "list", "birds", status=2)
    assert told.startswith("pytest-lens: error: pytest cannot read the project's settings: ")
    assert 'Error importing plugin "bird_plugin": No module named' in told
    assert told.count("\n") == 1


def test_settings_are_read_without_starting_or_changing_a_run(capsys, project: Path):
    (project.parent / "pytest.ini").write_text("[pytest]\nlens_report = report\nlens_validate = true\n")
    (project.parent / "report").mkdir()
    (project.parent / "report" / "report.json").write_text("{}")
    (project.parent / "conftest.py").write_text("def pytest_sessionstart():\n    raise SystemError")
    before = sorted(project.parent.rglob("*"))
    assert "any_a" in said(capsys, "list", "mine")
    after = [path for path in sorted(project.parent.rglob("*")) if "__pycache__" not in path.parts]
    assert after == before
    assert (project.parent / "report" / "report.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "config.birds\n",
            "config.nothing\n",
            "pytest_lens_register_zoo in {}, line 6, raised AttributeError: ",
        ),
        ('config.birds = "', 'raise KeyError("a") or "', "pytest_configure in {}, line 3, raised KeyError: 'a'"),
        ("config.birds\n", "exit(3)\n", "pytest_lens_register_zoo in {}, line 6, raised SystemExit: 3"),
        ("config.birds\n", "5\n", "pytest_lens_register_zoo: expected a path or several, got [5]"),
    ],
)
def test_a_hook_that_fails_is_named(capsys, plugin: Path, old: str, new: str, message: str):
    plugin.write_text(PLUGIN.replace(old, new))
    told = said(capsys, "list", "birds", status=2)
    assert told.startswith(f"pytest-lens: error: {message.format(plugin)}")
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "mien"], "unknown zoo 'mien': did you mean 'mine'?"),
        (["list", "mine", "fixt"], "zoo 'mine' has no model 'fixt': did you mean 'fixed'?"),
        (["probe", "nowhere.yaml"], "nowhere.yaml: "),
        (["probe", "mine", "--sizes=32,a"], "--sizes: expected whole numbers such as 32,64, got '32,a'"),
        (
            ["probe", "mine", "any_a", "--out=no/such/folder.yaml"],
            "no/such/folder.yaml cannot be written: No such file",
        ),
    ],
)
def test_what_is_wrong_is_named(capsys, arguments: list[str], message: str):
    assert message in said(capsys, *arguments, status=2)


@pytest.mark.parametrize(
    ("group", "others", "expected"),
    [
        (["vit_base", "vit_large"], ["vita", "swin"], ["vit_*"]),
        (["vit"], ["vit_base"], ["vit"]),
        (["vit", "vit_small"], ["vit_base"], ["vit", "vit_small"]),
        (["resnet18", "resnet34"], ["resnest"], ["resnet*"]),
        (["abc", "abd"], ["ax"], ["ab*"]),
        (["a"], [], ["a"]),
        (["net[v2]_a", "net[v2]_b"], ["net[v3]", "net2_a"], ["net[[]v2]*"]),
        (["a_b", "a_c", "a_*"], ["b"], ["a*"]),
        (["a_b", "a_*"], ["ab"], ["a_*", "a_b"]),
    ],
)
def test_globs_cover_a_group_and_nothing_else(group: list[str], others: list[str], expected: list[str]):
    assert covering_globs(group, [*group, *others]) == expected
