"""What the gallery says: of each picture, what its maker saw in it, beside what the paper says of its figures."""

from __future__ import annotations

HEAD = """# Gallery

Made by `python docs/make_gallery.py`, which draws each picture by the code above it, after these imports; models that
a block defines are there for those below it.

```python
import torch
import torchvision
from torch import Tensor
from torch import nn

from pytest_torchlens import Part
from pytest_torchlens import edit
from pytest_torchlens import log_forward_pass
from pytest_torchlens import show_model_graph
```

Below each stands what was seen in it as an image, point by point, beside the description in the paper's figures 2 and
3. Numbers of layers are those of this package: the number at the end counts inputs, from 0, where some of the paper's
figures count otherwise, and a size is the tensor's bytes (100 B for 5x5 floats) where the paper adds Python's own 48 B.

`history.draw("net.svg", ...)` draws a history that is there, `show_model_graph(model, x, ...)` records one first;
without a path, a notebook shows the drawing and no file is written. A history as the last value of a cell shows its
rolled graph. `DrawOptions` lists what may be asked for. The ending is the format: `.svg`, `.png`, `.dot`, and `.pdf`
with Graphviz's own `dot`. In the SVG every node has an id, and shows all that is known of it when the pointer rests on
it. Grey is for parameters that are trained: a layer whose parameters are all frozen is white and says `all frozen`.
"""

SEEN = {
    "demo": [
        "Input green, output red, at the ends; data flow upward (paper: input green, output red).",
        "`linear_1_3`, with parameters, is grey; it has label, shape, size, parameters' shapes and `@fc` (2A, 2B).",
        "`relu_1_2` is the module `relu_module` and a box; `relu_2_4`, the function, an oval (2A).",
        "`randn_1_5` makes a tensor and is dashed (2A); `buffer_1` is light grey with its address (2E).",
        "`arg 0` and `arg 1` stand on the arrows into `div_1_8`, none on those into `add_2_6` and `mul_1_9` (2D).",
        "The title, top left: class, 12 tensors and their bytes, 30 parameters and their bytes (2A).",
        "The legend, which the paper has as a figure of its own, is there because it was asked for.",
    ],
    "recurrent_unrolled": [
        "Three passes of each layer are nine nodes, told apart by the number after the colon; `@fc:1` to `@fc:3`.",
        "11 tensors, as on the poster; its 90 parameters are the 30 of `fc` in each pass, here they count once.",
    ],
    "recurrent_rolled": [
        "One node a layer, `(x3)` after its name.",
        "`In 1` from the input; back from `mul_1_3`: `Out 1-2`, `In 2-3`; to the output `Out 3`: as on the poster.",
    ],
    "organization": [
        "Boxes of modules lie inside each other, with address and class (2C).",
        "`gt_1_2`, the truth value, is yellow; a bold IF stands where the way to it leaves the model's (2F).",
        "Beyond the paper, the node says what asked and what it did: `if: True → body`.",
        "`1 / x` is two operations, as PyTorch runs it: `reciprocal_1_4` and `mul_2_5`.",
    ],
    "figure_3a_unrolled": [
        "`cos_1_1:1`, `linear_1_2:1`, `add_1_3:1`, then `sin_1_4`, which ran once, then the second passes (3A).",
    ],
    "figure_3a_rolled": [
        "Cosine, linear and addition have `(x2)`; `sin_1_4` has none (3A).",
        "The cosine gets its first input from `input_1_0` (`In 1`), its second from `sin_1_4` (`In 2`): as there.",
        "The addition sends its first result to the sine, its second to the output.",
    ],
    "figure_3b_unrolled": [
        "The first two runs of cosine, ReLU and multiplication are passes 1 and 2 of the same layers (3B).",
        "The third, after the tangent, has layers of its own: `cos_2_5`, `relu_2_6`, `mul_2_7` (3B).",
    ],
    "figure_3b_rolled": [
        "The loop is drawn as one, `(x2)`; what comes after the tangent is not part of it (3B).",
    ],
    "gradient": [
        "Blue arrows run back along every path that the gradient took; none to the buffer or the random tensor.",
        "Fills are norms of gradients, with a bar; inputs and outputs keep their colour as an outline.",
    ],
    "alexnet": [
        "The 22 operations of the paper's example, under its labels: `conv2d_3_7` is its third convolution.",
        "`features` and `classifier` are boxes; `flatten_1_15`, the one free function, is the one oval between them.",
        "`avgpool`, a module of one operation, is a box-shaped node and has no box around it.",
    ],
    "googlenet": [
        "Direct submodules are nodes with a double outline, their class, operations and parameters.",
        "Those of one operation (`maxpool1`, `fc`) are drawn as that operation.",
    ],
    "inception_1": [
        "Four branches from one stub, joined by `cat_1_31`; arrows say the place in its list, `arg 0[0]` to `[3]`.",
        "What reads the result, in the next module, is drawn as stubs with dotted outlines.",
    ],
    "inception_2": [
        "The same branches opened: convolution, batch norm with its buffers, ReLU, in boxes two levels deep.",
        "Dot puts the short branch 1 at the right end, so `arg 0[0]` comes last; the labels tell.",
    ],
    "memory": [
        "Fills from the fewest bytes to the most; the bar has the numbers, and every node its own.",
        "Text is light or dark, as each fill needs.",
    ],
    "print": [
        "Hardly any ink: parameters grey, lines black, stubs dotted.",
    ],
    "repeats": [
        "Twelve equal blocks are one box: `× 12`, and which is the last; the title says that this was done.",
        "Attention and MLP are closed by a pattern of addresses, the rest is open.",
    ],
    "difference": [
        "`+` blue: only in the second pass; `−` orange: only in the first; `~` violet: in both but other, and how.",
        "`flatten` moved from module 4 to module 5 and is recognized; blocks without a difference are closed.",
        "Arrows of the first pass alone are dashed.",
    ],
    "edited": [
        "`relu_2_8` is filled and says what was put into its channel 2; the title has both edits.",
        "The arrow from `conv2d_1_1` into `add_1_5` is thick: this addition alone reads zeros.",
        "Outlines are the wider the more a tensor changed, and each says by how much; all before the edits is as ever.",
    ],
    "sweep": [
        "Sixteen edits of the pass with a black image: each puts one channel of a block as it is in the clean pass.",
        "Cells say where that brings the difference of two logits: 0, white, is the black image, 1 the clean one.",
        "Orange is above 0, blue below; channel 3 carries most, in each row. The pointer over a cell shows its edit.",
    ],
}
