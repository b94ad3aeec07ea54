"""Thirty-one edits of the residual network."""

from __future__ import annotations

from tests.plugin.edits.edit import change
from tests.plugin.edits.edit import refactor
from tests.plugin.edits.edit import same
from tests.plugin.edits.edit import unseen

LOOP = "        for stage in self.stages:\n            x = stage(x)\n"
CLASSES, BOXES = "        classes = self.classes(x)\n", "        boxes = self.boxes(x)\n"
HEADS = "        self.classes = nn.Linear(16, 10)\n        self.boxes = nn.Linear(16, 10)\n"
HEADS_MODULE = "class Heads(nn.Module):\n    def __init__(self):\n        super().__init__()\n" + HEADS
RETURN = 'return {"classes": classes.softmax(-1), "boxes": boxes.sigmoid()}'
IDENTITY = "        torch.nn.utils.parametrize.register_parametrization(self.boxes, 'weight', nn.Identity())\n"

EDITS = (
    # -- the same, by other calls or under other names
    same("loop-unrolled", (LOOP, "        x = self.stages[1](self.stages[0](x))\n")),
    same("operator-as-function", ("x.mean((2, 3)) * self.scale", "torch.mul(x.mean((2, 3)), self.scale)")),
    refactor("module-renamed", "first/conv2d", ("self.stem", "self.first")),
    refactor("parameter-renamed", "/mul", ("self.scale", "self.gain")),
    refactor("stages-renamed", "layers.0.conv1/conv2d", ("self.stages", "self.layers")),
    refactor("relu-as-function", "stages.0/relu", ("self.relu(", "F.relu(")),
    refactor(
        "relu-as-module",
        "act/relu",
        ("F.relu(", "self.act("),
        ("        self.pool =", "        self.act = nn.ReLU()\n        self.pool ="),
    ),
    refactor("relu-in-place", "stages.0.relu/relu", ("nn.ReLU()", "nn.ReLU(inplace=True)")),
    refactor("head-moved", "classes/linear", (CLASSES + BOXES, BOXES + CLASSES)),
    refactor("operands-swapped", "stages.0/add", ("out + self.shortcut(x)", "self.shortcut(x) + out")),
    refactor("pooled-by-function", "/adaptiveavgpool2d", ("x.mean((2, 3))", "F.adaptive_avg_pool2d(x, 1).flatten(1)")),
    refactor(
        "heads-extracted",
        "heads.classes/linear",
        (HEADS, "        self.heads = Heads()\n"),
        ("self.classes(x)", "self.heads.classes(x)"),
        ("self.boxes(x)", "self.heads.boxes(x)"),
        ("class Block", HEADS_MODULE + "\n\nclass Block"),
    ),
    refactor(
        "convolution-as-function",
        "/conv2d",
        ("self.stem(x)", "F.conv2d(x, self.stem.weight, self.stem.bias, padding=1)"),
    ),
    refactor("parametrized", "boxes/linear", (HEADS, HEADS + IDENTITY)),
    # -- something else
    change("stride", "stages.1.conv1/conv2d", ("Block(8, 16, 2)", "Block(8, 16, 1)")),
    change("norm-after-relu", "norm/batchnorm", ("F.relu(self.norm(self.stem(x)))", "self.norm(F.relu(self.stem(x)))")),
    change("residual-dropped", "stages.0.shortcut/conv2d", ("self.relu(out + self.shortcut(x))", "self.relu(out)")),
    change("eps", "norm/batchnorm", ("self.norm = nn.BatchNorm2d(8)", "self.norm = nn.BatchNorm2d(8, eps=1e-3)")),
    change("constant", "/div", ("/ 0.25", "/ 0.2")),
    change("buffer", "/sub", ("0.5, 0.4, 0.3", "0.5, 0.4, 0.35"), word="inputs-differ"),
    change(
        "heads-swapped",
        "/softmax",
        (RETURN, RETURN.replace("classes.s", "boxes.s").replace("boxes.sig", "classes.sig")),
    ),
    change(
        "outputs-swapped",
        "/output",
        (RETURN, RETURN.replace('"classes"', '"?"').replace('"boxes"', '"classes"').replace("?", "boxes")),
    ),
    change("flipped", "/flip", ("x = (x - self.mean)", "x = (x.flip(-1) - self.mean)")),
    change("dtype", "/half", ("boxes.sigmoid()", "boxes.sigmoid().half()")),
    unseen("dropout", "drop/dropout", ("Dropout(0.1)", "Dropout(0.5)")),
    unseen("dropout-dropped", "drop/dropout", ("self.drop(Squash.apply(x))", "Squash.apply(x)")),
    unseen("dropout-moved", "/tanh", ("self.drop(Squash.apply(x))", "Squash.apply(self.drop(x))")),
    unseen("gradient-stopped", "stages.0/detach", ("self.relu(out +", "self.relu(out.detach().clone() +")),
    unseen(
        "outputs-in-another-order",
        "/softmax",
        (RETURN, 'return {"boxes": boxes.sigmoid(), "classes": classes.softmax(-1)}'),
    ),
    change("formula-in-a-function", "/mul.2", ("return x.tanh()", "return (x * 1.01).tanh()")),
    unseen(
        "channels-last",
        "stem/conv2d",
        ("        self.drop =", "        self.to(memory_format=torch.channels_last)\n        self.drop ="),
        word="meta-change",
    ),
)
