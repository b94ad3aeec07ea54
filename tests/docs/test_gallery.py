"""The gallery shows what its command draws now."""

from __future__ import annotations

import importlib
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch

pytest.importorskip("torchvision")

DOCS = Path(__file__).parents[2] / "docs"
SVG = "{http://www.w3.org/2000/svg}"
SMALL = (
    *("demo", "recurrent_rolled", "organization", "figure_3a_rolled"),
    *("figure_3b_unrolled", "gradient", "difference", "edited", "sweep"),
)


@pytest.fixture(scope="module")
def gallery():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS))
        yield importlib.import_module("make_gallery")


def test_the_page_is_up_to_date(gallery):
    assert (DOCS / "gallery.md").read_text(encoding="utf-8") == gallery.page(), "run: python docs/make_gallery.py"


def test_every_picture_is_there_and_described(gallery):
    assert {path.stem for path in (DOCS / "gallery").iterdir()} == set(gallery.FIGURES) == set(gallery.SEEN)


def test_no_picture_has_a_path_of_the_machine_it_was_made_on():
    paths = [
        path for path in (DOCS / "gallery").iterdir() if re.search(r"[\s;\"]/\w+/", path.read_text(encoding="utf-8"))
    ]
    assert paths == []


def test_the_code_above_a_picture_draws_it(gallery, tmp_path, monkeypatch):
    sections = re.findall(r"```python\n(.*?)```(?:\n\n!\[[^]]*\]\(gallery/(\w+)\.svg\))?", gallery.page(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    known = {}
    for code, name in sections:
        if name and name not in SMALL and "torchvision" in code:
            continue
        torch.manual_seed(0)
        script = tmp_path / f"{name or 'imports'}.py"
        script.write_text(code, encoding="utf-8")
        exec(compile(code, script, "exec"), known)  # noqa: S102 - what the page shows
        for path in tmp_path.glob("*.svg"):
            assert graph(path) == graph(DOCS / "gallery" / f"{name}.svg"), name
            path.unlink()


@pytest.mark.parametrize("name", SMALL)
def test_the_command_draws_the_same_graph_again(gallery, name, tmp_path, monkeypatch):
    monkeypatch.setattr(gallery, "FOLDER", tmp_path)
    gallery.draw(name)
    assert graph(tmp_path / f"{name}.svg") == graph(DOCS / "gallery" / f"{name}.svg")


def graph(path):
    """Return nodes with their text, and arrows, wherever they lie; of a heat map its cells, and what is around them."""
    root = ET.parse(path).getroot()  # noqa: S314 - drawn here
    groups = [group for group in root.iter(f"{SVG}g") if group.get("class", "").split()[:1] in (["node"], ["edge"])]
    if not groups:
        return [text for part in root for text in texts(part)]
    return {
        (group.findtext(f"{SVG}title"), *sorted(map("".join, map(texts, group.iter(f"{SVG}text"))))) for group in groups
    }


def texts(element):
    return [re.sub(r"(norm:|changed by) .*", r"\1", text) for text in element.itertext()]
