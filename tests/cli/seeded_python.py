"""Makes interpreters that stand for releases of PyTorch: this one's packages, some with a wrong kernel."""

from __future__ import annotations

import sys
import sysconfig
import venv
from pathlib import Path

WRONG_SILU = """
import importlib.abc, importlib.util, sys


class Patcher(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (load(module), patch(module))
        return spec


def patch(torch):
    global KERNELS
    KERNELS = torch.library.Library("aten", "IMPL")
    sound = torch.library.get_kernel("aten::silu", "CPU")
    KERNELS.impl("silu", lambda keys, *args: sound.call_boxed(keys, *args) * (1 + 2**-10), "CPU", with_keyset=True)


sys.meta_path.insert(0, Patcher())
"""


def make_python(folder: Path, *, wrong: bool = False, empty: bool = False) -> Path:
    """Make an interpreter with this one's packages, or with none; return its path."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = {path.resolve() for path in folder.rglob("site-packages")}
    if not empty:
        (site / "these.pth").write_text(f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")
    if wrong:
        (site / "sitecustomize.py").write_text(WRONG_SILU, encoding="utf-8")
    return folder / "bin" / "python"


UV = f"""#!{sys.executable}
import json, pathlib, sys, time
sys.path[:0] = {[str(Path(__file__).parents[2])]!r}
from tests.cli.seeded_python import make_python

faults = json.loads(pathlib.Path(__file__).with_name("faults.json").read_text())
log = pathlib.Path(__file__).with_name("log")
if sys.argv[1] == "venv":
    folder = pathlib.Path(sys.argv[-1])
    others = sorted(path.name for path in folder.parent.glob("torch-*"))
    with log.open("a") as file:
        file.write(json.dumps({{"beside": others, "folder": str(folder.parent)}}) + "\\n")
    make_python(folder, empty=True)
else:
    with log.open("a") as file:
        file.write(json.dumps({{"install": sys.argv[2:]}}) + "\\n")
    (release,) = [part.partition("==")[2] for part in sys.argv if part.startswith("torch==")]
    fault = faults.get(release)
    if fault == "missing":
        sys.exit("  x No solution found\\nerror: there is no wheel of torch " + release)
    if fault == "slow":
        time.sleep(600)
    python = pathlib.Path(sys.argv[sys.argv.index("--python") + 1])
    make_python(python.parents[1], wrong=fault == "wrong")
"""
"""A program in place of uv, which downloads nothing."""


def fake_uv(folder: Path) -> Path:
    """Put it into a folder, for the PATH; ``faults.json`` there names releases, ``log`` gets what was asked for."""
    folder.mkdir()
    (folder / "uv").write_text(UV, encoding="utf-8")
    (folder / "uv").chmod(0o755)
    return folder
