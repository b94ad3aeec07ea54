"""Changes to the zoo's fill, to measure and to report: weights, costs, tables and pages."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "zoo/zoo_file.py",
        'merged = {**merged, **rule.settings, "kwargs": kwargs',
        'merged = {**rule.settings, **merged, "kwargs": kwargs',
    ),
    Mutant("zoo/fill.py", "(count + 1) // 2", "(count + 2) // 2"),
    Mutant("zoo/fill.py", "CHUNK = 1 << 16", "CHUNK = (1 << 16) + 1"),
    Mutant(
        "zoo/fill.py",
        "CHUNK = 1 << 16",
        "CHUNK = 1 << 15",
        equivalent="two numbers come from each 64-bit word, so each even chunk goes on in the stream where the one "
        "before it ended: the numbers are the same, only the memory that filling needs is not",
    ),
    Mutant("zoo/fill.py", "json.dumps([seed, name, shape])", "json.dumps([seed, name])"),
    Mutant("zoo/fill.py", "words >>= np.uint32(8)", "words >>= np.uint32(9)"),
    Mutant("zoo/fill.py", "math.ceil(high) - 1", "math.ceil(high)"),
    Mutant("zoo/fill.py", "math.prod(shape[1:])", "math.prod(shape)"),
    Mutant("zoo/fill.py", "if len(shape) <= 1 or", "if len(shape) < 1 or"),
    Mutant("zoo/fill.py", '"running_var": (0.5, 1.5)', '"running_var": (0.5, 1.4)'),
    Mutant("zoo/fill.py", "return high - max(", "return high + 0 * max("),
    Mutant("measure/flops.py", "(prod(of_input) + prod(of_state))", "prod(of_input)"),
    Mutant(
        "measure/flops.py",
        "(2 * prod(query[:-1]) * query[-1] + prod(key) + prod(value))",
        "(prod(query[:-1]) * query[-1] + prod(key) + prod(value))",
    ),
    Mutant("measure/flops.py", "for shape in weights[2:4]", "for shape in weights[2:3]"),
    Mutant("measure/flops.py", "self._counter.counted = self._counter.error = None", "self._counter.error = None"),
    Mutant("measure/memory.py", "if storage is not None and key not in self._alive:", "if storage is not None:"),
    Mutant("measure/memory.py", "self._bytes -= size", "pass", within="LiveStorages._free"),
    Mutant("measure/memory.py", "max(self._at_call[number], self._bytes)", "self._bytes"),
    Mutant(
        "measure/memory.py",
        "self._bytes += 0 if self._users[key] else storage.nbytes()",
        "self._bytes += storage.nbytes()",
    ),
    Mutant("measure/memory.py", "is_view = not call.writes and all(", "is_view = all("),
    Mutant("measure/memory.py", "last.pop(value_of(output).slot, None)", "pass"),
    Mutant("measure/times.py", "statistics.median(each) / 1e9 - overhead", "statistics.median(each) / 1e9"),
    Mutant(
        "measure/times.py", "Times(median, upper - lower, number * passes,", "Times(median, upper, number * passes,"
    ),
    Mutant("measure/times.py", "Times(median, upper - lower, number * passes,", "Times(median, upper - lower, passes,"),
    Mutant("measure/forward_pass.py", "sums[addresses[0]]", "sums[addresses[-1]]"),
    Mutant("measure/forward_pass.py", "if fingerprint(tensor) != digest:", "if fingerprint(tensor) == digest:"),
    Mutant("measure/forward_pass.py", "if passes < 1:", "if passes < 0:"),
    Mutant("report/results_table.py", "own | row_of(report, environment)", "row_of(report, environment)"),
    Mutant("report/results_table.py", "LONGEST = 200", "LONGEST = 201"),
    Mutant("report/results_table.py", ' and float(row["forward_ms"])', ""),
    Mutant(
        "report/results_table.py", "verdict.seconds * 1e3 / report.forward_ms", "verdict.seconds / report.forward_ms"
    ),
    Mutant(
        "report/layer_table.py",
        "share=work[module.address].seconds / (costs.total or 1.0)",
        "share=work[module.address].seconds / 2",
    ),
    Mutant("report/layer_table.py", "_MOST_BARS: Final = 12", "_MOST_BARS: Final = 13"),
    Mutant("report/layer_table.py", "_FEW: Final = 3", "_FEW: Final = 2"),
    Mutant(
        "report/layer_table.py", "num_closing=max(level - next_level, 0)", "num_closing=max(level - next_level - 1, 0)"
    ),
    Mutant(
        "report/layer_table.py",
        "totals.update(dict.fromkeys(path, module.num_params))",
        "totals.update({module.address: module.num_params})",
    ),
    Mutant(
        "report/layer_table.py",
        "ends[branch.level :] = [start + branch.share, start]",
        "ends[branch.level :] = [start, start]",
    ),
    Mutant(
        "report/layer_table.py",
        "if 0 <= operation.call_id < len(counts) else None",
        "if 0 < operation.call_id < len(counts) else None",
    ),
    Mutant("report/terminal.py", "_MEBIBYTE = 2**20", "_MEBIBYTE = 10**6"),
    Mutant(
        "report/terminal.py",
        "for reason, (first, *_) in ordered[:_MOST_REASONS]]",
        "for reason, (first, *_) in ordered]",
    ),
    Mutant("report/terminal.py", "_MOST: Final = 5", "_MOST: Final = 6"),
    Mutant("report/terminal.py", "for report in good[:top]}", "for report in models[:top]}"),
    Mutant("report/summary.py", "* 100**place", "* 10**place"),
    Mutant(
        "report/summary.py",
        "key=lambda item: (item[0] not in _FIRST_WORDS, item[0])",
        "key=lambda item: (item[0] in _FIRST_WORDS, item[0])",
    ),
    Mutant("report/markdown.py", "_MOST_ROWS: Final = 300", "_MOST_ROWS: Final = 301"),
    Mutant("report/markdown.py", "MOST: Final = 10", "MOST: Final = 11"),
    Mutant("report/markdown.py", "if len(text.encode()) <= MOST_BYTES:", "if len(text) <= MOST_BYTES:"),
    Mutant(
        "history/lookup.py",
        "indices = () if index is None else (index - len(self._saved), index)",
        "indices = () if index is None else (index,)",
    ),
)
