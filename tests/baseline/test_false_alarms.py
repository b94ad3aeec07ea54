"""Unchanged models in fresh processes, threads, CPU capabilities and versions of PyTorch: none fails.

``LENS_OTHER_PYTHON`` names interpreters with other versions, with the separator of ``PATH`` between them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from pytest_torchlens.baseline.compare import compare
from pytest_torchlens.baseline.conditions import Conditions
from pytest_torchlens.baseline.matrix import Matrix
from pytest_torchlens.baseline.snapshot_file import read
from pytest_torchlens.records import Change

pytest.importorskip("torchvision")
ROOT = Path(__file__).parents[2]
MODELS = """
alexnet convnext_tiny densenet121 efficientnet_b0 efficientnet_v2_s googlenet inception_v3 maxvit_t mnasnet0_5
mobilenet_v2 mobilenet_v3_large regnet_x_400mf regnet_y_400mf resnet18 resnext50_32x4d shufflenet_v2_x0_5
squeezenet1_1 swin_t swin_v2_t vit_b_32
""".split()
PROCESSES = 3
HARMLESS = {
    1: (Change.IDENTICAL,),
    2: (Change.IDENTICAL, Change.DRIFT),
    "version": (Change.IDENTICAL, Change.DRIFT, Change.LOCAL_CHANGE),
}
PROGRAM = """
import sys
from pathlib import Path
import torchvision
from pytest_torchlens.baseline.snapshot_file import to_text
from tests.baseline.samples import an_input, filled, snapshot_of

folder, *names = sys.argv[1:]
for name in names:
    size = 224 if name in ("maxvit_t", "vit_b_32") else 96
    snapshot = snapshot_of(filled(getattr(torchvision.models, name)()), an_input(1, 3, size, size))
    Path(folder, f"{name}.json").write_text(to_text(snapshot), encoding="utf-8")
"""


def _run(folder: Path, threads: int) -> Path:
    folder.mkdir()
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    subprocess.run([sys.executable, "-c", PROGRAM, str(folder), *MODELS], cwd=ROOT, env=environment, check=True)
    return folder


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """Return the folder of what a process with one thread obtained."""
    return _run(tmp_path_factory.mktemp("first") / "run", threads=1)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_models_again_raise_no_alarm(threads, first, tmp_path, capsys):
    assert len(MODELS) == 20
    found: Counter[str] = Counter()
    alarms = []
    for number in range(PROCESSES):
        folder = _run(tmp_path / str(number), threads)
        for name in MODELS:
            comparison = compare(read(first / f"{name}.json"), read(folder / f"{name}.json"))
            found[comparison.verdict.value] += 1
            if comparison.verdict not in HARMLESS[threads] or comparison.fails:
                alarms.append((name, number, comparison.verdict.value, comparison.findings[:2]))
    with capsys.disabled():
        print(f"\n{threads} threads: {len(alarms)} alarms in {sum(found.values())} comparisons: {dict(found)}")  # noqa: T201 - the figure
    assert alarms == []


PYTHONS = [sys.executable, *filter(None, os.environ.get("LENS_OTHER_PYTHON", "").split(os.pathsep))]
ZOOS = {
    "torchvision": "torchvision:mobilenet_v3_small,resnet18,shufflenet_v2_x0_5,squeezenet1_1,swin_t",
    "timm": "timm:test_convnext,test_efficientnet,test_nfnet,test_resnet,test_vit",
    "transformers": "transformers:bert,gpt2",
}
PLAIN = Path(__file__).with_name("plain")
SETTINGS = {
    "1-thread": {},
    "2-threads": {"OMP_NUM_THREADS": "2"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "default": {"ATEN_CPU_CAPABILITY": "default"},
}
FOUND = """
import importlib.util, sys, torch
print(torch.__version__.partition("+")[0], *(name for name in sys.argv[1:] if importlib.util.find_spec(name)))
"""
OPTIONS = (
    "-p pytest_torchlens.plugin -q --lens-validate --lens-parts=replay --lens-update=all --lens-update-in-ci".split()
)


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """Store a set for each interpreter and setting; return PyTorch's version by folder, the reference first."""
    folder = tmp_path_factory.mktemp("sets")
    return {folder / "lens_baselines" / f"@{name}": version for name, version in _stored(folder).items()}


def _same_and_other_versions(sets):
    """Return the folders whose version of PyTorch is the reference's, and the reference with all others."""
    reference, *rest = sets
    same = [folder for folder in rest if sets[folder] == sets[reference]]
    return [reference, *same], [reference, *(folder for folder in rest if folder not in same)]


@pytest.mark.slow
def test_other_threads_and_cpu_capabilities_raise_no_alarm(sets, capsys):
    folders, others = _same_and_other_versions(sets)
    note = "" if len(others) > 1 else "; other versions were not compared: LENS_OTHER_PYTHON names none"
    assert _alarms(folders, HARMLESS[2], capsys, f"PyTorch {sets[folders[0]]}{note}", least=60) == []


@pytest.mark.slow
def test_other_versions_of_pytorch_raise_no_alarm(sets, capsys):
    _, folders = _same_and_other_versions(sets)
    versions = [*dict.fromkeys(sets[folder] for folder in folders)]
    if len(PYTHONS) == 1:
        pytest.skip(f"only PyTorch {versions[0]} was run, no versions were compared: LENS_OTHER_PYTHON names no other")
    assert len(versions) > 1, f"LENS_OTHER_PYTHON names only interpreters with PyTorch {versions[0]}"
    assert _alarms(folders, HARMLESS["version"], capsys, f"PyTorch {', '.join(versions)}", least=36) == []


def _alarms(folders, harmless, capsys, note, *, least):
    """Compare all folders with the first, print the table, and return what fails or has another class of change."""
    matrix, by_outputs = (Matrix.of(folders, Conditions.of(names)) for names in ((), ("outputs",)))
    cells = [(model, cell) for model, row in matrix.rows.items() for cell in row]
    compared = [(model, cell) for model, cell in cells if cell is not None]
    alarms = [
        (model, cell.verdict.value, cell.findings[:2])
        for model, cell in compared
        if cell.fails or cell.verdict not in harmless
    ]
    alarms += [(model, "outputs", ()) for model, row in by_outputs.rows.items() for cell in row if cell and cell.fails]
    words = dict(Counter(cell.verdict.value for _, cell in compared))
    with capsys.disabled():
        print(f"\n{matrix.table()}\n{matrix.details()}\n{note}")  # noqa: T201 - the figure
        print(f"{len(alarms)} alarms in {len(compared)} comparisons: {words}")  # noqa: T201 - the figure
        print(f"not compared, for want of their library: {len(cells) - len(compared)}")  # noqa: T201
    assert len(compared) >= least
    return alarms


def _stored(folder: Path) -> dict[str, str]:
    """Store a set of baselines for each interpreter and setting; return PyTorch's version by the set's name."""
    shutil.copytree(PLAIN, folder, dirs_exist_ok=True)
    versions = {}
    for python in PYTHONS:
        version, *libraries = _output_of([python, "-c", FOUND, *ZOOS], folder, {}).split()
        zoos = [argument for library in libraries for argument in ("--lens-zoo", ZOOS[library])]
        for name, settings in SETTINGS.items():
            versions[f"{version}-{name}"] = version
            command = [python, "-m", "pytest", *OPTIONS, f"--lens-baseline={version}-{name}", "plain.yaml", *zoos]
            _output_of([*command, "-k", "not (_float16 or _bfloat16)"], folder, settings)
    return versions


def _output_of(command: list[str], folder: Path, settings: dict[str, str]) -> str:
    own = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **own, **settings}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout
