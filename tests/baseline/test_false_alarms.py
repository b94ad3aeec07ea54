"""Twenty models in ten fresh processes, with one thread and with two: nothing but drift is found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from pytest_torchlens.baseline.compare import compare
from pytest_torchlens.baseline.snapshot_file import read
from pytest_torchlens.records import Change

pytest.importorskip("torchvision")
ROOT = Path(__file__).parents[2]
MODELS = """
alexnet convnext_tiny densenet121 efficientnet_b0 efficientnet_v2_s googlenet inception_v3 maxvit_t mnasnet0_5
mobilenet_v2 mobilenet_v3_large regnet_x_400mf regnet_y_400mf resnet18 resnext50_32x4d shufflenet_v2_x0_5
squeezenet1_1 swin_t swin_v2_t vit_b_32
""".split()
PROCESSES = 5
HARMLESS = {1: (Change.IDENTICAL,), 2: (Change.IDENTICAL, Change.DRIFT)}
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
