"""What the files of a project import, as far as their text tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_torchlens.baseline.source_files import Imports
from pytest_torchlens.baseline.source_files import package_of

FILES = {
    "app/__init__.py": "from app.nets import Net\nfrom .other import Other\nfrom .stars import *\n",
    "app/nets.py": "from .parts import block\nfrom app.parts.deep import names as many\nimport numpy, gone\n",
    "app/other.py": "import yaml\n",
    "app/stars.py": "",
    "app/parts/__init__.py": "from .block import block\nfrom .unused import unused\nWIDTH = 3\n",
    "app/parts/block.py": "def block():\n    import app.late\n",
    "app/parts/unused.py": "",
    "app/parts/deep/names.py": "",
    "app/late.py": "from torch import nn\nimport json\n",
    "src/lib.py": "from app import Net\nfrom app.parts import WIDTH\n",
    "uses_lib.py": "import lib\n",
    "broken.py": "import app.late\nthis is no Python\n",
    ".venv/lib/site-packages/einops.py": "import app.other\n",
    "uses_installed.py": "import einops\n",
}


@pytest.fixture
def top(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def closure(top: Path, name: str) -> set[str]:
    found = Imports(top, [top / ".venv/lib/site-packages"]).closure([top / name])
    return {path.relative_to(top).as_posix() for path in found}


def test_imports_are_followed_through_packages_folders_and_functions(top: Path):
    assert closure(top, "app/nets.py") == {
        *("app/__init__.py", "app/nets.py", "app/late.py"),
        *("app/parts/__init__.py", "app/parts/block.py", "app/parts/deep/names.py"),
    }


def test_of_a_package_only_what_is_asked_for_is_followed(top: Path):
    found = closure(top, "src/lib.py")
    assert {"app/__init__.py", "app/nets.py", "app/stars.py"} <= found
    assert "app/other.py" not in found
    assert "app/parts/unused.py" in found, "WIDTH is made in the package itself, of whatever it imports"


@pytest.mark.parametrize("text", [f"x = {'-' * 100_000}1\n", f"x = a{'.b' * 100_000}\n", "x = 1\0\n", "no Python\n"])
def test_imports_of_a_file_that_cannot_be_parsed_are_unknown(text: str, top: Path):
    (top / "app" / "late.py").write_text(text, encoding="utf-8")
    imports = Imports(top)
    assert imports.packages([top / "app/nets.py"]) == {"numpy"}
    files = imports.closure([top / "app/nets.py"])
    assert {file for file in files if imports.is_unknown(file)} == {top / "app/late.py"}


def test_a_source_folder_is_looked_in_and_installed_packages_are_not(top: Path):
    assert "src/lib.py" in closure(top, "uses_lib.py")
    assert closure(top, "uses_installed.py") == {"uses_installed.py"}
    assert closure(top, "broken.py") == {"broken.py"}


def test_packages_are_those_that_are_installed(top: Path):
    assert Imports(top).packages([top / "app/nets.py"]) == {"numpy", "torch"}
    assert Imports(top).packages([top / "app/other.py"]) == {"PyYAML"}
    assert package_of("json") == ""
