"""Each tolerance of a comparison on both sides: what just passes, and what just fails."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from pytest_torchlens.baseline.align import StepAlignment
from pytest_torchlens.baseline.compare import compare
from pytest_torchlens.baseline.conditions import Conditions
from pytest_torchlens.baseline.costs import StoredTimes
from pytest_torchlens.baseline.distance import error_between
from pytest_torchlens.baseline.environments import axes
from pytest_torchlens.baseline.environments import nearest_class
from pytest_torchlens.baseline.policy import Policy
from pytest_torchlens.baseline.rerun_operations import _word as word_of_exactness
from pytest_torchlens.baseline.sketch import numbers_of
from pytest_torchlens.baseline.snapshot import Answer
from pytest_torchlens.baseline.snapshot import Edge
from pytest_torchlens.baseline.snapshot import EnvironmentNumbers
from pytest_torchlens.baseline.snapshot import Numbers
from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.baseline.snapshot import Step
from pytest_torchlens.baseline.snapshot import Weight
from pytest_torchlens.baseline.store import Store
from pytest_torchlens.baseline.store import merge_snapshots
from pytest_torchlens.records import Change
from pytest_torchlens.records import Environment
from pytest_torchlens.records import Exactness
from pytest_torchlens.records import RerunResult

OWN = 2.0**-17
"""What an operation may differ by on equal inputs, in float32: 64 times its epsilon, 2**-23."""
PARENT = 2.0**-15
"""A difference that is still within what may have grown out of small ones: 1e-4."""
CPU = Environment(cpu_capability="AVX2", num_threads=1)
OTHER_CPU = replace(CPU, cpu_capability="AVX512")
TF32 = Environment(device="cuda", settings={"tf32": "True"})


def above(value: float) -> float:
    """Return the next number."""
    return math.nextafter(value, math.inf)


def a_step(id_: str, *parents: str, function: str = "mul", reads: tuple[str, ...] = (), **facts: object) -> Step:
    edges = tuple(Edge(parent=parent, argument=str(place)) for place, parent in enumerate(parents))
    state = tuple(Edge(parent=name, argument=name) for name in reads)
    fields = {"shape": (4,), "dtype": "float32"} | facts
    return Step(id=id_, function=function, applied=function, parents=edges, reads=state, **fields)


def some(digest: str = "a", *, one: float = 0.0, each: float = 0.0, **more: object) -> Numbers:
    """Return the numbers of four elements, whose largest value and RMS are 1, and of which one or each is off."""
    fields = {"rms": 1.0, "high": 1.0, "sketch": (one or each, each, each, each)} | more
    return Numbers(digest=digest, **fields)


def a_snapshot(
    steps: tuple[Step, ...], numbers: dict[str, Numbers], environment: Environment = CPU, **more: object
) -> Snapshot:
    return Snapshot(
        model="M", steps=steps, measured={"cpu": EnvironmentNumbers(environment=environment, numbers=numbers)}, **more
    )


IN = a_step("/in", function="input")


def verdict_of_one(
    error: Numbers, *, then: Environment = CPU, now: Environment = CPU, width: int = 0, conditions: str = ""
) -> Change:
    """Return the verdict on one operation that gives other numbers from equal inputs."""
    state = {"w": Weight(dtype="float32", shape=(3, width), digest="w")} if width else {}
    steps = (IN, a_step("/mul", "/in", reads=tuple(state)))
    before = a_snapshot(steps, {"/in": some("in"), "/mul": some()}, then, state=state)
    after = a_snapshot(steps, {"/in": some("in"), "/mul": error}, now, state=state)
    return compare(before, after, Conditions.of([conditions])).verdict


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (some("b", one=OWN), Change.LOCAL_CHANGE),
        (some("b", one=above(OWN)), Change.REGRESSION),
        (some("b", each=OWN / 2), Change.LOCAL_CHANGE),
        (some("b", each=above(OWN / 2)), Change.REGRESSION),  # half the limit holds for the root mean square
        (replace(some("b"), sketch=()), Change.REGRESSION),  # how far they are apart is not known
    ],
)
def test_an_operations_own_error(error: Numbers, verdict: Change):
    assert verdict_of_one(error) is verdict


@pytest.mark.parametrize(
    ("width", "limit"), [(1, OWN), (256, OWN), (1024, 2 * OWN), (4096, 4 * OWN)], ids=["1", "256", "1024", "4096"]
)
def test_the_limit_grows_with_the_root_of_a_sum_longer_than_256_terms(width: int, limit: float):
    assert verdict_of_one(some("b", one=limit), width=width) is Change.LOCAL_CHANGE
    assert verdict_of_one(some("b", one=above(limit)), width=width) is Change.REGRESSION


def test_another_cpu_may_differ_by_twice_as_much():
    assert verdict_of_one(some("b", one=2 * OWN), now=OTHER_CPU) is Change.DRIFT
    assert verdict_of_one(some("b", one=above(2 * OWN)), now=OTHER_CPU) is Change.REGRESSION


def test_tf32_may_differ_by_ten_times_as_much():
    assert verdict_of_one(some("b", one=10 * OWN), then=TF32, now=TF32) is Change.LOCAL_CHANGE
    assert verdict_of_one(some("b", one=above(10 * OWN)), then=TF32, now=TF32) is Change.REGRESSION


@pytest.mark.parametrize(
    ("unstable", "verdict"),
    [
        (("old",), Change.UNSTABLE),
        (("old", "new"), Change.UNSTABLE),
        (("new",), Change.NEWLY_UNSTABLE),
    ],
)
def test_numbers_that_differ_each_time_fail_where_the_baselines_did_not(unstable: tuple[str, ...], verdict: Change):
    steps = (IN, a_step("/mul", "/in"))
    old, new = (some(name, unstable=name in unstable) for name in ("old", "new"))
    before, after = (a_snapshot(steps, {"/in": some("in"), "/mul": side}) for side in (old, new))
    found = compare(before, after)
    assert (found.verdict, found.fails) == (verdict, verdict is Change.NEWLY_UNSTABLE)
    assert not compare(before, after, Conditions.of(["regression"])).fails


def test_what_repeats_itself_no_longer_fails_once_though_this_pass_gave_the_baselines_values():
    steps = (IN, a_step("/view", "/in", alias="0"), a_step("/mul", "/view"), a_step("/exp", "/mul"))
    wavers = some("a", unstable=True)
    sides = ({"/in": some("in"), "/view": Numbers(digest="a"), "/mul": n, "/exp": n} for n in (some("a"), wavers))
    found = compare(*(a_snapshot(steps, side) for side in sides))
    assert [(finding.change, finding.operation) for finding in found.findings] == [(Change.NEWLY_UNSTABLE, "/mul")]
    assert found.fails
    assert compare(*(a_snapshot(steps, {"/mul": wavers}) for _ in range(2))).verdict is Change.IDENTICAL


def changes(*numbers: tuple[Numbers, Numbers], last: str = "mul", **alone: RerunResult) -> dict[str, Change]:
    """Return the class of each finding in a chain of operations, each with its numbers before and after.

    `alone` has the results of some on the baseline's inputs: ``_1`` that of the operation ``/1``.
    """
    names = [f"/{place}" for place in range(len(numbers))]
    functions = ["mul"] * (len(numbers) - 1) + [last]
    steps = (IN, *(a_step(name, prior, function=function)
                   for name, prior, function in zip(names, ["/in", *names], functions, strict=False)))  # fmt: skip
    sides = (
        {"/in": some("in")} | {name: pair[side] for name, pair in zip(names, numbers, strict=True)} for side in (0, 1)
    )
    results = {name.replace("_", "/"): result for name, result in alone.items()}
    found = compare(*(a_snapshot(steps, side) for side in sides), repeat=lambda suspects: results)
    return {finding.operation: finding.change for finding in found.findings}


def differs_by(size: float) -> tuple[Numbers, Numbers]:
    return some("a"), some("b", each=size)


FIRST = differs_by(OWN / 2)


def test_a_difference_may_grow_to_a_ten_thousandth():
    assert changes(FIRST, differs_by(5e-5)) == {"/0": Change.LOCAL_CHANGE}
    assert changes(FIRST, differs_by(above(5e-5))) == {"/0": Change.LOCAL_CHANGE, "/1": Change.REGRESSION}


def test_a_larger_difference_is_its_own_error_where_it_is_ten_times_that_of_the_inputs():
    assert changes(FIRST, differs_by(PARENT), differs_by(10 * PARENT)) == {"/0": Change.LOCAL_CHANGE}
    found = changes(FIRST, differs_by(PARENT), differs_by(above(10 * PARENT)))
    assert found == {"/0": Change.LOCAL_CHANGE, "/2": Change.REGRESSION}


def test_what_gives_the_baselines_result_alone_passes_a_difference_on_or_is_newly_unstable_without_one():
    large, same = differs_by(0.1), RerunResult(same=True)
    assert changes(large, _0=same) == {"/0": Change.NEWLY_UNSTABLE}
    assert changes(FIRST, large, _1=same) == {"/0": Change.LOCAL_CHANGE}


def test_growth_is_counted_from_the_difference_in_the_pass_and_not_from_that_of_the_operation_alone():
    alone = RerunResult(error=OWN / 2, nrms=OWN / 2)
    local = {"/0": Change.LOCAL_CHANGE, "/1": Change.LOCAL_CHANGE}
    assert changes(FIRST, differs_by(PARENT), differs_by(10 * PARENT), _1=alone) == local
    found = changes(FIRST, differs_by(PARENT), differs_by(above(10 * PARENT)), _1=alone)
    assert found == local | {"/2": Change.REGRESSION}


def test_an_output_may_differ_by_a_fifty_thousandth():
    assert changes(FIRST, differs_by(1e-5), last="output") == {"/0": Change.LOCAL_CHANGE}
    found = changes(FIRST, differs_by(above(1e-5)), last="output")
    assert found == {"/0": Change.LOCAL_CHANGE, "/1": Change.REGRESSION}


def test_growth_is_counted_from_the_worst_of_two_inputs():
    steps = (IN, a_step("/a", "/in"), a_step("/b", "/in"), a_step("/c", "/a", "/b"))
    numbers = {"/a": differs_by(OWN / 2), "/b": differs_by(OWN / 64), "/c": differs_by(5 * OWN)}
    wide = Conditions.of(["graph:0"])
    before, after = ({"/in": some("in")} | {name: pair[side] for name, pair in numbers.items()} for side in (0, 1))
    found = compare(a_snapshot(steps, before), a_snapshot(steps, after), wide)
    assert {finding.operation for finding in found.findings} == {"/a", "/b"}


def test_a_sum_is_related_to_a_thousandth_of_its_terms():
    steps = (IN, a_step("/add", "/in", "/in", function="add"))
    terms = some("in", high=1000.0)

    def verdict(error: float) -> Change:
        sides = (some("a", high=1e-3, rms=1e-3), some("b", high=1e-3, rms=1e-3, one=error))
        return compare(*(a_snapshot(steps, {"/in": terms, "/add": side}) for side in sides)).verdict

    assert verdict(OWN) is Change.LOCAL_CHANGE
    assert verdict(above(OWN)) is Change.REGRESSION


@pytest.mark.parametrize(
    ("error", "before", "after", "exactness", "change"),
    [
        (10 * OWN, OWN / 2, OWN / 2, Exactness.MORE, Change.LOCAL_CHANGE),
        (above(10 * OWN), OWN / 2, OWN / 2, Exactness.MORE, Change.REGRESSION),
        (10 * OWN, above(OWN / 2), OWN / 2, Exactness.MORE, Change.REGRESSION),
        (10 * OWN, OWN / 2, above(OWN / 2), Exactness.MORE, Change.REGRESSION),
        (10 * OWN, OWN / 2, OWN / 2, Exactness.AS, Change.REGRESSION),
        (10 * OWN, None, None, Exactness.UNKNOWN, Change.REGRESSION),
    ],
)
def test_an_error_is_excused_where_both_results_are_roundings_and_the_new_one_is_more_exact(
    error: float, before: float | None, after: float | None, exactness: Exactness, change: Change
):
    steps = (IN, a_step("/mul", "/in"))
    sides = (a_snapshot(steps, {"/in": some("in"), "/mul": side}) for side in (some("a"), some("b", one=0.1)))
    alone = RerunResult(error=error, nrms=0.9 * OWN, before=before, after=after, exactness=exactness)
    assert compare(*sides, repeat=lambda suspects: {"/mul": alone}).verdict is change


def test_a_difference_in_one_bucket_is_that_of_one_element():
    before = Numbers(rms=1.0, high=4.0, sketch=(0.0, 0.0))
    one = error_between(before, replace(before, sketch=(4.0, 1.0)), size=100)  # 16 of 17: more than 0.9
    two = error_between(before, replace(before, sketch=(3.0, 1.0)), size=100)  # 9 of 10
    assert one is not None
    assert two is not None
    assert (one.largest, two.largest) == (1.0, math.sqrt(10 / 100) / 4)


def test_an_error_is_related_to_the_larger_of_both_largest_values():
    small, large = Numbers(rms=1.0, high=1.0, sketch=(0.0,)), Numbers(rms=1.0, high=4.0, sketch=(0.0,))
    for before, after in ((small, large), (large, small)):
        error = error_between(before, after, size=1)
        assert error is not None
        assert error.largest == 0.75 - 0.001 / 4  # less a unit of the last digit of what is rounded


def test_of_two_limits_the_later_holds():
    conditions = Conditions.of(["own:1e-3,own:1e-2", "flops:+10%,flops:+20%"])
    assert conditions.limit("own", IN) == 1e-2
    assert conditions.cost("flops") == 0.2


def test_a_limit_of_zero_is_one():
    assert Conditions.of(["own:0"]).limit("own", IN) == 0.0
    for error in (2.0**-50, 0.0):  # which the sketch does not show
        assert verdict_of_one(some("b", one=error), conditions="own:0") is Change.REGRESSION


def test_the_classes_that_fail_where_nothing_is_asked_for():
    assert {change for change in Change if Conditions().fails(change)} == {
        *(Change.STRUCTURE, Change.META_CHANGE, Change.REFACTOR, Change.NAN_CHANGE, Change.REGRESSION),
        *(Change.INPUTS_DIFFER, Change.NEWLY_UNSTABLE),
    }


def test_a_time_may_grow_by_as_much_as_was_said():
    same = a_snapshot((IN,), {"/in": some("in")})
    half = Conditions.of(["time:+50%"])
    assert compare(same, same, half, seconds=(1.0, 1.5)).verdict is Change.IDENTICAL
    assert compare(same, same, half, seconds=(1.0, above(1.5))).verdict is Change.SLOWER


def test_times_of_another_machine_are_dropped_and_those_of_the_last_run_accepted():
    times = StoredTimes(machine="a", baseline=1.0, last=2.0)
    assert times.after("a", 3.0) == StoredTimes(machine="a", baseline=1.0, last=3.0)
    assert times.after("b", 3.0) == StoredTimes(machine="b", baseline=3.0, last=3.0)
    assert times.as_baseline() == StoredTimes(machine="a", baseline=2.0, last=2.0)


def test_numbers_of_other_environments_stay_and_those_of_this_one_are_the_new_ones():
    steps = (IN,)
    old = replace(a_snapshot(steps, {"/in": some("old")}), state={"w": Weight(dtype="float32", shape=(1,), digest="1")})
    old = replace(old, measured={**old.measured, "gpu": old.measured["cpu"]})
    new = replace(a_snapshot(steps, {"/in": some("new")}), state=old.state)
    found = merge_snapshots(old, new).measured
    assert {name: block.numbers["/in"].digest for name, block in found.items()} == {"cpu": "new", "gpu": "old"}
    other = replace(new, state={"w": Weight(dtype="float32", shape=(1,), digest="2")})
    assert list(merge_snapshots(old, other).measured) == ["cpu"]


def test_what_was_accepted_waits_no_longer(tmp_path):
    store = Store(tmp_path / "set", tmp_path / ".lens" / "pending", None, None)
    snapshot = a_snapshot((IN,), {"/in": some("in")})
    store.keep("m", snapshot)
    assert store.waiting() == ["m"]
    store.accept("m", snapshot)
    assert (store.waiting(), store.models()) == ([], ["m"])


def test_places_and_signs_of_what_is_not_finite_are_told_apart():
    inf, nan = math.inf, math.nan
    found = [numbers_of(torch.tensor(values), "d") for values in ([1, inf, nan], [1, -inf, nan], [inf, 1, nan])]
    assert [(one.nan, one.inf) for one in found] == [(1, 1)] * 3
    assert len({one.holes for one in found}) == 3


SKETCH = {6: -4.0, 7: -1.0, 9: -2.0, 12: 6.0, 13: 10.0 - 3.0}
"""Of the numbers 1 to 8: place and signed sum; 1, 2, 6 and 3 fall into buckets from 16 on, which are folded."""


def test_the_sketch_is_pinned():
    found = numbers_of(torch.arange(1.0, 9.0), "d")
    assert {place: value for place, value in enumerate(found.sketch) if value} == SKETCH


PERIOD = 2**24 - 3


def test_the_pattern_of_a_sketch_begins_again_after_its_period():
    size = PERIOD + 2**16 + 9
    for place in (0, 5, 2**16 + 8):
        early, late = torch.zeros(size), torch.zeros(size)
        early[place], late[place + PERIOD] = 1.0, 1.0
        assert numbers_of(early, "d").sketch == numbers_of(late, "d").sketch, place


def with_swapped_operands(**facts: object) -> list[str]:
    """Return what is said of two operands that were swapped."""
    first = (IN, a_step("/a", "/in"), a_step("/b", "/in", function="exp"))
    before, after = (
        Snapshot(model="M", steps=(*first, a_step("/add", *pair, function="add", **facts)))
        for pair in (("/a", "/b"), ("/b", "/a"))
    )
    return next(both.structure for both in StepAlignment(before, after).steps if both.step.id == "/add")


def test_both_orders_of_a_sum_give_the_same_but_not_with_a_factor_or_in_place():
    same = "operands swapped: /b and /a; add gives the same for both orders"
    assert with_swapped_operands() == [same]
    assert with_swapped_operands(arguments=("alpha=2",)) == ["operands swapped: /b and /a"]
    assert with_swapped_operands(in_place=True) == ["operands swapped: /b and /a"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (("a is True",), ("a is False",), "other branch taken: a __bool__ True → a __bool__ False"),
        (("a is True", "b is True"), ("a is True",), "other branch taken: b __bool__ True → never asked"),
        (("a is True",), ("a is True", "b is True"), "other branch taken: never asked → b __bool__ True"),
    ],
)
def test_an_answer_to_python_that_is_another_or_missing(old: tuple[str, ...], new: tuple[str, ...], message: str):
    answers = [
        tuple(Answer("a" if text[0] == "a" else "b", "__bool__", text.endswith("True")) for text in side)
        for side in (old, new)
    ]
    before, after = (a_snapshot((IN,), {"/in": some("in")}, answers=side) for side in answers)
    assert [finding.message for finding in compare(before, after).findings] == [message]


def listed(count: int) -> tuple[int, tuple[str, ...]]:
    """Return how many findings a comparison lists, and its notes, where so many operations give other numbers."""
    steps = (IN, *(a_step(f"/{place}", "/in") for place in range(count)))
    sides = ({step.id: some("in" if step is IN else digest) for step in steps} for digest in "ab")
    found = compare(*(a_snapshot(steps, side) for side in sides), Conditions.of(["own:1"]))
    return len(found.findings), found.notes


def test_twenty_findings_are_listed_and_the_others_counted():
    assert listed(20) == (20, ())
    assert listed(21) == (20, ("1 further differences are not listed",))


@pytest.mark.parametrize(("count", "message"), [(3, "/0(), /1(), /2()"), (4, "/0 to /3 (4 operations)")])
def test_three_added_operations_are_named_and_more_are_counted(count: int, message: str):
    steps = (IN, *(a_step(f"/{place}", "/in") for place in range(count)))
    before, after = (a_snapshot(side, {step.id: some() for step in side}) for side in ((IN,), steps))
    assert [finding.message for finding in compare(before, after).findings] == [f"added: {message}"]


def test_the_way_of_a_difference_goes_from_its_first_to_its_last_step():
    numbers = [differs_by(OWN / 2) for _ in range(12)]
    names = [f"/{place}" for place in range(12)]
    steps = (IN, *(a_step(name, prior) for name, prior in zip(names, ["/in", *names], strict=False)))
    sides = (
        {"/in": some("in")} | {name: pair[side] for name, pair in zip(names, numbers, strict=True)} for side in (0, 1)
    )
    found = compare(*(a_snapshot(steps, side) for side in sides))
    assert [step.operation for step in found.growth] == ["/0", "/2", "/4", "/7", "/9", "/11"]


def test_a_class_of_the_same_device_is_near_and_others_are_not():
    gpu = replace(CPU, device="cuda")
    assert nearest_class(gpu, {"cpu": CPU}) is None
    assert nearest_class(CPU, {"cuda": gpu, "other": OTHER_CPU}) == "other"


def test_minor_versions_of_python_differ_and_patches_do_not():
    assert axes(Environment(python="3.10.1"), Environment(python="3.10.9")) == ()
    assert axes(Environment(python="3.10.1"), Environment(python="3.11.1")) == ("Python 3.10 → 3.11",)


@pytest.mark.parametrize(
    ("before", "after", "exactness"),
    [
        (1.1, 1.0, Exactness.AS),
        (above(1.1), 1.0, Exactness.MORE),
        (1.0, 1.1, Exactness.AS),
        (1.0, above(1.1), Exactness.LESS),
        (0.0, 0.0, Exactness.AS),
        (None, 1.0, Exactness.UNKNOWN),
        (1.0, None, Exactness.UNKNOWN),
    ],
)
def test_a_result_is_less_exact_where_it_is_a_tenth_farther_from_float64(
    before: float | None, after: float | None, exactness: Exactness
):
    assert word_of_exactness(before, after) is exactness


def test_a_model_without_a_baseline_fails_where_that_is_asked_for(tmp_path):
    snapshot = a_snapshot((IN,), {"/in": some("in")})
    policy = Policy(folder=str(tmp_path / "set"), pending=str(tmp_path / ".lens"), activations="", root=str(tmp_path))
    assert not policy.check("m", snapshot).fails
    assert replace(policy, strict=True).check("m", snapshot).fails
    assert replace(policy, fail_on=("new",)).check("m", snapshot).fails


def test_conditions_of_the_run_win_over_those_of_the_model():
    policy = Policy(folder="f", pending="p", activations="a", fail_on=("own:1e-3",))
    assert policy.conditions(("own:1e-2", "graph:1e-1")).limit("own", IN) == 1e-3
    assert policy.conditions(("own:1e-2", "graph:1e-1")).limit("graph", IN) == 1e-1


@pytest.mark.parametrize(
    ("then", "now", "messages"),
    [
        ("passed", "passed", []),
        ("passed", "not-applicable", ["less could be proved: replay passed → not-applicable"]),
        ("not-applicable", "passed", []),
    ],
)
def test_less_that_could_be_proved_is_reported_and_more_is_not(then: str, now: str, messages: list[str]):
    sides = (
        Snapshot(
            model="M",
            steps=(IN,),
            measured={"cpu": EnvironmentNumbers(environment=CPU, numbers={"/in": some("in")}, proof={"replay": proof})},
        )
        for proof in (then, now)
    )
    assert [finding.message for finding in compare(*sides).findings] == messages


def test_an_operation_that_moved_between_others_is_matched_once():
    """Of three operations that lost their module, each stands once in the order, removed or matched."""
    old = (
        IN,
        a_step("/x", "/in", function="exp"),
        a_step("/y", "/x", function="sin"),
        a_step("/z", "/y", function="cos"),
    )
    new = (IN, *(a_step(f"m/{step.id[1:]}", "/in", function=step.function, module=("m",)) for step in old[2:]))
    steps = StepAlignment(*(Snapshot(model="M", steps=side) for side in (old, new))).steps
    before = [both.before.id for both in steps if both.before is not None]
    assert sorted(before) == ["/in", "/x", "/y", "/z"]
