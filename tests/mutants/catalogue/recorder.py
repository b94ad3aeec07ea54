"""Changes to the recorder: which steps it records, what it measures, when an expectation fails, what it writes."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant("recorder/statistics.py", "CANCELLED = 1e-3", "CANCELLED = 1e-14"),
    Mutant("recorder/statistics.py", "math.sqrt(variance / max(count - 1, 1))", "math.sqrt(variance / count)"),
    Mutant("recorder/statistics.py", "while tensor.numel() > limit:", "while tensor.numel() >= limit:"),
    Mutant("recorder/statistics.py", "/ (count - correction).clamp(min=1).sqrt()", "/ count.clamp(min=1).sqrt()"),
    Mutant("recorder/statistics.py", "if is_batch and tensor.dim() > 2:", "if is_batch and tensor.dim() > 3:"),
    Mutant(
        "recorder/expectation_rules.py",
        "_remember(past, norm, max(expected.window, FEW))",
        "_remember(past, norm, FEW)",
    ),
    Mutant("recorder/expectation_rules.py", "FEW = 5", "FEW = 4"),
    Mutant("recorder/expectation_rules.py", "FEW = 5", "FEW = 6"),
    Mutant(
        "recorder/expectation_rules.py", "if len(past) >= expected.window else", "if len(past) > expected.window else"
    ),
    Mutant("recorder/expectation_rules.py", "quarter = max(1, len(losses) // 4)", "quarter = max(1, len(losses) // 2)"),
    Mutant("recorder/expectation_rules.py", "if share > 0 if limits is None", "if share >= 0 if limits is None"),
    Mutant(
        "recorder/expectation_rules.py",
        "if len(observation.shape) > 1 else None",
        "if len(observation.shape) > 0 else None",
    ),
    Mutant("recorder/expectation_rules.py", "if observation.row.norm > 0:", "if observation.row.norm >= 0:"),
    Mutant("recorder/expectations.py", "(zero_steps >= max(windows))", "(zero_steps > max(windows))"),
    Mutant("recorder/expectations.py", "if not windows or tensor.dim() < 2:", "if not windows or tensor.dim() < 3:"),
    Mutant("recorder/expectations.py", "unit = 1 if tensor.dim() > 3 else", "unit = 1 if tensor.dim() > 2 else"),
    Mutant("recorder/expectations.py", "if len(self._losses) < 2:", "if len(self._losses) < 3:"),
    Mutant("recorder/expectations.py", "if reading.scale != 1 and row.nans:", "if row.nans:"),
    Mutant(
        "recorder/steps.py",
        "self.step < options.start or (self.step - options.start) % options.every",
        "self.step < options.start or self.step % options.every",
    ),
    Mutant(
        "recorder/steps.py",
        "if not self.enabled or self.step < options.start or",
        "if not self.enabled or self.step <= options.start or",
    ),
    Mutant("recorder/steps.py", "self.step >= options.until", "self.step > options.until"),
    Mutant("recorder/steps.py", "now - self._last < 1 / options.per_second", "now - self._last < options.per_second"),
    Mutant("recorder/recorder_options.py", '("<=", _number(found[2]))', '("<", _number(found[2]))'),
    Mutant(
        "recorder/recorder_options.py",
        "if len(bounds) > 1 and bounds[0][1] > bounds[1][1]:",
        "if len(bounds) > 1 and bounds[0][1] >= bounds[1][1]:",
    ),
    Mutant(
        "records/options.py",
        "or value <= most)",
        "or value < most)",
    ),
    Mutant("recorder/recorder_options.py", '"frames_per_second": whole(1, 240)', '"frames_per_second": whole(1, 241)'),
    Mutant("recorder/recorder_options.py", "whole(options.start + 1).check", "whole(options.start).check"),
    Mutant(
        "recorder/readings.py",
        "math.inf if math.isinf(change) else change / norm",
        "math.inf if math.isinf(change) else change",
    ),
    Mutant(
        "recorder/tensor_hooks.py",
        "if self._clock.is_recorded and reading.call == 1:",
        "if self._clock.is_recorded and reading.call >= 1:",
    ),
    Mutant("recorder/tensor_hooks.py", "part = part / reading.scale", "part = part * reading.scale"),
    Mutant("recorder/ring.py", "return self.slots - (self.num_filled -", "return self.slots + 1 - (self.num_filled -"),
    Mutant("recorder/ring.py", "self._slots[number % self.slots]", "self._slots[min(number, self.slots - 1)]"),
    Mutant(
        "recorder/worker/video.py",
        'self._frames == self._settings["max_frames"]',
        'self._frames > self._settings["max_frames"]',
    ),
    Mutant("recorder/worker/tables.py", 'f"{number:.9g}"', 'f"{number:.6g}"'),
    Mutant("recorder/worker/pixels.py", "or min(shape[-2:]) == 1:", "or min(shape[-2:]) == 0:"),
    Mutant("recorder/worker/pixels.py", "columns = max(1, min(count, round(", "columns = max(1, max(count, round("),
    Mutant(
        "recorder/worker/files.py", "data = data[self._file.write(data) :]", "data = data[self._file.write(data) + 1 :]"
    ),
    Mutant("recorder/worker/files.py", "self._file.truncate(self.size)", "pass"),
)
