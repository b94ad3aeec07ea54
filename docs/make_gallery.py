"""Draw docs/gallery/*.svg and write docs/gallery.md: `python docs/make_gallery.py [NAME ...|page]`."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gallery_models as models
import torch
from gallery_text import HEAD
from gallery_text import SEEN
from generate_fields import fields
from torch import nn

import pytest_torchlens as tl
from pytest_torchlens import edit

DOCS = Path(__file__).parent
FOLDER = DOCS / "gallery"
PAGE = DOCS / "gallery.md"


@dataclass(frozen=True)
class Figure:
    """A picture: what is called to draw it, and the code that the page shows."""

    title: str
    draw: Callable[[Path], object]
    code: str
    source: tuple[Callable[..., nn.Module], ...] = ()
    """Models, and functions that make them, whose code the page shows."""


def small(model: type[nn.Module], *parts: type[nn.Module], **options: object) -> Figure:
    """Return a figure of one of the paper's models, which may have parts."""
    name = model.__name__
    words = _written(options)
    view = f", {options['vis_opt']}" if "vis_opt" in options else ""
    return Figure(
        name + view,
        lambda path: tl.show_model_graph(model(), torch.rand(5, 5), vis_outpath=path, **options),
        f"show_model_graph({name}(), torch.rand(5, 5){words})",
        (*parts, model) if "vis_opt" not in options or options["vis_opt"] == "unrolled" else (),
    )


def zoo(title: str, name: str, **options: object) -> Figure:
    """Return a figure of a model of torchvision's."""
    words, more = _written(options), _written(_SETTINGS.get(name, {})).removeprefix(", ")
    return Figure(
        title,
        lambda path: tl.show_model_graph(torchvision_model(name), IMAGE, vis_outpath=path, **options),
        f"show_model_graph(torchvision.models.{name}({more}).eval(), torch.rand(1, 3, 224, 224){words})",
    )


def _written(options: dict[str, object]) -> str:
    return "".join(f", {key}={value!r}" for key, value in options.items()).replace("'", '"')


CLOSED = {"*.self_attention": 0, "*.mlp": 0}
_SETTINGS = {"googlenet": {"init_weights": False}}
IMAGE = torch.rand(1, 3, 224, 224)


def torchvision_model(name: str) -> nn.Module:
    """Return a model as torchvision makes it, without weights."""
    import torchvision

    return getattr(torchvision.models, name)(**_SETTINGS.get(name, {})).eval()


def gradient(path: Path) -> None:
    """Draw where gradients flow in the demo network, and how large they are."""
    x = torch.rand(5, 5, requires_grad=True)
    history = tl.log_forward_pass(models.DemoNetwork(), x, save_gradients=True)
    history["output_1"].tensor_contents.sum().backward()
    history.draw(path, gradients=True, color_by="gradient_norm")


def difference(path: Path) -> None:
    """Draw two networks as one."""
    x = torch.rand(1, 3, 8, 8)
    before = tl.log_forward_pass(models.net(nn.ReLU(), classes=5), x)
    after = tl.log_forward_pass(models.net(nn.GELU(), nn.Dropout(0.1), classes=6), x)
    after.draw_difference(before, path)


def edited(path: Path) -> None:
    """Draw a pass with one channel taken out, and without one residual connection."""
    history = tl.log_forward_pass(models.net(nn.ReLU(), classes=5), torch.rand(1, 3, 8, 8))
    history.edit({("conv2d_1", "add_1"): 0.0, tl.Part("relu_2", channel=2): 0.0}).draw(path, legend=True)


def sweep(path: Path) -> None:
    """Draw what each channel of each block restores, of a pass that got a black image."""
    model, x = models.net(nn.ReLU(), classes=5), torch.rand(1, 3, 8, 8)
    clean, corrupted = (tl.log_forward_pass(model, image) for image in (x, 0 * x))
    edits = edit.grid(["0", "1", "2", "3"], channel=range(4))
    corrupted.sweep(edits, clean=clean, metric=lambda y: y[:, 3] - y[:, 0]).heat_map().save(path)


FIGURES = {
    "demo": small(models.DemoNetwork, legend=True),
    "recurrent_unrolled": small(models.RecurrentNetwork, vis_opt="unrolled"),
    "recurrent_rolled": small(models.RecurrentNetwork, vis_opt="rolled"),
    "organization": small(models.NetworkOrganizationDemo, models.Submodule2, models.Submodule1),
    "figure_3a_unrolled": small(models.Figure3A, vis_opt="unrolled"),
    "figure_3a_rolled": small(models.Figure3A, vis_opt="rolled"),
    "figure_3b_unrolled": small(models.Figure3B, vis_opt="unrolled"),
    "figure_3b_rolled": small(models.Figure3B, vis_opt="rolled"),
    "gradient": Figure(
        "Gradients",
        gradient,
        "history = log_forward_pass(DemoNetwork(), torch.rand(5, 5, requires_grad=True), save_gradients=True)\n"
        'history["output_1"].tensor_contents.sum().backward()\n'
        'history.draw("gradient.svg", gradients=True, color_by="gradient_norm")',
    ),
    "alexnet": zoo("AlexNet", "alexnet"),
    "googlenet": zoo("GoogLeNet, modules as nodes", "googlenet", vis_nesting_depth=1),
    "inception_1": zoo("An inception module, one level", "googlenet", focus="inception3a", vis_nesting_depth=1),
    "inception_2": zoo("The same, all operations", "googlenet", focus="inception3a"),
    "memory": zoo("Memory, in the dark theme", "squeezenet1_1", focus="features.3", color_by="memory", theme="dark"),
    "print": zoo("Data to the right, for print", "alexnet", focus="classifier", direction="right", theme="print"),
    "repeats": zoo("Equal modules in a row, once", "vit_b_16", focus="encoder", vis_nesting_depth=CLOSED, repeats=True),
    "difference": Figure(
        "Two passes in one picture",
        difference,
        "x = torch.rand(1, 3, 8, 8)\n"
        "before = log_forward_pass(net(nn.ReLU(), classes=5), x)\n"
        "after = log_forward_pass(net(nn.GELU(), nn.Dropout(0.1), classes=6), x)\n"
        'after.draw_difference(before, "difference.svg")',
        (models.Block, models.net),
    ),
    "edited": Figure(
        "An edited pass",
        edited,
        "history = log_forward_pass(net(nn.ReLU(), classes=5), torch.rand(1, 3, 8, 8))\n"
        'edited = history.edit({("conv2d_1", "add_1"): 0.0, Part("relu_2", channel=2): 0.0})\n'
        'edited.draw("edited.svg", legend=True)',
    ),
    "sweep": Figure(
        "A sweep of edits",
        sweep,
        "model, x = net(nn.ReLU(), classes=5), torch.rand(1, 3, 8, 8)\n"
        "clean, corrupted = (log_forward_pass(model, image) for image in (x, 0 * x))\n"
        'edits = edit.grid(["0", "1", "2", "3"], channel=range(4))\n'
        'corrupted.sweep(edits, clean=clean, metric=lambda y: y[:, 3] - y[:, 0]).heat_map().save("sweep.svg")',
    ),
}


def draw(name: str) -> None:
    """Draw one figure, without the paths and times of this machine."""
    path = FOLDER / f"{name}.svg"
    torch.manual_seed(0)
    FIGURES[name].draw(path)
    text = path.read_text(encoding="utf-8").replace(f"{DOCS}/", "")
    text = re.sub(r"[^\s\";]*/site(-|&#45;)packages/", "", text)
    path.write_text(re.sub(r"&#10;time: [^&\"]*", "", text), encoding="utf-8")


def page() -> str:
    """Return the page."""
    return "\n".join([HEAD, *(_section(name, figure) for name, figure in FIGURES.items()), *_options()])


def _options() -> Iterator[str]:
    yield "## Options\n\nOf `history.draw`, `history.draw_difference`, `show_model_graph` and `--lens-graph`.\n"
    yield "| option | what it does |\n|---|---|"
    yield from (
        f"| `{name}` | {line} |" for name, line in fields(tl.DrawOptions) if name not in ("colours", "is_rolled")
    )
    yield ""


def _section(name: str, figure: Figure) -> str:
    sources = "\n\n".join(re.sub(r'    """.*?"""\n\n', "", inspect.getsource(model)) for model in figure.source)
    code = "\n\n".join(filter(None, [sources, figure.code]))
    seen = "\n".join(f"- {line}" for line in SEEN.get(name, []))
    return f"## {figure.title}\n\n```python\n{code}\n```\n\n![{figure.title}](gallery/{name}.svg)\n\n{seen}\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in sys.argv[1:] or FIGURES:
        if name != "page":
            draw(name)
    PAGE.write_text(page(), encoding="utf-8")
