"""The checks: name, sentence, cost and options.  It needs no torch; the module of a check is imported when it runs.

To add a check, write a module of its name with ``run(subject, **options)`` and a row here.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING
from typing import Any
from typing import Protocol

from pytest_torchlens.records import close
from pytest_torchlens.records.options import FLAG
from pytest_torchlens.records.options import POSITIVE
from pytest_torchlens.records.options import TEXT
from pytest_torchlens.records.options import Option
from pytest_torchlens.records.options import check_options
from pytest_torchlens.records.options import optional
from pytest_torchlens.records.options import whole

if TYPE_CHECKING:
    from pytest_torchlens.checks.subject import Subject
    from pytest_torchlens.records import CheckResult


class Check(Protocol):
    """One property that must hold however a model is run.

    A check of a project's own is a class with these members; the hook ``pytest_lens_checks`` returns an object of it.
    """

    @property
    def name(self) -> str:
        """Its name in ``--lens-checks``: lower case, words joined by hyphens."""

    @property
    def sentence(self) -> str:
        """What must hold, in one sentence."""

    @property
    def cost(self) -> float:
        """Its cost in plain passes on the inputs of a model that passes, about."""

    def run(self, subject: Subject, **options: Any) -> CheckResult:
        """Check a model, and return the result."""


@dataclass(frozen=True)
class BuiltInCheck:
    """A check of this package; ``run`` is that of the module of its name."""

    name: str
    sentence: str
    cost: float
    options: Mapping[str, Option] = field(default_factory=dict)

    def run(self, subject: Subject, **options: Any) -> CheckResult:
        """Check a model, and return the result; warnings are ignored, as the plain run has given the model's own."""
        module = importlib.import_module(f"{__package__}.{self.name.replace('-', '_')}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result: CheckResult = module.run(subject, **options)
        return result


_DIM = {"dim": whole(0)}
"""The dimension of the batch, 0 by default."""
_SEQUENCE = {"ids": TEXT, "dim": whole(0)}
"""The argument that holds a sequence, and its dimension of positions, 1 by default."""


def split_names(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the names in comma-separated texts."""
    return tuple(name.strip() for text in texts for name in text.split(",") if name.strip())


def _some_of(*words: str) -> Option:
    """Return an option that takes some of these words, joined by commas or in a list."""

    def fits(value: Any) -> bool:
        names = split_names([value]) if isinstance(value, str) else value
        return bool(names) and all(name in words for name in names)

    return Option(f"some of {', '.join(words)}, joined by commas", (str, list, tuple), fits, words)


_WAYS = _some_of("state_dict", "safetensors", "meta", "deepcopy", "pickle")
WAYS_OF_OUTPUTS = ("return_dict", "inputs_embeds", "hidden_states", "attentions", "features")
_TYPES = _some_of("bfloat16", "float16", "autocast")
CHECKS: tuple[BuiltInCheck, ...] = (
    BuiltInCheck("repeat", "A second call gives the same output and leaves the same state.", 5),
    BuiltInCheck(
        "rows",
        "Other rows of the batch, changed at the same shape, change nothing in this one: bit for bit.",
        7,
        {**_DIM, "size": whole(2, 1024)},
    ),
    BuiltInCheck(
        "batch-size",
        "An example gives the same alone and in a batch, but for rounding.",
        5,
        {**_DIM, "size": whole(2, 1024)},
    ),
    BuiltInCheck(
        "layout",
        "Inputs in channels_last, not contiguous or expanded give the same, but for rounding.",
        6,
        _DIM,
    ),
    BuiltInCheck("threads", "One thread and as many as there are processors give the same, but for rounding.", 4),
    BuiltInCheck(
        "gradients",
        "Every trainable parameter gets a finite gradient that is not all zero.",
        5,
        {"gradcheck": FLAG, "ignore": TEXT},
    ),
    BuiltInCheck(
        "state",
        "A state_dict, a copy, a pickle and safetensors carry all that the output depends on: bit for bit.",
        46,
        {"ways": _WAYS},
    ),
    BuiltInCheck(
        "train-eval", "Train mode and back leaves nothing but running statistics, and eval mode is not random.", 5
    ),
    BuiltInCheck(
        "compile",
        "torch.compile gives the same outputs and gradients, but for rounding.",
        70,
        {
            "backend": TEXT,
            "mode": TEXT,
            "dynamic": optional(FLAG),
            "fullgraph": FLAG,
            "gradients": FLAG,
        },
    ),
    BuiltInCheck(
        "export",
        "The program of torch.export gives the same on other inputs, but for rounding.",
        17,
        {**_DIM, "dynamic": FLAG},
    ),
    BuiltInCheck(
        "causal",
        "The output at a position reads no input after it: bit for bit.",
        7,
        _SEQUENCE,
    ),
    BuiltInCheck(
        "padding",
        "Padded positions under the mask, left and right, change nothing at the real ones.",
        13,
        {**_SEQUENCE, "mask": TEXT, "positions": TEXT, "sides": _some_of("left", "right")},
    ),
    BuiltInCheck(
        "cache",
        "Prefill and decode with a cache give what one pass over the whole gives, but for rounding.",
        7,
        {**_SEQUENCE, "cache": TEXT, "kinds": _some_of("dynamic", "static")},
    ),
    BuiltInCheck(
        "packed",
        "Sequences packed in one, with positions that begin anew, give what each gives alone.",
        8,
        {**_SEQUENCE, "positions": TEXT},
    ),
    BuiltInCheck(
        "attention",
        "Eager attention and each kernel that the device has give the same, but for rounding.",
        12,
    ),
    BuiltInCheck(
        "onnx",
        "onnxruntime computes the same of the model's ONNX program, but for rounding.",
        36,
        {**_DIM, "dynamic": FLAG},
    ),
    BuiltInCheck(
        "shapes",
        "Other sizes of batches, images and sequences are computed right, whatever came before.",
        28,
        {**_DIM, "sizes": _some_of("batch", "image", "sequence")},
    ),
    BuiltInCheck("checkpointing", "Gradients with activation checkpointing equal those without.", 10),
    BuiltInCheck(
        "outputs",
        "Tuples and dicts, ids and embeddings, with hidden states or attentions and without: all agree.",
        4,
        {"ways": _some_of(*WAYS_OF_OUTPUTS)},
    ),
    BuiltInCheck(
        "device",
        "The CPU and the GPU that there is give the same, but for rounding.",
        2,
        {"to": TEXT, "tf32": FLAG},
    ),
    BuiltInCheck(
        "dtype",
        "In bfloat16, float16 and under autocast each operation errs by what its type explains.",
        30,
        {"types": _TYPES},
    ),
)
"""In the order in which they run."""
_REASON = Option("the reason why it is expected to fail, as text", (str,), str.strip)
COMMON_OPTIONS = {"seconds": POSITIVE, "xfail": _REASON}
"""Options of every check."""
CHEAP = 7
"""`lens_same` runs the checks that cost at most so many passes, unless it is told which."""
DEFAULT_SECONDS = 120.0
"""Time limit of one check of one model."""


class CheckNameError(ValueError):
    """There is no check of that name, or it does not take that option; the message has the nearest."""


@dataclass(frozen=True)
class CheckSetting:
    """What a zoo file, a marker or a call says of one check."""

    options: Mapping[str, Any] = field(default_factory=dict)
    xfail: str = ""
    """Why it is expected to fail."""
    seconds: float = DEFAULT_SECONDS
    on: bool = True
    """Whether it runs; a model's rule can switch off what the defaults of its zoo file switch on."""


@dataclass(frozen=True)
class PlannedCheck:
    """A check to run, with its settings."""

    check: Check
    setting: CheckSetting = CheckSetting()


def known_checks(own: Sequence[Check] = ()) -> dict[str, Check]:
    """Return all checks by name: those of this package, then a project's own."""
    return {check.name: check for check in (*CHECKS, *own)}


def check_name(name: object, known: Iterable[str]) -> str:
    """Return `name` if there is such a check, or if it is ``all`` or ``none``.

    Raises
    ------
    CheckNameError
        If there is none.
    """
    names = [*known, *WORDS]
    if isinstance(name, str) and name in names:
        return name
    hint = close(name, names) if isinstance(name, str) else ""
    if name in ("baseline", "baselines", "lens_check"):
        hint = "baselines are no check: the fixture lens_check and --lens-validate compare with them"
    raise CheckNameError(f"expected {', '.join(names)}, got {name!r:.80}{hint and f' ({hint})'}")


def check_names(names: Iterable[object], known: Iterable[str]) -> tuple[str, ...]:
    """Return names of checks as they are.

    Raises
    ------
    CheckNameError
        If there is no such check, or ``none`` stands beside another name.
    """
    found = tuple(check_name(name, known) for name in names)
    if others := [name for name in found if name != "none"] if "none" in found else []:
        raise CheckNameError(f"'none' stands alone, got it with {', '.join(others)}: leave out one of the two")
    return found


WORDS = ("all", "none")


def setting_of(name: str, value: object, check: Check | None) -> CheckSetting:
    """Return what a mapping of options, True or False says of a check; `check` is None if it is not known yet.

    Raises
    ------
    CheckNameError
        If an option does not exist, or has a wrong value.
    """
    if value is None or isinstance(value, bool):
        return CheckSetting(on=value is not False)
    if not isinstance(value, Mapping):
        raise CheckNameError(f"{name}: expected a mapping of options, or on or off, got {value!r:.80}")
    table = {**getattr(check, "options", {}), **COMMON_OPTIONS}
    try:
        check_options(table if check is not None else {**dict.fromkeys(value, _ANY), **COMMON_OPTIONS}, value)
    except ValueError as error:
        raise CheckNameError(f"{name}: {error}") from None
    options = {key: item for key, item in value.items() if key not in COMMON_OPTIONS}
    if isinstance(check, BuiltInCheck):
        options = {key: ",".join(item) if isinstance(item, list | tuple) else item for key, item in options.items()}
    return CheckSetting(options, str(value.get("xfail", "")), float(value.get("seconds", DEFAULT_SECONDS)))


_ANY = Option("any value", (object, bool))


def settings_of(value: object, known: Mapping[str, Check]) -> dict[str, CheckSetting]:
    """Return the settings by name that a text ``"rows,state"``, a list of names, or a mapping by name says.

    Raises
    ------
    CheckNameError
        If a name or an option is wrong.
    """
    if isinstance(value, str):
        value = split_names([value])
    if isinstance(value, Mapping) and value:
        for name in value:
            check_name(name, known)
        check_names([name for name, item in value.items() if item is not False], known)
        return {str(name): setting_of(str(name), item, known.get(str(name))) for name, item in value.items()}
    if not isinstance(value, list | tuple) or not value:
        raise CheckNameError(f"expected names such as 'rows,repeat', or a mapping of names, got {value!r:.80}")
    return {name: CheckSetting() for name in check_names(value, known)}


def plan(
    names: Sequence[str] | None, settings: Mapping[str, CheckSetting], own: Sequence[Check] = ()
) -> tuple[PlannedCheck, ...]:
    """Return the checks to run, in the order of the catalog.

    Parameters
    ----------
    names
        Those that the command line names, ``all`` or ``none``; None for those of `settings`.
    settings
        What the model's zoo file, marker or call says, by name.
    own
        A project's own checks.
    """
    known = known_checks(own)
    wanted = [name for name, setting in settings.items() if setting.on] if names is None else list(names)
    if "none" in wanted:
        return ()
    chosen = known if "all" in wanted else {name: known[name] for name in known if name in wanted}
    common = settings.get("all", CheckSetting())
    return tuple(PlannedCheck(check, settings.get(name, common)) for name, check in chosen.items())
