"""The settings in a zoo file: their keys, and the values that each accepts."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING
from typing import Any
from typing import NamedTuple

from pytest_torchlens.baseline.conditions import ConditionError
from pytest_torchlens.baseline.conditions import Conditions
from pytest_torchlens.checks.catalog import CheckNameError
from pytest_torchlens.checks.catalog import CheckSetting
from pytest_torchlens.checks.catalog import known_checks
from pytest_torchlens.checks.catalog import setting_of
from pytest_torchlens.checks.catalog import split_names
from pytest_torchlens.records import nearest
from pytest_torchlens.zoo.inputs import FLOATS
from pytest_torchlens.zoo.inputs import InputSpec
from pytest_torchlens.zoo.inputs import parse_input
from pytest_torchlens.zoo.yaml_lines import LinedDict
from pytest_torchlens.zoo.yaml_lines import check_keys
from pytest_torchlens.zoo.yaml_lines import one_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_torchlens.zoo.errors import ZooError


WEIGHTS = ("random", "init", "pretrained")
MODES = ("eval", "train")
SIZES = ("fast", "slow", "huge")
"""Size classes, the cheapest first."""
DEVICES = ("cpu", "cuda", "mps", "xpu")


class ToleranceSetting(NamedTuple):
    """How far two values of one nondeterministic operation may differ."""

    rtol: float
    atol: float


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How one model is built, called and judged."""

    input: InputSpec = None
    """A tensor is the only argument, a list the positional arguments, a mapping the keyword arguments.

    None takes the provider's default input.
    """
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the model's constructor."""
    weights: str = "random"
    seed: int = 0
    mode: str = "eval"
    device: str = "cpu"
    dtype: str | None = None
    """Floating-point type of parameters, buffers and inputs; None leaves the model's own."""
    tolerance: ToleranceSetting | None = None
    """None takes the default of `torch.testing` for the dtype."""
    timeout: float | None = None
    """Seconds; None takes the run's."""
    memory: int | None = None
    """Bytes of the whole worker process; None takes the run's."""
    size: str = "fast"
    fail_on: tuple[str, ...] = ()
    """Conditions under which a comparison with the baseline fails, as ``--lens-fail-on``."""
    ignore: dict[str, str] = field(default_factory=dict)
    """Audit rules whose findings are left out, each with the reason."""
    checks: dict[str, CheckSetting] = field(default_factory=dict)
    """Checks by name, which run unless ``--lens-checks`` names others; with their options and expected failures."""
    marks: tuple[str, ...] = ()
    skip: str | None = None
    xfail: str | None = None


def parse_settings(raw: LinedDict) -> dict[str, Any]:
    """Check the settings in `raw`, and return them as keyword arguments of `Settings`."""
    check_keys(raw, _PARSERS)
    return {key: _PARSERS[key](raw, key) for key in raw}


def _wrong(raw: LinedDict, key: str, expected: str) -> ZooError:
    return raw.error(key, f"{key}: expected {expected}, got {raw[key]!r}")


_MEMORY_UNITS = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_MEMORY_FORM = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", re.IGNORECASE)


def parse_bytes(text: Any) -> int:
    """Return bytes: ``"8 GiB"`` (also ``8G`` and ``8GB``) is 8 times 1024 cubed; a number is bytes.

    Raises
    ------
    ValueError
        If `text` is not an amount above zero.
    """
    found = _MEMORY_FORM.fullmatch(str(text)) if type(text) in (str, int, float) else None
    amount = int(float(found[1]) * _MEMORY_UNITS[found[2].upper()]) if found else 0
    if amount <= 0:
        raise ValueError(f"expected an amount of memory such as '8 GiB' or '500 MiB', got {text!r}")
    return amount


def _choice(*words: str) -> Callable[[LinedDict, str], str]:
    return lambda raw, key: one_of(raw, key, words)


def _input(raw: LinedDict, key: str) -> InputSpec:
    return None if raw[key] is None else parse_input(raw[key], raw, key)


def _kwargs(raw: LinedDict, key: str) -> dict[str, Any]:
    if not isinstance(raw[key], dict):
        raise _wrong(raw, key, "a mapping of constructor arguments")
    return dict(raw[key])


def _seed(raw: LinedDict, key: str) -> int:
    if type(raw[key]) is not int or not 0 <= raw[key] < 2**64:
        raise _wrong(raw, key, "a whole number from 0 to 2**64 - 1")
    return int(raw[key])


def _device(raw: LinedDict, key: str) -> str:
    kind, colon, index = str(raw[key]).partition(":")
    if kind not in DEVICES or (colon and not index.isdigit()):
        raise _wrong(raw, key, f"{', '.join(DEVICES)}, or one of these with an index (cuda:1)")
    return str(raw[key])


def _dtype(raw: LinedDict, key: str) -> str | None:
    return None if raw[key] is None else one_of(raw, key, FLOATS)


def _tolerance(raw: LinedDict, key: str) -> ToleranceSetting | None:
    value = raw[key]
    if value is None:
        return None
    if not isinstance(value, LinedDict):
        raise _wrong(raw, key, "a mapping {rtol: ..., atol: ...}")
    check_keys(value, ("rtol", "atol"))
    for name in ("rtol", "atol"):
        if type(value.get(name)) not in (int, float) or not 0 <= value[name] < math.inf:
            got = repr(value[name]) if name in value else "a tolerance without it"
            raise value.error(name, f"{name}: expected a number from 0, got {got}")
    return ToleranceSetting(float(value["rtol"]), float(value["atol"]))


def _timeout(raw: LinedDict, key: str) -> float | None:
    if raw[key] is None:
        return None
    if type(raw[key]) not in (int, float) or not raw[key] > 0:
        raise _wrong(raw, key, "a positive number of seconds")
    return float(raw[key])


def _memory(raw: LinedDict, key: str) -> int | None:
    if raw[key] is None:
        return None
    try:
        return parse_bytes(raw[key])
    except ValueError as error:
        raise raw.error(key, f"{key}: {error}") from None


def _marks(raw: LinedDict, key: str) -> tuple[str, ...]:
    marks = [raw[key]] if isinstance(raw[key], str) else raw[key]
    if not isinstance(marks, list) or not all(isinstance(mark, str) and re.fullmatch(r"\w+", mark) for mark in marks):
        raise _wrong(raw, key, "the name of a pytest mark, or a list of names")
    return tuple(marks)


def _fail_on(raw: LinedDict, key: str) -> tuple[str, ...]:
    value = raw[key]
    conditions = [value] if isinstance(value, str) else value
    if not isinstance(conditions, list) or not all(isinstance(condition, str) for condition in conditions):
        raise _wrong(raw, key, "a condition such as own:1e-5@features.*, or a list of conditions")
    try:
        Conditions.of(conditions)
    except ConditionError as error:
        raise raw.error(key, f"{key}: {error}") from None
    return tuple(conditions)


def _ignore(raw: LinedDict, key: str) -> dict[str, str]:
    from pytest_torchlens.audit import RULES  # loads torch, which few zoo files need for this

    value = raw[key]
    if not isinstance(value, LinedDict):
        raise _wrong(raw, key, "a mapping of audit rules to reasons {infinite: 'a mask of -inf'}")
    names = [rule.name for rule in RULES]
    for rule in value:
        if rule not in names:
            raise value.error(rule, f"{key}: expected an audit rule, got {rule!r} ({nearest(str(rule), names)})")
        if not isinstance(value[rule], str) or not value[rule].strip():
            raise _wrong(value, rule, "the reason as text")
    return {rule: str(value[rule]) for rule in value}


def _checks(raw: LinedDict, key: str) -> dict[str, CheckSetting]:
    """Return the settings of checks; the names are checked when a run knows the checks of the project."""
    value = raw[key]
    if value is None:
        return {}
    names = split_names([value]) if isinstance(value, str) else value
    if isinstance(names, list | tuple) and names and all(isinstance(name, str) for name in names):
        return dict.fromkeys(names, CheckSetting())
    if not isinstance(value, LinedDict):
        raise _wrong(raw, key, "names of checks such as [repeat, rows], or a mapping of names to options")
    known = known_checks()
    found: dict[str, CheckSetting] = {}
    for name in value:
        try:
            found[str(name)] = setting_of(str(name), value[name], known.get(str(name)))
        except CheckNameError as error:
            raise value.error(name, f"{key}: {error}") from None
    return found


def _reason(raw: LinedDict, key: str) -> str | None:
    if raw[key] is None:
        return None
    if not isinstance(raw[key], str) or not raw[key].strip():
        raise _wrong(raw, key, "the reason as text")
    return str(raw[key])


_PARSERS: dict[str, Callable[[LinedDict, str], Any]] = {
    "input": _input,
    "kwargs": _kwargs,
    "weights": _choice(*WEIGHTS),
    "seed": _seed,
    "mode": _choice(*MODES),
    "device": _device,
    "dtype": _dtype,
    "tolerance": _tolerance,
    "timeout": _timeout,
    "memory": _memory,
    "size": _choice(*SIZES),
    "fail_on": _fail_on,
    "ignore": _ignore,
    "checks": _checks,
    "marks": _marks,
    "skip": _reason,
    "xfail": _reason,
}
SETTINGS = tuple(_PARSERS)
"""All keys."""
