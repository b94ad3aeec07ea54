"""Changes to baselines: what is stored, how far numbers may differ, who is blamed, what fails."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant("baseline/distance.py", "self.nrms <= limit / 2", "self.nrms <= limit"),
    Mutant("baseline/distance.py", "self.largest <= limit and", "self.largest < limit and"),
    Mutant("baseline/distance.py", "_LONG_REDUCTION = 256", "_LONG_REDUCTION = 256000"),
    Mutant("baseline/distance.py", "_ONE_ELEMENT = 0.9", "_ONE_ELEMENT = 0.5"),
    Mutant("baseline/distance.py", "_MACHINE, _TF32 = 2.0, 10.0", "_MACHINE, _TF32 = 1.0, 10.0"),
    Mutant("baseline/distance.py", "_MACHINE, _TF32 = 2.0, 10.0", "_MACHINE, _TF32 = 2.0, 20.0"),
    Mutant("baseline/distance.py", '"float32": 64.0', '"float32": 128.0'),
    Mutant("baseline/distance.py", '"float32": 1e-4', '"float32": 1e-3'),
    Mutant("baseline/distance.py", '"float32": 2e-5', '"float32": 2e-4'),
    Mutant("baseline/distance.py", "max(before.largest, after.largest, scale)", "max(before.largest, scale)"),
    Mutant("baseline/distance.py", "math.prod(weights[0][1:])", "math.prod(weights[0])"),
    Mutant("baseline/judge.py", "_GROWTH_RATIO = 10.0", "_GROWTH_RATIO = 1000.0"),
    Mutant("baseline/judge.py", "_CANCELLED = 1e-3", "_CANCELLED = 1e-1"),
    Mutant("baseline/judge.py", "max(alone.before, alone.after) <= limit / 2", "alone.after <= limit / 2"),
    Mutant("baseline/judge.py", "max(alone.before, alone.after) <= limit / 2", "alone.before <= limit / 2"),
    Mutant("baseline/judge.py", "_NEVER_EXCUSED = 10.0", "_NEVER_EXCUSED = 100.0"),
    Mutant("baseline/judge.py", "is_exact(step) or nearest or step.function in _STEPPED", "is_exact(step) or nearest"),
    Mutant("baseline/outputs.py", "error.within(limit) and not holes", "error.within(limit)"),
    Mutant("baseline/outputs.py", "return max(found, key=_badness", "return min(found, key=_badness"),
    Mutant("baseline/compare.py", "and not any(both.recalled for both in aligned.steps)", ""),
    Mutant("baseline/compare.py", "and not trains_differently(aligned)", ""),
    Mutant("baseline/compare.py", "and not is_reordered(aligned.before.output, aligned.after.output)", ""),
    Mutant("baseline/compare.py", " and not (both.before.is_view or both.after.is_view)", ""),
    Mutant("baseline/judge.py", "if not (case.same or after.is_view) and", "if not case.same and"),
    Mutant("baseline/align.py", "places if len(places) == len(steps) else map(", "map("),
    Mutant(
        "baseline/align.py", "for address in old if _is_in(address, now)", "for address in () if _is_in(address, now)"
    ),
    Mutant("baseline/spelling.py", """("None", defaults.get(place))""", """("None",)"""),
    Mutant("baseline/spelling.py", "if place not in _IDLE", "if True"),
    Mutant("baseline/take_snapshot.py", "if is_view and id(value) not in self._returned:", "if is_view:"),
    Mutant("baseline/compare.py", "and _answers(aligned.before) == _answers(aligned.after)", ""),
    Mutant("baseline/policy.py", "if this.under_names is None or not names:", "if True:"),
    Mutant("baseline/judge.py", "if not case.inherits:", "if case.inherits:"),
    Mutant("baseline/judge.py", "in_graph = case.error if case.inherits else found.error", "in_graph = found.error"),
    Mutant(
        "baseline/judge.py",
        "if error is None or not error.within(limit):",
        "if error is not None and not error.within(limit):",
    ),
    Mutant(
        "baseline/judge.py",
        "if case.same and case.new.unstable and not (case.old.unstable or case.inherits_wavering):",
        "if case.same and case.new.unstable and not case.old.unstable:",
    ),
    Mutant(
        "baseline/judge.py", "key=lambda error: error.nrms, default=NONE", "key=lambda error: -error.nrms, default=NONE"
    ),
    Mutant(
        "baseline/conditions.py",
        "return found[-1] if found else None",
        "return found[0] if found else None",
        within="Conditions.limit",
    ),
    Mutant(
        "baseline/conditions.py",
        "return found[-1] if found else None",
        "return found[0] if found else None",
        within="Conditions.cost",
    ),
    Mutant("baseline/conditions.py", "if not 0 <= number < math.inf:", "if not 0 < number < math.inf:"),
    Mutant(
        "baseline/conditions.py",
        "*(Change.NAN_CHANGE, Change.REGRESSION, Change.NEWLY_UNSTABLE),",
        "*(Change.REGRESSION, Change.NEWLY_UNSTABLE),",
    ),
    Mutant("baseline/costs.py", "new > old * (1 +", "new >= old * (1 +"),
    Mutant("baseline/costs.py", "seconds[1] > seconds[0] * (1 + allowed)", "seconds[1] >= seconds[0] * (1 + allowed)"),
    Mutant("baseline/costs.py", "self.baseline if same else seconds", "self.baseline"),
    Mutant("baseline/costs.py", "replace(self, baseline=self.last)", "replace(self, last=self.baseline)"),
    Mutant(
        "baseline/store.py", "measured={**old.measured, **new.measured}", "measured={**new.measured, **old.measured}"
    ),
    Mutant("baseline/store.py", "(old.steps, old.state) != (new.steps, new.state)", "old.steps != new.steps"),
    Mutant("baseline/store.py", "self.forget(key)", "pass", within="Store.accept"),
    Mutant("baseline/distance.py", "max(_ratio(largest, whole), least)", "_ratio(largest, whole)"),
    Mutant("baseline/distance.py", "abs(new - old) - rounding for", "abs(new - old) for"),
    Mutant("baseline/distance.py", "_STEPS = 3", "_STEPS = 1"),
    Mutant("baseline/precision.py", "BITS = 26", "BITS = 22"),
    Mutant("baseline/precision.py", "BITS_FLOAT64 = 48", "BITS_FLOAT64 = 44"),
    Mutant("baseline/precision.py", "most = 2 ** (bits - 1) - 1", "most = 2 ** (bits - 1)"),
    Mutant("baseline/precision.py", "zip(pairs[:BUCKETS], pairs[BUCKETS:]", "zip(pairs[BUCKETS:], pairs[BUCKETS:]"),
    Mutant("baseline/sketch.py", "begin = start % _PERIOD", "begin = start"),
    Mutant("baseline/sketch.py", "np.where(odd > 0, 2, 3)", "np.where(odd > 0, 2, 2)"),
    Mutant("baseline/sketch.py", "sums[::2] - sums[1::2]", "sums[::2] + sums[1::2]"),
    Mutant("baseline/sketch.py", '"inf": every.shape[1] - nan', '"inf": every.shape[1]'),
    Mutant("baseline/align.py", "not (step.arguments or step.in_place)", "not step.in_place"),
    Mutant("baseline/align.py", "early = partners[place] + 1", "early = partners[place]"),
    Mutant("baseline/align.py", "_MOST_NAMES = 3", "_MOST_NAMES = 4"),
    Mutant("baseline/compare.py", "_MOST = 20", "_MOST = 21"),
    Mutant("baseline/compare.py", "round(i * gaps / (_GROWTH - 1))", "round(i * gaps / _GROWTH)"),
    Mutant(
        "baseline/compare.py",
        "if _rank(new) > _rank(old):",
        "if _rank(new) < _rank(old):",
    ),
    Mutant("baseline/environments.py", "[:2])", "[:1])", within="_minor"),
    Mutant("baseline/environments.py", "if environment.device == wanted.device]", "if environment.device]"),
    Mutant(
        "baseline/saved_activations.py",
        'if f"{fingerprint(contents)} {contents.dtype}" != stored.name:',
        "if not contents.numel():",
    ),
    Mutant("baseline/saved_activations.py", "offset=tensor.data_ptr() % ALIGNMENT", "offset=0"),
    Mutant("baseline/rerun_operations.py", "_CLEARLY = 1.1", "_CLEARLY = 11.0"),
    Mutant(
        "baseline/policy.py", "fails=self.strict or conditions.fails(Change.NEW)", "fails=conditions.fails(Change.NEW)"
    ),
    Mutant(
        "baseline/policy.py", "Conditions.of((*fail_on, *self.fail_on))", "Conditions.of((*self.fail_on, *fail_on))"
    ),
)
