"""Changes to capture: which calls, values, writes and digests a recording has."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "capture/function_tracer.py",
        "if random is not None and has_drawn(random):",
        "if random is not None and not has_drawn(random):",
    ),
    Mutant("capture/function_tracer.py", ' and info.name != "data_ptr"', ""),
    Mutant("capture/function_tracer.py", "_CALLER_OF_ESCAPE = 4", "_CALLER_OF_ESCAPE = 5"),
    Mutant("capture/function_tracer.py", "elif call.args:", "elif not call:"),
    Mutant(
        "capture/function_tracer.py",
        "if type(result) is Tensor and not (written or aliased or",
        "if type(result) is Tensor and not (written or",
    ),
    Mutant(
        "replay/run.py",
        "if len(memory) > 1 or memory & self._borrowed:",
        "if False:",
        held_by="tests/replay/test_swaps.py",
    ),
    Mutant(
        "replay/run.py",
        "waiting += self._affected_sizes() if self._checks else []",
        "pass",
        held_by="tests/replay/test_swaps.py",
    ),
    Mutant("capture/generators.py", "0 < share < 1", "0 < share <= 1"),
    Mutant(
        "capture/process_limits.py",
        "if not self._recordings and self._read() == self._during:",
        "if not self._recordings:",
    ),
    Mutant("capture/process_limits.py", "if is_raised and self._recordings:", "if is_raised:"),
    Mutant("capture/process_limits.py", "self._before = self._read()\n                    self", "self"),
    Mutant("capture/origins.py", "made.pop(storage._cdata, None)", "pass"),
    Mutant("capture/origins.py", "(source.made_inside >= 0 or not source.maker)", "source.made_inside >= 0"),
    Mutant(
        "capture/fingerprint.py", "names, _ = tensor.__tensor_flatten__()", "names = tensor.__tensor_flatten__()[0][:1]"
    ),
    Mutant("capture/fingerprint.py", "if not tensor.is_contiguous() or tensor.is_conj()", "if tensor.is_conj()"),
    Mutant("capture/fingerprint.py", "tensor.q_scale().hex(), tensor.q_zero_point()", "tensor.q_scale().hex()"),
    Mutant("capture/fingerprint.py", "storage_key(tensor) if tensor.storage_offset() else address", "address"),
    Mutant("capture/storage.py", "self.dense and self.start <= other.start", "self.start <= other.start"),
    Mutant("capture/storage.py", "if size > 1 and stride > step:", "if size > 1 and stride > step + 1:"),
    Mutant("capture/storage.py", "return 1 + sum(", "return sum("),
    Mutant("capture/storage.py", "if one.stop <= other.start or", "if one.stop < other.start or"),
    Mutant("capture/storage.py", "% common <= common - other_run", "% common <= common"),
    Mutant(
        "capture/owners.py",
        "if owner is None or owner[0]() is None or owner[0] is entry[0]:",
        "if owner is None:",
    ),
    Mutant("capture/owners.py", "self._replaced[entry[2]] = entry", "pass"),
    Mutant("capture/write_log.py", "if write[0] > number and overlap", "if write[0] >= number and overlap"),
    Mutant("capture/write_log.py", "self._pending_reads.append(read)", "pass"),
    Mutant("capture/write_log.py", "for _, _, former in self._writes.values():", "for _, _, former in ():"),
    Mutant("capture/write_log.py", "if self._writes else ():", "if self._index else ():"),
    Mutant("capture/write_log.py", "range((extent.start >> level) - 1,", "range((extent.start >> level),"),
    Mutant(
        "capture/write_log.py",
        "range((start >> level) - 2, (start + run >> level) + 2)",
        "range(start >> level, (start + run >> level) + 1)",
    ),
    Mutant("capture/tensor_table.py", "ref, slot = old[0], old[1].slot", "ref, slot = old[0], self._new_slot()"),
    Mutant(
        "capture/tensor_table.py",
        "whole.requires_grad and not tensor.requires_grad",
        "whole.requires_grad and tensor.requires_grad",
    ),
    Mutant("capture/tensor_table.py", "since = len(self._recording.calls) - 1", "since = len(self._recording.calls)"),
    Mutant("capture/aliases.py", "// tensor.itemsize + owner.storage_offset()", "// tensor.itemsize"),
    Mutant("capture/tensor_table.py", "if memory is None or memory() is None or not", "if memory is None or not"),
    Mutant("capture/tensor_table.py", "self._arrays.refresh(key)", "pass"),
    Mutant("capture/tensor_table.py", 'if "out" in kwargs:', 'if "output" in kwargs:'),
    Mutant("capture/memory.py", "self._last = max(self._last, extent.stop)", "self._last = extent.stop"),
    Mutant("capture/memory.py", "whole=value.call < 0", "whole=False", held_by="tests/replay/test_player.py"),
    Mutant("capture/memory.py", "self._compare(key, exposure)", "pass", within="Arrays._drop_dead_arrays"),
    Mutant("capture/memory.py", "and array.flags.owndata", "and not array.flags.owndata"),
    Mutant("capture/values.py", "strides[-1] * max(size, 1)", "strides[-1] * size"),
    Mutant(
        "capture/record.py",
        "_LEAST_SEED, _GREATEST_SEED = -(2**63), 2**64 - 1",
        "_LEAST_SEED, _GREATEST_SEED = -(2**63), 2**63",
    ),
    Mutant("capture/write_log.py", "if set(of_base.writes) <= set(of_part.writes)", "if True"),
    Mutant(
        "capture/write_log.py",
        "reading = Reading(self, of_base.reading.since, extent)",
        "reading = Reading(self, of_base.reading.since, None)",
    ),
    Mutant(
        "capture/tensor_table.py", "for view in self._views_of.pop(slot, ())", "for view in self._views_of.get(-1, ())"
    ),
    Mutant(
        "replay/player.py",
        "is_view = is_current and self._is_view(value_of(read), base)",
        "is_view = is_current",
    ),
    Mutant("capture/record.py", "uses[key] > 1", "uses[key] > 2"),
    Mutant("capture/record.py", "source.live._version != source.version", "source.live._version < source.version"),
    Mutant("capture/record.py", "read[id(tensor)] if id(tensor) in read else after", "after"),
    Mutant(
        "capture/tracer.py",
        "with mode_disabled(self), torch._C.DisableTorchFunction():\n                return function(*args)",
        "return function(*args)",
    ),
    Mutant("capture/record.py", "if id(tensor) not in registered.tensors:", "if True:"),
    Mutant(
        "capture/dispatch_watch.py",
        "by_pytorch or self._is_harmless(func, args)):",
        "by_pytorch or not self._is_harmless(func, args)):",
    ),
    Mutant(
        "capture/dispatch_watch.py",
        "return self._count + sum(watch._count for watch in self._thread_watches)",
        "return self._count",
    ),
    Mutant(
        "capture/saving.py", "if self.dtype is not None and saved.is_floating_point():", "if self.dtype is not None:"
    ),
    Mutant("capture/saving.py", "if version_of(tensor) != before:", "if version_of(tensor) < before:"),
)
