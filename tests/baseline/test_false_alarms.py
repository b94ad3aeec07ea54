"""Twenty models in ten fresh processes, with one thread and with two: nothing but drift is found."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from pytest_torchlens.baseline.compare import compare
from pytest_torchlens.baseline.parsed import read
from pytest_torchlens.records import Change

pytest.importorskip("torchvision")
ROOT = Path(__file__).parents[2]
MODELS = """
alexnet convnext_tiny densenet121 efficientnet_b0 efficientnet_v2_s googlenet inception_v3 maxvit_t mnasnet0_5
mobilenet_v2 mobilenet_v3_large regnet_x_400mf regnet_y_400mf resnet18 resnext50_32x4d shufflenet_v2_x0_5
squeezenet1_1 swin_t swin_v2_t vit_b_32
""".split()
PROCESSES = 5
PROGRAM = """
import sys
from pathlib import Path
import torch
import torchvision
from pytest_torchlens.baseline.text import to_text
from tests.baseline.samples import an_input, filled, snapshot_of

folder, threads, *names = sys.argv[1:]
torch.set_num_threads(int(threads))
for name in names:
    size = 224 if name in ("maxvit_t", "vit_b_32") else 96
    snapshot = snapshot_of(filled(getattr(torchvision.models, name)()), an_input(1, 3, size, size))
    Path(folder, f"{name}.json").write_text(to_text(snapshot), encoding="utf-8")
"""


def _run(folder: Path, threads: int) -> Path:
    folder.mkdir()
    subprocess.run([sys.executable, "-c", PROGRAM, str(folder), str(threads), *MODELS], cwd=ROOT, check=True)
    return folder


@pytest.mark.slow
def test_the_same_models_again_raise_no_alarm(tmp_path, capsys):
    assert len(MODELS) == 20
    runs = {(threads, n): _run(tmp_path / f"{threads}-{n}", threads) for threads in (1, 2) for n in range(PROCESSES)}
    first = runs[1, 0]
    found: Counter[tuple[int, str]] = Counter()
    alarms = []
    for (threads, number), folder in runs.items():
        for name in MODELS:
            comparison = compare(read(first / f"{name}.json"), read(folder / f"{name}.json"))
            found[threads, comparison.verdict.value] += 1
            if comparison.verdict not in (Change.IDENTICAL, Change.DRIFT) or comparison.fails:
                alarms.append((name, threads, number, comparison.verdict.value, comparison.findings[:2]))
    with capsys.disabled():
        print(f"\n{len(alarms)} alarms in {sum(found.values())} comparisons: {dict(found)}")  # noqa: T201 - the figure
    assert alarms == []
