"""The text that printing a history gives."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator

from pytest_torchlens.history.facts import frozen_text
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import ModuleRecord
from pytest_torchlens.records import byte_size

_WIDTH = 100
_STEP = "    "


def summary(record: HistoryRecord) -> str:
    """Return structure, tensors and bytes, parameters, seed, time, module hierarchy and layers, one below the other."""
    lines = [
        *heading(record),
        "\tModule Hierarchy:",
        *(f"\t\t{line}" for line in _hierarchy(record)),
        "\tLayers:",
        *(f"\t\t{place}: {label}" for place, label in enumerate(_with_passes(record.layer_list))),
    ]
    return "\n".join(lines)


def heading(record: HistoryRecord) -> list[str]:
    """Return the summary's first lines: structure, tensors, parameters, seed, time."""
    frozen = frozen_text(record.total_params, record.total_params_trainable)
    saved = f"{_tensors(record.num_tensors_saved)} ({byte_size(record.tensor_fsize_saved)}) saved"
    return [
        f"Log of {record.model_name} forward pass:",
        f"\tModel structure: {_structure(record)}",
        f"\t{_tensors(record.num_tensors_total)} ({byte_size(record.tensor_fsize_total)}) computed in forward pass; "
        f"{saved}.",
        f"\t{record.total_param_tensors} parameter operations ({record.total_params} params total{frozen}; "
        f"{byte_size(record.total_params_fsize)}).",
        f"\tRandom seed: {'none set' if record.random_seed_used is None else record.random_seed_used}",
        f"\tTime elapsed: {record.elapsed_time_total:.3f}s",
    ]


def _tensors(count: int) -> str:
    return f"{count} tensor{'' if count == 1 else 's'}"


def _with_passes(labels: tuple[str, ...]) -> Iterator[str]:
    """Yield each label; where its layer has several passes, with how many: ``add_1_2:1 (1/3 passes)``."""
    totals = Counter(label.rpartition(":")[0] for label in labels)
    for label in labels:
        layer, _, pass_num = label.rpartition(":")
        yield f"{label} ({pass_num}/{totals[layer]} passes)" if layer else label


def _structure(record: HistoryRecord) -> str:
    loops = f"recurrent (at most {record.model_max_recurrent_loops} loops)"
    kind = loops if record.model_is_recurrent else "purely feedforward"
    branching = "with branching" if record.model_is_branching else "without branching"
    count = len(record.modules) - 1
    return f"{kind}, {branching}; {count} total module{'' if count == 1 else 's'}."


def _hierarchy(record: HistoryRecord) -> Iterator[str]:
    by_address = {module.address: module for module in record.modules}
    for address in by_address[""].children:
        child = by_address[address]
        yield f"{address}:" if child.children else address
        yield from _below(child, by_address, _STEP)


def _below(module: ModuleRecord, by_address: dict[str, ModuleRecord], indent: str) -> Iterator[str]:
    """Yield a line for each child that has children, and one run of lines for neighbours that have none."""
    plain: list[str] = []
    for address in module.children:
        child = by_address[address]
        if not child.children:
            plain.append(address)
            continue
        yield from _wrapped(plain, indent)
        plain = []
        yield f"{indent}{address}:"
        yield from _below(child, by_address, indent + _STEP)
    yield from _wrapped(plain, indent)


def _wrapped(addresses: list[str], indent: str) -> list[str]:
    if not addresses:
        return []
    text = ", ".join(addresses)
    options = {"initial_indent": indent, "subsequent_indent": indent, "break_long_words": False}
    return textwrap.wrap(text, _WIDTH + len(indent), break_on_hyphens=False, **options)  # type: ignore[arg-type]
