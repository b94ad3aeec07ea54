"""Changes to replay and validate: what is run again, compared, perturbed, excused and said."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant("replay/player.py", "last.pop(source.value.slot, None)", "pass"),
    Mutant("replay/player.py", "last.pop(value_of(output).slot, None)", "pass"),
    Mutant("replay/player.py", "generator.set_state(state)", "pass"),
    Mutant("replay/player.py", "self._tensors.pop(slot, None)", "pass"),
    Mutant("replay/player.py", "return output if self._writes and", "return base if self._writes and"),
    Mutant("replay/player.py", "if id(write) not in named]", "if id(write) in named]"),
    Mutant("replay/player.py", "value = by_slot.get(slot, call.outputs[0])", "value = call.outputs[0]"),
    Mutant("replay/player.py", "return value.gradfunc not in", "return value.gradfunc in"),
    Mutant("replay/player.py", "if number != self._ambient:", "if self._ambient < 0:"),
    Mutant("replay/player.py", "self._fill_memory(number, outputs)", "pass"),
    Mutant("validate/trial.py", "_REPEATS = 3", "_REPEATS = 1"),
    Mutant("validate/trial.py", " & _tags_in_result(trial, places, some[1:] + some[:1])", ""),
    Mutant("validate/trial.py", "_AT_A_TIME = 120", "_AT_A_TIME = 130"),
    Mutant("validate/trial.py", "_kind(a) == _kind(b) and fingerprint(a)", "fingerprint(a)"),
    Mutant("validate/trial.py", "= copy_of(tensor)", "= tensor"),
    Mutant("validate/trial.py", "equal_nan=True", "equal_nan=False"),
    Mutant("validate/noise.py", "for number in (largest, -largest, 0.0):", "for number in (largest, -largest):"),
    Mutant("validate/noise.py", "if low != high:", "if low == high:"),
    Mutant(
        "validate/invariants.py",
        "elif place[id(parent)] >= place[id(node)]:",
        "elif place[id(parent)] > place[id(node)]:",
    ),
    Mutant("validate/invariants.py", "if known != len(arguments):", "if known < len(arguments):"),
    Mutant("validate/invariants.py", "if not module.first <= number < max(", "if not module.first <= number <= max("),
    Mutant("validate/invariants.py", "elif not 0 < node.pass_num <=", "elif not 0 <= node.pass_num <="),
    Mutant(
        "validate/completeness.py",
        "for source in () if recording.missed_operations else recording.unknown_sources:",
        "for source in recording.unknown_sources:",
    ),
    Mutant("validate/completeness.py", "reader, calls = source.since + 1,", "reader, calls = source.since,"),
    Mutant(
        "validate/score.py", "if len(self._failures) < _MOST_FAILURES:", "if len(self._failures) <= _MOST_FAILURES:"
    ),
    Mutant("validate/perturbation.py", "if not self._reacts(trial, [place])]", "if self._reacts(trial, [place])]"),
    Mutant("validate/perturbation.py", "if not self._reacts(trial, places):", "if self._reacts(trial, places):"),
    Mutant("validate/replay_check.py", "tensor.detach().copy_(value.tensor)", "pass"),
    Mutant("validate/replay_check.py", "and all(_accept_if_close(*pair)", "and any(_accept_if_close(*pair)"),
    Mutant(
        "validate/replay_check.py",
        "if not self._doubts or self._doubts & self._check.doubtful or not verdict.status.ok or self.out_of_time:",
        "if True:",
    ),
    Mutant(
        "validate/replay_check.py",
        "elif source.final != source.value.fingerprint and not",
        "elif source.final == source.value.fingerprint and not",
    ),
    Mutant("validate/replay_check.py", "if len(recorded) != len(returned):", "if len(recorded) < len(returned):"),
    Mutant("validate/replay_check.py", "torch.manual_seed(_OTHER_SEED)", "pass"),
    Mutant("validate/replay_check.py", "if time.thread_time() > self._until:", "if time.thread_time() < 0:"),
    Mutant(
        "validate/observer.py",
        "for name in state:",
        "for name in ():",
    ),
    Mutant("validate/unproven.py", "results[argument].call <= number", "results[argument].call < number"),
    Mutant("validate/unproven.py", "bisect.bisect_left(made, escape.call)", "bisect.bisect_right(made, escape.call)"),
    Mutant(
        "validate/unproven.py",
        "(Status.UNPROVEN, Status.NOT_APPLICABLE, Status.NOT_RUN)",
        "(Status.UNPROVEN, Status.NOT_APPLICABLE)",
    ),
    Mutant(
        "validate/validation.py",
        "return max(verdict, former, key=lambda one: _UNSETTLED.index(one.status) if one.status in _UNSETTLED else -1)",
        "return verdict",
    ),
    Mutant(
        "validate/validation.py",
        "if _all_settled(self._validate_once(parts)[1][:-1]):",
        "if not _all_settled(self._validate_once(parts)[1][:-1]):",
    ),
    Mutant("validate/causes.py", "_NEIGHBOURS = 1", "_NEIGHBOURS = 2"),
    Mutant("validate/exemptions.py", '"multiplied by zero" if number == 0', '"multiplied by zero" if number != 0'),
    Mutant("validate/exemptions.py", "size <= 2 for output", "size <= 3 for output"),
    Mutant("validate/exemptions.py", "math.prod(shape[2:]) == 1", "math.prod(shape[2:]) <= 2"),
    Mutant(
        "validate/exemptions.py",
        '"comparison" if compares else "integer quantised" if discrete',
        '"comparison" if discrete else "integer quantised" if compares',
    ),
    Mutant(
        "run/preserved_state.py",
        "[one for one in stack if not isinstance(one, _device.DeviceContext)] for stack in (now, self.stack)",
        "stack for stack in (now, self.stack)",
    ),
)
