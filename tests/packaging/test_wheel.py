from __future__ import annotations

import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

pytest.importorskip("hatchling")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=ROOT, check=True)
    return zipfile.ZipFile(next(folder.glob("*.whl")))


def about(wheel: zipfile.ZipFile, name: str) -> str:
    return wheel.read(next(path for path in wheel.namelist() if path.endswith(f".dist-info/{name}"))).decode()


def test_it_holds_the_package_and_nothing_beside_it(wheel: zipfile.ZipFile) -> None:
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"pytest_torchlens"}


def test_every_module_is_in_it(wheel: zipfile.ZipFile) -> None:
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "pytest_torchlens").rglob("*.py")}
    assert sources <= set(wheel.namelist())


def test_what_pages_are_made_of_is_in_it_with_its_licences(wheel: zipfile.ZipFile) -> None:
    folder = ROOT / "pytest_torchlens" / "report"
    made_of = {path for kind in ("vendor/*", "templates/*", "*.json") for path in folder.glob(kind)}
    assert {str(path.relative_to(ROOT)) for path in made_of} <= set(wheel.namelist())
    libraries = {path.name.partition(".")[0] for path in folder.glob("vendor/*.js")}
    assert {path.name.partition(".")[0] for path in folder.glob("vendor/*.LICENSE.txt")} == libraries


def test_zoo_files_are_in_it(wheel: zipfile.ZipFile) -> None:
    shipped = {name for name in wheel.namelist() if name.startswith("pytest_torchlens/zoo_configs/")}
    written = {path.name for path in (ROOT / "model_zoo_configs").iterdir()}
    assert shipped == {f"pytest_torchlens/zoo_configs/{name}" for name in written}


def test_it_says_that_it_is_typed_and_licensed(wheel: zipfile.ZipFile) -> None:
    assert "pytest_torchlens/py.typed" in wheel.namelist()
    assert about(wheel, "licenses/LICENSE").startswith("MIT License")


def test_pytest_finds_it_by_the_name_lens(wheel: zipfile.ZipFile) -> None:
    assert "[pytest11]\nlens = pytest_torchlens.plugin" in about(wheel, "entry_points.txt")


def test_it_has_the_command(wheel: zipfile.ZipFile) -> None:
    assert "[console_scripts]\npytest-lens = pytest_torchlens.cli:main" in about(wheel, "entry_points.txt")


def test_the_peer_is_no_dependency(wheel: zipfile.ZipFile) -> None:
    required = Parser().parsestr(about(wheel, "METADATA")).get_all("Requires-Dist", [])
    assert required
    assert not [line for line in required if line.startswith("torchlens")]
