"""Defines and checks the options of a drawing."""

from __future__ import annotations

import re
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import fields
from typing import Any
from typing import Final
from typing import Literal
from typing import TypeAlias
from typing import get_args

from pytest_torchlens.draw.theme import THEMES
from pytest_torchlens.draw.theme import Theme
from pytest_torchlens.records import close
from pytest_torchlens.records import nearest

VisOpt = Literal["none", "unrolled", "rolled"]
Direction = Literal["up", "down", "right", "left"]
NestingDepth: TypeAlias = int | Mapping[str, int] | None
ColorBy: TypeAlias = str | Mapping[str, float] | Callable[[Any], float | None] | None
NodeText: TypeAlias = Callable[[Any], str | Iterable[str] | None]
_KINDS: Final[dict[str, tuple[Any, str]]] = {
    "focus": (str | None, "a module address or None"),
    "color_by": (str | Mapping | Callable | None, "a name, a mapping of labels to numbers, a function, or None"),
    "node_text": (Callable | None, "a function of an operation or None"),
    "theme": (str | Theme, "a name or a Theme"),
    "legend": (bool, "True or False"),
    "gradients": (bool, "True or False"),
    "repeats": (bool | None, "True, False or None"),
}


class OptionError(ValueError):
    """An invalid option of a drawing; the message names it and the valid values."""


@dataclass(frozen=True, kw_only=True)
class DrawOptions:
    """How a model is drawn.

    Raises
    ------
    OptionError
        If a value is invalid.
    TypeError
        If a value has the wrong type.
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
        _check_kinds(self)
        check_choice("vis_opt", self.vis_opt, get_args(VisOpt))
        check_choice("direction", self.direction, get_args(Direction))
        if isinstance(self.theme, str):
            check_choice("theme", self.theme, THEMES)
        _check_numbers(self)
        for colour in (vars(self.colours)[field.name] for field in fields(Theme) if field.name != "font"):
            _check_colour(colour)

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
        """Return options given by name.

        Raises
        ------
        OptionError
            If a name is not an option, or a value is invalid.
        """
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                raise OptionError(f"expected an option of a drawing, got {name!r}; {nearest(name, known)}")
        return cls(**options)


def check_draws(options: DrawOptions) -> None:
    """Raise `OptionError` if the options ask for no drawing."""
    if options.vis_opt == "none":
        raise OptionError("vis_opt: expected 'unrolled' or 'rolled' to draw a picture, got 'none'")


def check_choice(name: str, value: object, valid: Iterable[str]) -> None:
    """Raise `OptionError` if `value` is not one of `valid`."""
    if value not in (valid := list(valid)):
        hint = close(value, valid) if isinstance(value, str) else ""
        raise OptionError(f"{name}: expected {', '.join(map(repr, valid))}, got {value!r:.80}{hint and f' ({hint})'}")


def _check_kinds(options: DrawOptions) -> None:
    for name, (kinds, expected) in _KINDS.items():
        value = getattr(options, name)
        if not isinstance(value, kinds):
            raise TypeError(f"{name}: expected {expected}, got {value!r:.80}")


def _check_numbers(options: DrawOptions) -> None:
    depth = options.vis_nesting_depth
    least = {"max_nodes": (options.max_nodes, 1)}
    if isinstance(depth, Mapping):
        _check_addresses(depth)
        least |= {f"vis_nesting_depth[{pattern!r}]": (number, 0) for pattern, number in depth.items()}
    else:
        least["vis_nesting_depth"] = depth, 1
    for name, (value, lowest) in least.items():
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name}: expected a whole number or None, got {value!r:.80}")
        if value < lowest:
            raise OptionError(f"{name}: expected at least {lowest}, got {value}")


def _check_addresses(depths: Mapping[Any, int]) -> None:
    for pattern in depths:
        if not isinstance(pattern, str):
            raise TypeError(f"vis_nesting_depth: expected module addresses (text) as keys, got {pattern!r:.80}")


def _check_colour(colours: str | tuple[str, ...]) -> None:
    for colour in (colours,) if isinstance(colours, str) else colours:
        if not re.fullmatch(r"#[0-9a-fA-F]{6}", colour):
            raise OptionError(f"theme: expected colours as '#rrggbb', got {colour!r}")
    if not colours:
        raise OptionError("theme: expected a scale of at least one colour, got none")
