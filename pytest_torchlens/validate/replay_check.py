"""Replays a recording call by call and compares every activation with its recorded fingerprint.

`Replay` runs the calls and hands each to `ReplayCheck`, which compares, and to `perturbation`, which changes arguments.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import operator
import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator

import torch

from pytest_torchlens.capture import Call
from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import Value
from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.fingerprint import holds
from pytest_torchlens.capture.generators import Generators
from pytest_torchlens.capture.generators import reseed
from pytest_torchlens.capture.storage import storage_key
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.records import Failure
from pytest_torchlens.records import PartVerdict
from pytest_torchlens.records import Status
from pytest_torchlens.records import output_name
from pytest_torchlens.replay import Player
from pytest_torchlens.replay.calls import Listener
from pytest_torchlens.replay.calls import mode_of
from pytest_torchlens.replay.calls import notifies
from pytest_torchlens.replay.player import Arguments
from pytest_torchlens.validate.causes import around_first_difference
from pytest_torchlens.validate.causes import likely_cause
from pytest_torchlens.validate.perturbation import Perturbation
from pytest_torchlens.validate.score import Score
from pytest_torchlens.validate.score import Where
from pytest_torchlens.validate.score import in_short
from pytest_torchlens.validate.trial import Trial
from pytest_torchlens.validate.trial import arguments_of
from pytest_torchlens.validate.trial import is_close
from pytest_torchlens.validate.trial import originals_of
from pytest_torchlens.validate.trial import outcome_of

_OTHER_SEED = 0x5EED
_FOLLOWS = "look at the first failure first: what follows from it differs too"


class Replay:
    """Runs a recording again from its sources, compares and perturbs.

    Parameters
    ----------
    recording
        What to replay.  The model and the inputs must hold the values that they had before the recorded call.
    where
        Gives the labels of its calls.
    parts
        ``"replay"``, ``"perturbation"`` or both.
    doubts
        Names of functions whose values differed in an earlier replay.  If they differ again, the call is repeated, and
        its saved values replace replayed ones that are within tolerance.
    until
        Deadline on the clock of `time.thread_time`, in seconds of CPU time.
    listener
        Also looks at each call; let go if it raises, or if the replay does not come to the end.
    with_mode
        Whether the listener's mode is entered around each call: some functions compute otherwise under a mode.
    """

    out_of_time = False
    """Whether the deadline passed before the end."""

    def __init__(  # noqa: PLR0913 - what to replay, and for whom, each by name
        self,
        recording: Recording,
        where: Where,
        parts: Collection[str],
        doubts: frozenset[str] = frozenset(),
        *,
        until: float = math.inf,
        listener: Listener | None = None,
        with_mode: bool = False,
    ) -> None:
        self._until = until
        self._is_timed = until < math.inf
        self.listener = listener
        self._with_mode = with_mode
        self._where = where
        self._recording = recording
        self._parts = parts
        self._doubts = doubts
        self._check = ReplayCheck(recording, where)
        self._perturbation = Perturbation(recording, where) if "perturbation" in parts else None

    @property
    def doubtful(self) -> frozenset[str]:
        """Names of functions whose values differ from the recorded ones."""
        return frozenset(self._check.doubtful)

    @property
    def nondeterministic(self) -> str:
        """Name of the first function whose values differ, if it does not repeat itself; else ``""``."""
        return self._check.nondeterministic or ""

    def verdicts(self, returned: list[str]) -> list[PartVerdict]:
        """Replay, and return the parts' verdicts; `returned` has the fingerprints of the model's outputs."""
        self._check.sources()
        with _preserve_generators(), torch._C.DisableTorchFunction(), Player(self._recording) as player:
            complete = all(map(self._step, itertools.repeat(player), itertools.count(), self._recording.calls))
            if complete:
                self._check.outputs(player, returned)
                self._check.final_states(player)
            else:
                self.listener = None
        verdict = self._with_doubts(self._check.verdict(), player.not_replayed)
        verdicts = [verdict] if "replay" in self._parts else []
        return verdicts if self._perturbation is None else [*verdicts, self._perturbation.verdict(complete)]

    def _with_doubts(self, verdict: PartVerdict, not_replayed: set[int]) -> PartVerdict:
        """Return a verdict without failures as unproven if something speaks against it."""
        reasons = [*self._unsettled(), *self._taken_from_the_recording(not_replayed)]
        if not reasons or not verdict.status.ok:
            return verdict
        return dataclasses.replace(verdict, status=Status.UNPROVEN, reason="; ".join(reasons))

    def _unsettled(self) -> Iterator[str]:
        """Yield a reason if functions differed in the replay before, and none of them differs now.

        If one differs again, the others may have differed because of what it gave them.
        """
        if self._doubts and not self._doubts & self._check.doubtful and not self.out_of_time:
            names = ", ".join(sorted(self._doubts))
            yield f"{names} gave other values than recorded in one replay, and the recorded ones in another"

    def _taken_from_the_recording(self, not_replayed: set[int]) -> Iterator[str]:
        """Yield a reason if recorded results of gradients were taken in place of replayed ones."""
        for number in sorted(not_replayed)[:1]:
            yield f"{self._where.label(number)} {self._recording.code_in_gradients[number].reason}"

    def _step(self, player: Player, number: int, call: Call) -> bool:
        """Replay one call; False if nothing after it can be replayed."""
        if self._is_timed and time.thread_time() > self._until:
            self.out_of_time = True
            return False
        if not self._check.edges(number, call, player):
            return False
        doubtful = call.info.name in self._doubts
        try:
            if self._perturbation is not None:
                self._perturbation.before(player, call, crop=not doubtful)
            in_doubt = self._perturbation is not None and bool(self._perturbation.open_edges)
            originals = originals_of(player, call) if doubtful or in_doubt else {}
            self._notify_before(player, call)
            if call.info.draws and call.random is None:  # if it draws after all, it must draw other numbers
                reseed(_OTHER_SEED)
            arguments = player.arguments(call)
            returned, outputs = self._play(player, number, call, arguments)
            self._check.writes(number, call, player, returned)
        except Exception as error:  # noqa: BLE001 - reported as that call's failure
            self._check.report_error(number, error)
            return False
        self._check.base(number, call, player, outputs)
        self._notify_after(number, call, outputs)
        if number in player.not_replayed and self._perturbation is not None:
            self._perturbation.leave_out("code inside a gradient")
        if not self._compare_and_perturb(player, number, outputs, originals if doubtful or in_doubt else None):
            return False
        player.store(number, call, returned)
        return True

    def _play(
        self, player: Player, number: int, call: Call, arguments: Arguments
    ) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
        if self.listener is None or not self._with_mode:
            return player.play(number, call, arguments)
        with mode_of(self.listener):
            return player.play(number, call, arguments)

    def _notify_before(self, player: Player, call: Call) -> None:
        """Notify the listener, if there is one; what it raises is not the call's failure."""
        if self.listener is not None and not notifies(self.listener, lambda listener: listener.before(player, call)):
            self.listener = None

    def _notify_after(self, number: int, call: Call, outputs: tuple[torch.Tensor, ...]) -> None:
        listener = self.listener
        if listener is not None and not notifies(listener, lambda listener: listener.after(number, call, outputs)):
            self.listener = None

    def _compare_and_perturb(
        self,
        player: Player,
        number: int,
        outputs: tuple[torch.Tensor, ...],
        originals: dict[int, torch.Tensor] | None,
    ) -> bool:
        """Compare the outputs of a call with the record, then perturb its open edges; False as in `_step`."""
        call = self._recording.calls[number]
        if originals is None or len(outputs) != len(call.outputs):
            return self._check.check(number, call, outputs, given=_unchanged_arguments(player, call))
        trial = Trial(player, call, arguments_of(player, call, originals), outcome_of(player, call, outputs))
        repeated = trial if call.info.name in self._doubts else None
        complete = self._check.check(number, call, outputs, repeated, lambda: trial.tensors)
        if self._perturbation is not None and self._perturbation.open_edges:
            self._perturbation.after(number, trial)
        return complete


def _unchanged_arguments(player: Player, call: Call) -> Callable[[], list[torch.Tensor]] | None:
    """Return a function that returns the arguments of a call that has just run; None if it overwrote any."""
    return None if call.writes else functools.partial(arguments_of, player, call, {})


@contextlib.contextmanager
def _preserve_generators() -> Iterator[None]:
    before = Generators()
    try:
        yield
    finally:
        before.restore()


class ReplayCheck:
    """Compares replayed values with recorded fingerprints and counts failures."""

    def __init__(self, recording: Recording, where: Where) -> None:
        self._recording = recording
        self._where = where
        self._score = Score("replay", "activations")
        self._uninitialised = 0
        self._unfingerprinted = 0
        self._flagged: set[int] = set()
        self._made_without_grad: set[int] = set()
        self._made_in_group: set[int] = set()
        """Slots of results of calls without gradients, and of those inside a custom function."""
        self._given: Callable[[], list[torch.Tensor]] | None = None
        """Returns the arguments of the call that is compared."""
        self.doubtful: set[str] = set()
        """Names of functions whose values differ from the recorded ones."""
        self.nondeterministic: str | None = None
        """Name of the first such function without saved values, if it does not repeat itself; None before the first."""

    def sources(self) -> None:
        """Report sources that changed although no recorded call wrote to them."""
        for description in self._recording.silent_writes:
            self._score.fail(
                Failure(
                    message=f"{description} changed during the forward pass, but no recorded operation wrote to it",
                    advice="write through a torch function, or exclude the model with a reason",
                )
            )

    def check(
        self,
        number: int,
        call: Call,
        outputs: tuple[torch.Tensor, ...],
        trial: Trial | None = None,
        given: Callable[[], list[torch.Tensor]] | None = None,
    ) -> bool:
        """Compare the outputs of call `number` with the recorded ones, and with the saved activations.

        Return whether the number of tensors is the recorded one.  With a `trial`, a call whose values differ is
        repeated: if it does not repeat itself and is within tolerance, the recorded values replace the replayed ones.
        `given` returns the arguments that the call got, to find the cause of a failure.
        """
        self._given = given
        if len(outputs) != len(call.outputs):
            self._score.checked += 1
            self._fail(number, f"the replay gave {len(outputs)} tensors where {len(call.outputs)} were recorded")
            return False
        pairs = zip(call.outputs, outputs, strict=True)
        if different := [pair for pair in pairs if not self._compare(number, call, *pair)]:
            self.doubtful.add(call.info.name)
            repeats = trial.repeats_itself() if trial is not None else None
            if trial is not None and not repeats and all(_accept_if_close(*pair) for pair in different):
                trial.tolerant = True
                self._score.tolerated += 1
            else:
                if self.nondeterministic is None:
                    self.nondeterministic = "" if repeats is not False or _all_saved(different) else call.info.name
                self._fail_values(number, different[0], repeats)
        return True

    def edges(self, number: int, call: Call, player: Player) -> bool:
        """Report arguments of a call with a wrong recorded parent; False if an argument does not exist."""
        if wrong := player.wrong_edges(call):
            self._report_edges(number, wrong)
        missing = player.missing_arguments(call)
        for path in missing:
            self._fail(number, f"argument {path} is recorded with a parent that no call before it made")
        return not missing

    def base(self, number: int, call: Call, player: Player, outputs: tuple[torch.Tensor, ...]) -> None:
        """Report the same for the first argument of a call that has run and may have returned a view of it."""
        if wrong := player.wrong_base(call, outputs):
            self._report_edges(number, wrong)

    def _report_edges(self, number: int, wrong: dict[str, list[int]]) -> None:
        for path, writers in wrong.items():
            message = f"argument {path} is recorded with another parent than the one whose value the tensor held"
            names = ", ".join(self._where.label(writer) for writer in writers)
            cause = "an edge, or a write through shared memory, is missing or wrong in the record"
            self._fail(number, message, f"it was overwritten in place by {names}" if names else cause)

    def writes(self, number: int, call: Call, player: Player, returned: tuple[torch.Tensor, ...]) -> None:
        """Report results that the record calls overwritten arguments, though they have their own memory."""
        for value, tensor in zip(call.outputs, returned, strict=False) if call.writes else ():
            if value.slot in call.writes and player.has(value.slot) and not _same_tensor(tensor, player.at(value.slot)):
                message = "it is recorded to overwrite a tensor, but gave one with memory of its own"
                self._fail(number, message)

    def _is_flagged(self, call: Call, value: Value, tensor: torch.Tensor, with_gradients: bool) -> bool:
        """Return whether code without a recorded call made a result require gradients.

        Such code is the constructor of a parameter, and a custom autograd function after its steps, which run without
        gradients.  Results that are computed from these with gradients require them too.
        """
        if call.info.name == "as_subclass" or value.slot in self._flagged:
            return True
        if not value.requires_grad:
            return False
        reads = [value_of(read) for _, read in edges_in(call)]
        if any(read.slot in self._flagged or read.slot in self._made_in_group for read in reads):
            return with_gradients or tensor._is_view()  # a view requires them as its base does
        if not with_gradients:
            return False
        # An `apply` that was looked up before the recording makes no group: no argument was recorded to require one
        without_grad = not any(read.requires_grad for read in reads)
        return bool(value.gradfunc) and without_grad and any(read.slot in self._made_without_grad for read in reads)

    def _compare(self, number: int, call: Call, value: Value, tensor: torch.Tensor) -> bool:
        """Return whether the values are the recorded ones; report all other differences here."""
        with_gradients = self._recording.ambient.rows[call.ambient][0]
        if not with_gradients:
            (self._made_without_grad if call.group is None else self._made_in_group).add(value.slot)
        if call.uninitialised:
            self._uninitialised += 1
        else:
            self._score.checked += 1
        replayed = Value(value.slot, value.call, value.position, tensor)
        if replayed.requires_grad != value.requires_grad and self._is_flagged(call, value, tensor, with_gradients):
            self._flagged.add(value.slot)
            replayed.requires_grad = value.requires_grad
        if not _have_same_facts(replayed, value):
            self._fail(number, f"the replay gave {_difference(replayed, value)} was recorded", self._cause(number))
            return True
        if call.uninitialised:
            return True
        if value.digest == "" or _is_fake(value.digest):
            self._unfingerprinted += 1
        elif not holds(tensor, value):
            return False
        elif value.tensor is not None and not holds(value.tensor, value):
            self._fail(
                number,
                "the saved activation is not what the operation gave",
                "it was changed after recording",
                around_first_difference(value.tensor, tensor),
            )
        return True

    def _fail_values(self, number: int, pair: tuple[Value, torch.Tensor], repeats: bool | None) -> None:
        value, tensor = pair
        message = f"the replayed values of {_kind(value.dtype, value.shape)} differ from the recorded ones"
        values = around_first_difference(value.tensor, tensor) if value.tensor is not None else ""
        self._fail(number, message, self._cause(number, repeats), values)

    def _cause(self, number: int, repeats: bool | None = None) -> str:
        """Return the likely cause; what follows from an earlier failure shows in the arguments, and has none."""
        given = self._given() if self._given is not None and not self._score.failed else None
        return likely_cause(self._recording, number, given, repeats)

    def outputs(self, player: Player, returned: list[str]) -> None:
        """Compare the replayed model outputs with the fingerprints of the model's own outputs."""
        recorded = self._recording.outputs
        if len(recorded) != len(returned):
            self._fail(-1, f"{len(recorded)} output tensors are recorded where the model returned {len(returned)}")
        for (path, output), digest in zip(recorded, returned, strict=False):
            value = value_of(output)
            self._score.checked += 1
            if not player.has(value.slot) or (fingerprint(player.at(value.slot)) != digest and not _is_fake(digest)):
                self._fail(
                    value.call, f"{output_name(path)} of the replayed graph differs from what the model returned"
                )

    def final_states(self, player: Player) -> None:
        """Compare overwritten buffers, parameters and inputs with their recorded final states."""
        for source in self._recording.sources:
            if not source.final:  # it was freed
                continue
            self._score.checked += 1
            slot, name = source.value.slot, f"{source.kind} {source.name!r}"
            if fingerprint(player.at(slot)) != source.final:
                message = f"{name} is left with other values by the replayed graph"
                self._fail(self._last_user(slot), message, "a write to it was not recorded, or not as it was")
            elif source.final != source.value.fingerprint and not (player.was_written(slot) or self._was_swapped(slot)):
                message = f"{name} was overwritten, but of no operation is it recorded that it did so"
                self._fail(self._last_user(slot), message, "what the operation overwrites was lost from the record")

    def _was_swapped(self, slot: int) -> bool:
        swaps = (call for call in self._recording.calls if call.info.layer_type == "swap_tensors")
        return any(value.slot == slot for call in swaps for value in call.outputs)

    def _last_user(self, slot: int) -> int:
        """Return the number of the last call that is recorded to overwrite a slot, else of the last that reads it."""
        calls = list(enumerate(self._recording.calls))
        writers = [number for number, call in calls if slot in call.writes]
        readers = (number for number, call in calls if any(value_of(read).slot == slot for _, read in edges_in(call)))
        return writers[-1] if writers else max(readers, default=-1)

    def report_error(self, number: int, error: Exception) -> None:
        """Report that call `number` raised when it was run again."""
        self._score.checked += 1
        self._fail(number, f"running it again raised {in_short(error)}")

    def _fail(self, number: int, message: str, cause: str = "", values: str = "") -> None:
        if not 0 <= number < len(self._recording.calls):
            self._score.fail(Failure(message=message, cause=cause))
            return
        self._score.fail(
            Failure(
                operation=self._where.label(number),
                message=message,
                values=values,
                cause=cause,
                advice=_FOLLOWS if self._score.failed else "",
                source_place=self._where.source_place(number),
            )
        )

    def verdict(self) -> PartVerdict:
        """Return the score so far."""
        exempt = {"uninitialised memory": self._uninitialised, "no fingerprint": self._unfingerprinted}
        return self._score.verdict(exempt={name: count for name, count in exempt.items() if count})


def _is_fake(digest: int | str) -> bool:
    """Return whether a digest is that of a fake tensor, which has no values to compare."""
    return isinstance(digest, str) and digest.startswith("fake:")


def _all_saved(pairs: list[tuple[Value, torch.Tensor]]) -> bool:
    return all(value.tensor is not None for value, _ in pairs)


def _same_tensor(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one is other or storage_key(one) == storage_key(other)


def _accept_if_close(value: Value, tensor: torch.Tensor) -> bool:
    """Replace replayed values by the recorded ones if they are within tolerance; False if they are not."""
    if value.tensor is None or not is_close(tensor, value.tensor):
        return False
    with torch.no_grad():
        tensor.detach().copy_(value.tensor)
    return True


_FACTS = {
    "a tensor": ("dtype", "shape"),
    "device": ("device",),
    "bytes": ("nbytes",),
    "strides": ("stride",),
    "requires_grad": ("requires_grad",),
}
"""The recorded facts about a tensor other than its values, by name, with the attributes of a `Value` that have them."""
_facts = operator.attrgetter(*itertools.chain(*_FACTS.values()))
_facts_but_strides = operator.attrgetter(*(name for name in itertools.chain(*_FACTS.values()) if name != "stride"))


def _have_same_facts(one: Value, other: Value) -> bool:
    """Return whether all facts agree; the strides of contiguous tensors do if their shapes do."""
    if one.contiguous and other.contiguous:
        return bool(_facts_but_strides(one) == _facts_but_strides(other))
    return bool(_facts(one) == _facts(other))


def _difference(replayed: Value, recorded: Value) -> str:
    """Return the facts about a replayed tensor that differ, and the recorded ones: ``"bytes 4 where 8"``."""
    facts = [(name, operator.attrgetter(*attributes)) for name, attributes in _FACTS.items()]
    differing = [(name, _fact(of(replayed)), _fact(of(recorded))) for name, of in facts if of(replayed) != of(recorded)]
    names, actual, expected = zip(*differing, strict=True)
    return f"{' and '.join(names)} {', '.join(actual)} where {', '.join(expected)}"


def _fact(fact: object) -> str:
    """Return a fact in words: ``"float32[2, 3]"`` for a dtype and a shape."""
    if isinstance(fact, tuple) and fact and isinstance(fact[0], torch.dtype):
        return _kind(*fact)
    return str(fact)


def _kind(dtype: torch.dtype, shape: torch.Size) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"
