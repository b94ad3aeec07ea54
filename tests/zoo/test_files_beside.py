"""A zoo's Python file imports the files beside it, as a script does, and nobody else sees them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from pytest_torchlens.zoo import ZooError
from pytest_torchlens.zoo import load_zoo

MODELS = """
from torch import nn
{imports}

def zoo():
    return {{"tiny": lambda: nn.Linear({width}, 1)}}
"""


@pytest.fixture(autouse=True)
def _former_modules():
    former, finders = dict(sys.modules), list(sys.meta_path)
    yield
    for name in sys.modules.keys() - former.keys():
        if name.startswith("zoo_file_"):
            del sys.modules[name]
    sys.meta_path[:] = finders


def width_of(folder: Path, imports: str, width: str, files: dict[str, str]) -> int:
    """Return the width of the zoo's model, made of files beside its own."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "models.py").write_text(MODELS.format(imports=imports, width=width))
    (folder / "mine.yaml").write_text("provider: python:models.py:zoo\n")
    return int(load_zoo(folder / "mine.yaml").case("tiny").build().in_features)


@pytest.mark.parametrize(
    ("imports", "width"),
    [
        ("from layers import WIDTH", "WIDTH"),
        ("from layers import WIDTH as w, OTHER", "w"),
        ("from layers import *", "WIDTH"),
        ("import layers", "layers.WIDTH"),
        ("import layers as l, os", "l.WIDTH"),
        ("from .layers import WIDTH", "WIDTH"),
        ("from . import layers", "layers.WIDTH"),
        ("from . import layers as l", "l.WIDTH"),
        ("import parts.norms", "parts.norms.WIDTH"),
        ("import parts.norms as n", "n.WIDTH"),
        ("from parts import norms", "norms.WIDTH"),
        ("from parts.norms import WIDTH", "WIDTH"),
        ("from parts import WIDTH", "WIDTH"),
        ("from plain.norms import WIDTH", "WIDTH"),
        ("def later():\n    from layers import WIDTH\n    return WIDTH", "later()"),
        ("try:\n    import absent\nexcept ImportError:\n    import layers", "layers.WIDTH"),
        ("if True:\n    pass\nelse:\n    import absent\nfrom circle import back", "back()"),
    ],
)
def test_each_form_of_import_finds_the_file_beside(tmp_path: Path, imports: str, width: str):
    files = {
        "layers.py": "WIDTH, OTHER = 7, 8\n",
        "parts/__init__.py": "from .norms import WIDTH\n",
        "parts/norms.py": "from layers import WIDTH\n",
        "plain/norms.py": "import layers\nWIDTH = layers.WIDTH\n",
        "circle.py": "def back():\n    from half import width\n    return width()\n",
        "half.py": "import circle\n\ndef width():\n    return 7 if circle.back else 0\n",
    }
    path, names = list(sys.path), set(sys.modules)
    assert width_of(tmp_path / "zoo", imports, width, files) == 7
    assert sys.path == path
    new = {name for name in set(sys.modules) - names if not name.startswith("zoo_file_")}
    assert not new & {"layers", "parts", "plain", "circle", "half", "models"}


def test_equal_names_beside_two_zoos_are_two_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "layers.py").write_text("WIDTH = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    later = "def later():\n    import layers\n    return layers.WIDTH"
    widths = [
        width_of(tmp_path / name, later, "later()", {"layers.py": f"WIDTH = {n}\n"}) for name, n in (("a", 3), ("b", 5))
    ]
    import layers

    assert (*widths, layers.WIDTH) == (3, 5, 1)
    del sys.modules["layers"]


def test_a_file_named_as_the_library_it_imports_gets_the_library(tmp_path: Path):
    folder = tmp_path / "zoo"
    folder.mkdir()
    (folder / "torch.py").write_text(MODELS.format(imports="import torch", width="torch.ones(3).numel()"))
    (folder / "mine.yaml").write_text("provider: python:torch.py:zoo\n")
    assert load_zoo(folder / "mine.yaml").case("tiny").build().in_features == 3
    assert sys.modules["torch"] is torch


def test_folders_beside_are_no_modules_if_a_library_has_their_name(tmp_path: Path):
    files = {"torch/weights.py": "", "random.py": "raise SystemExit\n"}
    assert width_of(tmp_path / "zoo", "import random, torch", "torch.ones(random.randint(2, 2)).numel()", files) == 2


def test_classes_beside_are_pickled_and_are_the_same_for_inputs(tmp_path: Path):
    files = {
        "layers.py": "from torch import nn\nclass Scale(nn.Linear):\n    pass\n",
        "inputs.py": "import torch\nfrom layers import Scale\n\ndef make(model):\n"
        "    assert type(model) is Scale\n    return torch.ones(1, 3)\n",
    }
    folder = tmp_path / "zoo"
    width_of(folder, "from layers import Scale", "2", files)
    (folder / "models.py").write_text(
        "from layers import Scale\n\ndef zoo():\n    return {'tiny': lambda: Scale(3, 1)}\n"
    )
    (folder / "mine.yaml").write_text('provider: python:models.py:zoo\ndefaults: {input: "inputs.py:make"}\n')
    case = load_zoo(folder / "mine.yaml").case("tiny")
    model = case.build()
    inputs = case.make_inputs(model)
    assert inputs.args[0].shape == (1, 3)
    torch.save(model, tmp_path / "model.pt")
    assert type(torch.load(tmp_path / "model.pt", weights_only=False)) is type(model)


def test_an_error_in_a_file_beside_names_it(tmp_path: Path):
    with pytest.raises(ZooError, match=r"cannot load models\.py: SyntaxError: .*layers\.py, line 1"):
        width_of(tmp_path / "zoo", "import layers", "1", {"layers.py": "def (:\n"})
    with pytest.raises(ZooError, match=r"cannot load models\.py: ImportError: cannot import name 'X' .*layers\.py"):
        width_of(tmp_path / "other", "from layers import X", "1", {"layers.py": ""})
