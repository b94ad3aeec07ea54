"""Defines and checks the options of a drawing."""

from __future__ import annotations

import re
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any
from typing import Literal
from typing import TypeAlias
from typing import get_args

from pytest_torchlens.draw.theme import THEMES
from pytest_torchlens.draw.theme import Theme
from pytest_torchlens.records.options import FLAG
from pytest_torchlens.records.options import TEXT
from pytest_torchlens.records.options import Option
from pytest_torchlens.records.options import OptionError
from pytest_torchlens.records.options import check_names
from pytest_torchlens.records.options import check_options
from pytest_torchlens.records.options import choice
from pytest_torchlens.records.options import optional
from pytest_torchlens.records.options import whole

VisOpt = Literal["none", "unrolled", "rolled"]
Direction = Literal["up", "down", "right", "left"]
NestingDepth: TypeAlias = int | Mapping[str, int] | None
ColorBy: TypeAlias = str | Mapping[str, float] | Callable[[Any], float | None] | None
NodeText: TypeAlias = Callable[[Any], str | Iterable[str] | None]


@dataclass(frozen=True, kw_only=True)
class DrawOptions:
    """How a model is drawn.

    Raises
    ------
    OptionError
        If a value is invalid; also a `TypeError` if it has the wrong type.
    """

    vis_opt: VisOpt = "unrolled"
    """``"unrolled"`` (default) draws every operation, ``"rolled"`` all passes of a layer as one node; ``"none"`` draws
    nothing and only records the model."""
    vis_nesting_depth: NestingDepth = None
    """Levels of modules that are opened; modules below are drawn as one node: 1 draws the model's direct submodules.
    A mapping sets levels by address, with wildcards, and counts from the module named: ``{"layer*": 0}`` draws
    each of these as one node, ``{"layer4": 1}`` its direct submodules.  None (default) draws every operation."""
    direction: Direction = "up"
    """Direction in which data flow: ``"up"`` (default, as in the paper), ``"down"``, ``"right"``, ``"left"``."""
    focus: str | None = None
    """Address of one module (``"layer3.0"``), or one call of it (``"cell:2"``), to draw alone; the operations that it
    reads, and those that read it, are stubs."""
    color_by: ColorBy = None
    """What fill colours show: ``"time"``, ``"memory"``, ``"params"``, ``"gradient_norm"``, ``"flops"`` (after
    ``measure_forward_pass(model, x, history=history)``), any other number in an operation's
    fields, a mapping of labels to numbers, or a function of an operation."""
    node_text: NodeText | None = None
    """Returns the text of an operation's node, as one line or several; None keeps the usual text."""
    theme: str | Theme = "light"
    """``"light"``, ``"dark"``, ``"print"``, or a theme of your own."""
    legend: bool = False
    """Whether the picture has a legend."""
    gradients: bool = False
    """Whether to draw the flow of gradients, in blue; needs ``save_gradients=True`` and a backward pass."""
    repeats: bool | None = None
    """Whether equal modules in a row (``layer.0`` … ``layer.11``) are drawn once, with ``× 12``.  None (default)
    does so only above `max_nodes` nodes."""
    max_nodes: int | None = 600
    """Above this number of nodes equal modules in a row are drawn once, then modules as one node each, the innermost
    first, then all passes of a layer as one, until the rest fits; the title says so.  Where that is not enough, the
    last operations are left out, with a warning.  None sets no limit."""

    def __post_init__(self) -> None:
        """Check everything that needs no model."""
        check_options(_OPTIONS, vars(self))
        if isinstance(self.vis_nesting_depth, Mapping):
            for pattern, depth in self.vis_nesting_depth.items():
                _ADDRESS.check("vis_nesting_depth", pattern)
                _DEPTH_WITHIN.check(f"vis_nesting_depth[{pattern!r}]", depth)
        for name, colour in vars(self.colours).items():
            _THEME_FIELDS.get(name, _COLOUR).check(f"theme.{name}", colour)

    @property
    def colours(self) -> Theme:
        """The theme itself."""
        return THEMES[self.theme] if isinstance(self.theme, str) else self.theme

    @property
    def is_rolled(self) -> bool:
        """Whether all passes of a layer are one node."""
        return self.vis_opt == "rolled"

    @classmethod
    def of(cls, **options: Any) -> DrawOptions:
        """Return the options given by name.

        Raises
        ------
        OptionError
            If an option is unknown, or a value invalid.
        """
        check_names(options, _OPTIONS)
        return cls(**options)


_DEPTH = "a whole number of at least 1, a mapping of module addresses to whole numbers, or None"
_DEPTHS = (Mapping, NoneType)
_COLORS = "a name, a mapping of labels to numbers, a function, or None"
_OPTIONS = {
    "vis_opt": choice(*get_args(VisOpt)),
    "vis_nesting_depth": Option(_DEPTH, (int, *_DEPTHS), lambda depth: isinstance(depth, _DEPTHS) or depth > 0),
    "direction": choice(*get_args(Direction)),
    "focus": Option("a module address or None", (str, NoneType)),
    "color_by": Option(_COLORS, (str, Mapping, Callable, NoneType)),
    "node_text": Option("a function of an operation or None", (Callable, NoneType)),
    "theme": Option(
        f"{', '.join(map(repr, THEMES))} or a Theme",
        (str, Theme),
        lambda theme: isinstance(theme, Theme) or theme in THEMES,
        tuple(THEMES),
    ),
    "legend": FLAG,
    "gradients": FLAG,
    "repeats": Option("True, False or None", (bool, NoneType)),
    "max_nodes": optional(whole(1)),
}
_ADDRESS = Option("module addresses (text) as keys", (str,))
_DEPTH_WITHIN = optional(whole(0))
_is_colour = re.compile("#[0-9a-fA-F]{6}").fullmatch
_COLOUR = Option("a colour as '#rrggbb'", (str,), _is_colour)
_THEME_FIELDS = {
    "font": TEXT,
    "scale": Option(
        "at least one colour as '#rrggbb'", (tuple, list), lambda colours: colours and all(map(_is_colour, colours))
    ),
}


def check_draws(options: DrawOptions) -> None:
    """Raise `OptionError` if the options ask for no drawing."""
    if options.vis_opt == "none":
        raise OptionError("vis_opt: expected 'unrolled' or 'rolled' to draw a picture, got 'none'")
