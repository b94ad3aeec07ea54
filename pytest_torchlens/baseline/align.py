"""Aligns the steps of two snapshots, and finds what differs in them apart from numbers."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field
from itertools import groupby
from itertools import zip_longest

from pytest_torchlens.baseline.snapshot import Answer
from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.baseline.snapshot import Step
from pytest_torchlens.baseline.spelling import other_arguments
from pytest_torchlens.baseline.spelling import place_of
from pytest_torchlens.baseline.spelling import reads_by_place
from pytest_torchlens.baseline.spelling import texts_of
from pytest_torchlens.records import Change
from pytest_torchlens.records import Finding
from pytest_torchlens.records import align
from pytest_torchlens.records.alignment import common_places

_MOST_NAMES = 3
_PAIR = 2
_NOT_ASKED = "never asked"
_COMMUTATIVE = frozenset(
    "add mul eq ne maximum minimum fmax fmin hypot logaddexp logicaland logicalor logicalxor bitwiseand bitwiseor "
    "bitwisexor and or xor".split()
)
_SHAPING = frozenset("view reshape flatten unflatten permute transpose squeeze unsqueeze expand".split())
_ENDS = frozenset({"input", "output", "constant"})


@dataclass
class StepPair:
    """A step of both snapshots, or of one.

    Attributes
    ----------
    before, after
        The step in each snapshot; None where that snapshot has no such step.
    parents
        Places of the steps that the step in `after` reads.
    structure
        Differences of the call: its function, its arguments, what it reads.
    meta
        Differences of the tensor: shape, dtype, strides, memory.
    rewired
        Whether an argument comes from another step, or from a step that only one snapshot has.
    recalled
        Whether the same function got other arguments besides tensors, or weights of another shape.
    """

    before: Step | None
    after: Step | None
    parents: list[int] = field(default_factory=list)
    structure: list[str] = field(default_factory=list)
    meta: list[str] = field(default_factory=list)
    rewired: bool = False
    recalled: bool = False

    @property
    def step(self) -> Step:
        """The step in `after`, or in `before` if `after` lacks it."""
        found = self.after or self.before
        assert found is not None  # noqa: S101 - a pair has at least one
        return found


class StepAlignment:
    """The steps of two snapshots in one order.

    Attributes
    ----------
    steps
        In the order of `after`; a step that only `before` has stands where it ran.
    ties
        What to say of a parameter or buffer that was tied to another or untied, by its name before and after.
    """

    def __init__(self, before: Snapshot, after: Snapshot) -> None:
        self.before, self.after = before, after
        self.steps = list(_step_pairs(before, after))
        self._now = {both.before.id: both.after.id for both in self.steps if both.before and both.after}
        self._ids_of_both = set(self._now.values())
        self._moves = _moves(self.steps)
        self.ties = _ties(self.steps)
        self._returned = {step.id: place for place, step in outputs_of(after).items()}
        places = {both.after.id: place for place, both in enumerate(self.steps) if both.after is not None}
        for both in self.steps:
            if both.after is not None:
                both.parents = [places[edge.parent] for edge in both.after.parents if edge.parent in places]
            if both.before is not None and both.after is not None:
                reads = list(_reads(both.before, both.after, self))
                both.structure = [*_calls(both.before, both.after), *reads]
                both.recalled = _is_recalled(both.before, both.after)
                both.meta = list(_tensors(both.before, both.after))
                self._rewire(both, both.before, both.after)

    def _rewire(self, both: StepPair, before: Step, after: Step) -> None:
        """Set `rewired`; where both snapshots have the steps that make an argument, note the difference too."""
        old, new = _sources(before), _sources(after)
        arguments = dict.fromkeys([*old, *new])
        pairs = {argument: (old.get(argument, []), new.get(argument, [])) for argument in arguments}
        moved = {
            argument: pair for argument, pair in pairs.items() if [self._now.get(name) for name in pair[0]] != pair[1]
        }
        both.rewired = bool(moved)
        later, ids = self.now_with_moves, self._ids_of_both | set(self._moves.values())
        known = {
            argument: ([later[name] for name in was], now)
            for argument, (was, now) in moved.items()
            if all(name in later for name in was) and all(name in ids for name in now)
        }
        known = {argument: (was, now) for argument, (was, now) in known.items() if was != now}
        where = f"the output's {place!r}" if (place := self._returned.get(after.id)) else "it"
        both.structure += _swapped_operands(known, after) or [
            f"{f'argument {argument}' if argument else where} is {_names(now)}, was {_names(was)}"
            for argument, (was, now) in known.items()
        ]

    @property
    def now_with_moves(self) -> dict[str, str]:
        """For each step that both have, at another place or not: its id in `after`, by its id in `before`."""
        return self._now | self._moves

    @property
    def partners(self) -> dict[str, str]:
        """For each step that both have: its id in `before`, by its id in `after`."""
        return {now: then for then, now in self._now.items()}

    @property
    def renamed_weights(self) -> dict[str, str]:
        """For each parameter and buffer that has another name now: its old name, which no other was given."""
        found: dict[str, str] = {}
        for both in self.steps:
            for was, now in _reads_of_both(both):
                self._note_name(found, was, now)
        return found

    def _note_name(self, found: dict[str, str], was: str, now: str) -> None:
        is_new = now not in self.before.state and was not in self.after.state and was not in found.values()
        old, new = self.before.state.get(was), self.after.state.get(now)
        if is_new and old is not None and new is not None and (old.shape, old.dtype) == (new.shape, new.dtype):
            found.setdefault(now, was)

    @property
    def only_names_differ(self) -> bool:
        """Whether both have the same steps, which read the same tensors: only modules and weights have other names."""
        return all(
            both.before and both.after and not (both.rewired or both.meta or list(_calls(both.before, both.after)))
            for both in self.steps
        )

    def replacements(self) -> Iterator[Finding]:
        """Yield the steps that were added, removed, replaced or moved; consecutive ones are one finding."""
        moved = {*self._moves, *self._moves.values()}
        for run in self._stretches():
            gone = [both.before for both in run if both.before is not None]
            yield from _stretch(gone, [both.after for both in run if both.after is not None], moved)

    def _stretches(self) -> Iterator[list[StepPair]]:
        """Yield consecutive steps that only one snapshot has."""
        return (list(run) for alone, run in groupby(self.steps, _is_alone) if alone)

    @functools.cached_property
    def other_names(self) -> dict[tuple[str, str], list[Step]]:
        """Addresses of renamed modules before and after, with the steps in them."""
        names: dict[tuple[str, str], list[Step]] = defaultdict(list)
        for both in self.steps:
            if both.before is not None and both.after is not None:
                old, new = (_address(step) for step in (both.before, both.after))
                if old != new:
                    names[_roots(old, new)].append(both.after)
        return dict(names)

    @functools.cached_property
    def renamed_modules(self) -> dict[str, str]:
        """New addresses of modules by their old ones, the first of several: all that matched is in the new one."""
        old = {_address(step) for step in self.before.steps if step.function not in _ENDS}
        matched = (both.after for both in self.steps if both.before is not None and both.after is not None)
        new = {_address(step) for step in matched if step.function not in _ENDS}
        return {
            was: now
            for was, now in reversed(self.other_names)
            if all(_is_in(address, now) for address in new if _is_in(address, was))
            and all(_is_in(address, was) for address in old if _is_in(address, now))
        }

    def renames(self) -> Iterator[Finding]:
        """Yield the modules that have another address now, and operations that are in other modules."""
        for (old, new), steps in self.other_names.items():
            if self.renamed_modules.get(old) == new:
                where = f"renamed: module {old or '(the model)'} is now {new or '(the model)'}"
            else:
                first, second = (f"module {name}" if name else "the model itself" for name in (old, new))
                where = f"called in {second}, was in {first}"
            count = f"{len(steps)} operation{'s' * (len(steps) != 1)} in it matched"
            yield _finding(steps[0], f"{where}; {count}")

    def outside_steps(self) -> Iterator[Finding]:
        """Yield differences in the returned object, in answers to Python, and in parameters that no step reads."""
        yield from _output_differences(self.before.output, self.after.output)
        yield from _answer_differences(self.before.answers, self.after.answers)
        yield from self._unread_differences()

    def _unread_differences(self) -> Iterator[Finding]:
        """Yield the parameters and buffers that were added, removed or changed, and that no step reads."""
        old = {self._current_name(name): weight for name, weight in _unread_weights(self.before).items()}
        new = _unread_weights(self.after)
        came = set(new) - {self._current_name(name) for name in self.before.state}
        for word, names in (("came", came), ("went", set(old) - set(self.after.state))):
            if names:
                yield Finding(change=Change.STRUCTURE, message=f"parameters that nothing reads {word}: {_few(names)}")
        if changed := {name for name in old if name in new and old[name] != new[name]}:
            yield Finding(change=Change.INPUTS_DIFFER, message=f"other weights, which nothing reads: {_few(changed)}")

    def _current_name(self, name: str) -> str:
        """Return a parameter's address after its module was renamed: the innermost one, if several were."""
        if name in self.after.state:
            return name
        for old, new in sorted(self.renamed_modules.items(), key=lambda names: -len(names[0])):
            prefix = f"{old}." if old else ""
            if name.startswith(prefix):
                return f"{new}.{name[len(prefix) :]}".removeprefix(".")
        return name


def _output_differences(old: dict[str, str], new: dict[str, str]) -> Iterator[Finding]:
    """Yield the first place at which the returned objects differ, or that the places are in another order."""
    if is_reordered(old, new):
        yield Finding(change=Change.STRUCTURE, message=f"order of the outputs: {_keys(new)}, was {_keys(old)}")
    path = next((path for path in [*new, *old] if old.get(path) != new.get(path)), None)
    if path is not None:
        where = f"the output's {path!r} is" if path else "the output is"
        message = f"{where} {new.get(path, 'gone')}, was {old.get(path, 'not there')}"
        yield Finding(change=Change.STRUCTURE, message=message)


def is_reordered(old: dict[str, str], new: dict[str, str]) -> bool:
    """Return whether two returned objects have the same places in another order."""
    return old.keys() == new.keys() and [*old] != [*new]


def _keys(output: dict[str, str]) -> str:
    return ", ".join(path for path, kind in output.items() if kind == "tensor")


def _answer_differences(old: tuple[Answer, ...], new: tuple[Answer, ...]) -> Iterator[Finding]:
    """Yield the first answer to Python about a tensor's value that differs."""
    was, now = next((pair for pair in zip_longest(old, new) if pair[0] != pair[1]), (None, None))
    if was is not None or now is not None:
        operation = now.operation if was and now and was.operation == now.operation else ""
        message = f"other branch taken: {was or _NOT_ASKED} → {now or _NOT_ASKED}"
        yield Finding(change=Change.STRUCTURE, operation=operation, message=message)


def _unread_weights(snapshot: Snapshot) -> dict[str, object]:
    read = {edge.parent for step in snapshot.steps for edge in step.reads}
    return {name: weight for name, weight in snapshot.state.items() if name not in read}


def _few(names: set[str]) -> str:
    first = sorted(names)[:_MOST_NAMES]
    return ", ".join(first) + (f" and {len(names) - len(first)} more" if len(names) > len(first) else "")


def _is_alone(both: StepPair) -> bool:
    return both.before is None or both.after is None


def _step_pairs(before: Snapshot, after: Snapshot) -> Iterator[StepPair]:
    """Yield the steps in one order: `align` matches module by module, then `_match_stretch` matches the rest."""
    alignment = align(
        *([step.operation(side.state) for step in side.steps if step.function != "output"] for side in (before, after))
    )
    old, new = ({step.id: step for step in side.steps} for side in (before, after))
    every = [
        StepPair(old[pair.first.label] if pair.first else None, new[pair.second.label] if pair.second else None)
        for pair in alignment.pairs
    ]
    for alone, run in groupby(every, _is_alone):
        stretch = list(run)
        yield from _match_stretch(stretch) if alone else stretch
    yield from (StepPair(was, now) for was, now in pair_outputs(before, after))


def pair_outputs(before: Snapshot, after: Snapshot) -> Iterator[tuple[Step | None, Step | None]]:
    """Yield the returned tensors of both in pairs: those at the same place in the object, then the others in order."""
    old, new = outputs_of(before), outputs_of(after)
    others = iter([step for place, step in old.items() if place not in new])
    for place, step in new.items():
        yield old[place] if place in old else next(others, None), step
    yield from ((step, None) for step in others)


def outputs_of(snapshot: Snapshot) -> dict[str, Step]:
    """Return the returned tensors by their places in the object, by numbers where places have no names of their own."""
    steps = [step for step in snapshot.steps if step.function == "output"]
    places = [path for path, kind in snapshot.output.items() if kind == "tensor"]
    return dict(zip(places if len(places) == len(steps) else map(str, range(len(steps))), steps, strict=True))


def _match_stretch(stretch: list[StepPair]) -> Iterator[StepPair]:
    gone = [both.before for both in stretch if both.before is not None]
    new = [both.after for both in stretch if both.after is not None]
    early = 0
    partners = {place: of for of, place in common_places(list(map(_content, gone)), list(map(_content, new)))}
    for place, step in enumerate(new):
        if place in partners:
            yield from (StepPair(before, None) for before in gone[early : partners[place]])
            yield StepPair(gone[partners[place]], step)
            early = partners[place] + 1
        else:
            yield StepPair(None, step)
    yield from (StepPair(before, None) for before in gone[early:])


def _content(step: Step) -> tuple[object, ...]:
    reads = ((place, name.rpartition(".")[2]) for place, name in reads_by_place(step).items())
    return step.function, step.index, tuple(reads)


def _swapped_operands(arguments: dict[str, tuple[list[str], list[str]]], step: Step) -> list[str]:
    """Return one line if two operands were swapped, and nothing else."""
    pairs = [*arguments.values()]
    if len(pairs) != _PAIR or pairs[0] != pairs[1][::-1] or not all(pairs[0]):
        return []
    commutes = step.function in _COMMUTATIVE and not (step.arguments or step.in_place)
    why = f"; {step.function} gives the same for both orders" if commutes else ""
    return [f"operands swapped: {_names(pairs[0][1])} and {_names(pairs[1][1])}{why}"]


def _sources(step: Step) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for edge in step.parents:
        found[place_of(step, edge.argument)].append(edge.parent)
    return found


def _calls(before: Step, after: Step) -> Iterator[str]:
    for name, was, now in (
        ("function", before.applied, after.applied),
        ("in place", before.in_place, after.in_place),
    ):
        if was != now:
            yield f"{name} {was} → {now}"
    if other := other_arguments(before, after):
        gone, came = ([text for place, text in texts_of(step).items() if place in other] for step in (before, after))
        yield f"argument {', '.join(gone) or 'none'} → {', '.join(came) or 'none'}"


def _reads(before: Step, after: Step, aligned: StepAlignment) -> Iterator[str]:
    """Yield the parameters and buffers that come, go or change shape; a module's new name is not a difference."""
    first, second = aligned.before.state, aligned.after.state
    old, new = reads_by_place(before), reads_by_place(after)
    for argument in dict.fromkeys([*old, *new]):
        was, now = old.get(argument), new.get(argument)
        if was is None or now is None:
            yield f"{now} is read" if was is None else f"{was} is not read"
            continue
        if (was, now) in aligned.ties:
            yield aligned.ties[was, now]
        elif was != now and _relative(was, before) != _relative(now, after):
            renamed = was not in second and now not in first
            yield f"renamed: {was} is now {now}" if renamed else f"{now} is read in place of {was}"
        shapes = [state[name].shape for state, name in ((first, was), (second, now)) if name in state]
        if len(set(shapes)) > 1:
            yield f"{now} has shape {shapes[0]} → {shapes[1]}"


def _ties(steps: list[StepPair]) -> dict[tuple[str, str], str]:
    """Return what to say of names that stand in the place of several, or several of which stand in one's place."""
    pairs = dict.fromkeys(pair for both in steps for pair in _reads_of_both(both))
    later, earlier = _grouped(pairs), _grouped((now, was) for was, now in pairs)
    found = {}
    for was, now in pairs:
        if was != now and len(later[was]) > 1:
            found[was, now] = f"untied: {' and '.join(later[was])} are read where {was} was"
        elif was != now and len(earlier[now]) > 1:
            found[was, now] = f"tied: {now} is read where {' and '.join(earlier[now])} were"
    return found


def _reads_of_both(both: StepPair) -> Iterator[tuple[str, str]]:
    if both.before is not None and both.after is not None:
        old, new = reads_by_place(both.before), reads_by_place(both.after)
        yield from ((old[place], new[place]) for place in old if place in new)


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for name, other in pairs:
        found[name].append(other)
    return found


def _is_recalled(before: Step, after: Step) -> bool:
    """Return whether the same function got other arguments besides tensors; those of a view change no value."""
    if before.applied != after.applied or (after.function in _SHAPING and after.is_view):
        return False
    return bool(other_arguments(before, after))


def _relative(name: str, step: Step) -> str:
    """Return a parameter's name relative to the module that reads it; its address if another module owns it."""
    return name.removeprefix(f"{_address(step)}.")


def _address(step: Step) -> str:
    """Return the address of the module around a step, without the number of its call."""
    name = step.module[-1] if step.module else ""
    address, colon, number = name.rpartition(":")
    return address if colon and number.isdigit() else name


def _tensors(before: Step, after: Step) -> Iterator[str]:
    for name, old, new in (
        ("shape", before.shape, after.shape),
        ("dtype", before.dtype, after.dtype),
        ("device", before.device, after.device),
    ):
        if old != new:
            yield f"{name} {old} → {new}"
    if before.shape == after.shape:
        if before.stride != after.stride:
            yield f"strides {before.stride or 'contiguous'} → {after.stride or 'contiguous'}"
        if bool(before.alias) != bool(after.alias):
            yield "it was a copy and is a view" if after.alias else "it was a view and is a copy"


def _is_in(address: str, module: str) -> bool:
    return not module or address == module or address.startswith(f"{module}.")


def _names(ids: list[str]) -> str:
    return ", ".join(ids) or "none"


def _roots(old: str, new: str) -> tuple[str, str]:
    """Return two addresses without the names that both end in."""
    first, second = old.split("."), new.split(".")
    while first and second and first[-1] == second[-1]:
        first.pop()
        second.pop()
    return ".".join(first), ".".join(second)


_What = tuple[object, ...]


def _what(step: Step) -> _What:
    return step.applied, step.arguments, step.reads, step.index


def _moves(steps: list[StepPair]) -> dict[str, str]:
    """Return the new ids of steps that moved, by their old ones: the same function with the same arguments."""
    by_what: dict[_What, list[Step]] = defaultdict(list)
    for both in steps:
        if both.before is not None and both.after is None:
            by_what[_what(both.before)].append(both.before)
    found: dict[str, str] = {}
    for both in steps:
        if both.before is None and both.after is not None and (waiting := by_what.get(_what(both.after))):
            found[waiting.pop(0).id] = both.after.id
    return found


def _stretch(old: list[Step], new: list[Step], moved: set[str]) -> Iterator[Finding]:
    went = [step for step in new if step.id in moved]
    old = [step for step in old if step.id not in moved]
    new = [step for step in new if step.id not in moved]
    if went:
        yield _finding(went[0], f"moved: {_list_text(went)} at another place in the order")
    if old and new:
        yield _finding(new[0], f"replaced: {_list_text(new)} in place of {_list_text(old)}")
    elif new:
        yield _finding(new[0], f"added: {_list_text(new)}")
    elif old:
        yield _finding(old[0], f"removed: {_list_text(old)}")


def _finding(step: Step, message: str) -> Finding:
    return Finding(change=Change.STRUCTURE, operation=step.id, message=message, source_place=step.source_place)


def _list_text(steps: list[Step]) -> str:
    if len(steps) > _MOST_NAMES:
        return f"{steps[0].id} to {steps[-1].id} ({len(steps)} operations)"
    return ", ".join(f"{step.id}({', '.join(step.arguments)})"[:120] for step in steps)
