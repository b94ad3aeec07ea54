"""Rules about what is computed, or held, for nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container
from collections.abc import Iterator

from pytest_torchlens.audit.subject import Subject
from pytest_torchlens.audit.subject import is_floating
from pytest_torchlens.audit.subject import place
from pytest_torchlens.records import AuditPlace
from pytest_torchlens.records import Operation
from pytest_torchlens.records import byte_size

VIEWS = frozenset(
    "alias asstrided broadcastto chunk contiguous data detach diagonal expand expandas flatten getitem h mh movedim mt "
    "narrow permute real reshape select slice split splitwithsizes squeeze swapaxes t to transpose type typeas unbind "
    "unflatten unfold unsqueeze view viewas".split()
)
"""Kinds of operation that move no numbers, or as good as none."""
_WORTH_TELLING = 2**20
"""Bytes of a copy."""


def unused_modules(subject: Subject) -> Iterator[AuditPlace]:
    """Find modules with parameters of which nothing was called or read, the outermost of each."""
    if subject.facts is None:
        return
    sizes: dict[str, list[int]] = {address: [] for address in _unused_trees(subject)}
    for name, size in subject.facts.parameters.items():
        if (address := _tree_around(name, sizes)) is not None:
            sizes[address].append(size)
    for address, of_one in sizes.items():
        detail = f"{len(of_one):,} parameters of {sum(of_one):,} elements"
        line = subject.facts.line_around(address.rpartition(".")[0])
        yield AuditPlace(module=address, source_line=line, detail=detail)


def unused_parameters(subject: Subject) -> Iterator[AuditPlace]:
    """Find parameters that no operation read, in modules that are used."""
    if subject.facts is None:
        return
    trees = _unused_trees(subject)
    for name, size in subject.facts.parameters.items():
        if name not in subject.used_parameters and _tree_around(name, trees) is None:
            line = subject.facts.line_around(name.rpartition(".")[0])
            yield AuditPlace(module=name, source_line=line, detail=f"{size:,} elements")


def _unused_trees(subject: Subject) -> dict[str, None]:
    """Return the outermost modules of which no call was made and no parameter read, in order."""
    parameters = subject.facts.parameters if subject.facts else {}
    used = {module.address for module in subject.history.modules if module.num_passes} | subject.used_parameters
    in_use = {prefix for name in used for prefix in _prefixes(name)}
    unused = {prefix for name in parameters for prefix in _prefixes(name) if prefix != name} - in_use
    found: dict[str, None] = {}
    for module in subject.history.modules:
        if module.address in unused and _tree_around(module.address, found) is None:
            found[module.address] = None
    return found


def _tree_around(name: str, trees: Container[str]) -> str | None:
    """Return the tree that a module or parameter is of; a model may have thousands, as experts are."""
    return next((prefix for prefix in _prefixes(name) if prefix in trees), None)


def _prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def no_effect(subject: Subject) -> Iterator[AuditPlace]:
    """Find the last operations of what reaches no output, no buffer and no Python code."""
    read = {escape.operation for escape in subject.history.escapes}
    partly_used = {op.call_id for op in subject.calls if op.is_output_ancestor or op.child_layers}
    for op in subject.calls:
        is_last = op.terminated_inside_model and op.call_id not in partly_used and op.label not in read
        if is_last and not _is_excused(op) and not _is_idle_view(subject, op):
            yield place(op, f"{byte_size(op.tensor_fsize)} that nothing reads")


def _is_excused(op: Operation) -> bool:
    """Whether an operation serves a condition, writes into what outlives the pass, or does nothing with the input."""
    is_condition = op.in_cond_branch or op.is_terminal_bool_layer or op.is_condition
    return is_condition or op.function_is_inplace or not op.has_input_ancestor


def _is_idle_view(subject: Subject, op: Operation) -> bool:
    """Whether it only looks at what is used otherwise, to ask for its shape, say."""
    return op.layer_type in VIEWS and any(parent.is_output_ancestor for parent in subject.parents(op))


def duplicates(subject: Subject) -> Iterator[AuditPlace]:
    """Find operations that do again, with the same tensors, what was done before."""
    groups: dict[object, list[Operation]] = defaultdict(list)
    for op in subject.calls:
        if op.fingerprint and is_floating(op) and op.has_input_ancestor and op.layer_type not in VIEWS:
            groups[_work(op)].append(op)
    for first, *others in groups.values():
        for op in others:
            if not (op.function_is_random or op.function_is_inplace):
                yield place(op, f"the same as {first.label}")


def _work(op: Operation) -> object:
    """Return what is equal of two operations that do the same."""
    given = op.func_position_args_non_tensor, op.func_keyword_args_non_tensor, op.parent_param_addresses
    return op.func_applied_name, op.edges, given, op.fingerprint, op.iterable_output_index


def copies(subject: Subject) -> Iterator[AuditPlace]:
    """Find `contiguous`, `reshape` and `flatten` that had to copy a large tensor, the largest first."""
    moved = subject.measurements.operation_bytes_moved if subject.measurements else ()
    found = [op for op in subject.calls if op.tensor_fsize >= _WORTH_TELLING and _copies(subject, op, moved)]
    for op in sorted(found, key=lambda op: -op.tensor_fsize):
        yield place(op, f"{byte_size(op.tensor_fsize)} copied")


def _copies(subject: Subject, op: Operation, moved: tuple[int, ...]) -> bool:
    if op.layer_type == "contiguous":
        return any(parent.tensor_stride != op.tensor_stride for parent in subject.parents(op)[:1])
    return op.layer_type in ("reshape", "flatten") and op.call_id < len(moved) and moved[op.call_id] > 0
