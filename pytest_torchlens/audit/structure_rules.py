"""Audit rules about the graph: what a pass depends on, which work is unused, and which parameters train."""

from __future__ import annotations

from collections import Counter
from collections import defaultdict
from collections.abc import Callable
from collections.abc import Container
from collections.abc import Iterable
from collections.abc import Iterator

from pytest_torchlens.audit.subject import Subject
from pytest_torchlens.audit.subject import arguments
from pytest_torchlens.audit.subject import is_floating
from pytest_torchlens.audit.subject import place
from pytest_torchlens.records import AuditPlace
from pytest_torchlens.records import EscapeRecord
from pytest_torchlens.records import Operation
from pytest_torchlens.records import byte_size

_DROPOUTS = ("dropout", "alphadropout", "featuredropout", "featurealphadropout")
_NO_ORDER = frozenset(
    "bincount cumsum histc indexadd indexcopy indexput kthvalue median put scatteradd scatterreduce".split()
)
"""Kinds that PyTorch lists as nondeterministic on a GPU (torch.use_deterministic_algorithms)."""


def train_mode(subject: Subject) -> Iterator[AuditPlace]:
    """Find dropout and batch norm that act as in training, in a model in eval mode."""
    if subject.facts is None or subject.facts.is_training:
        return
    for op in subject.calls:
        if op.function_is_random and op.layer_type in _DROPOUTS:
            yield place(op, "drops at random" + _of_module(subject, op))
        elif op.layer_type == "batchnorm" and _uses_batch(op):
            yield place(op, "normalizes by this batch alone" + _of_module(subject, op))


def _uses_batch(op: Operation) -> bool:
    """Whether a batch norm with running statistics does not use them."""
    given = arguments(op)
    return "True" in (given.get("5"), given.get("training")) and given.get("1") != "None"


def _of_module(subject: Subject, op: Operation) -> str:
    address = (op.containing_module_origin or "").partition(":")[0]
    is_on = subject.facts is not None and address in subject.facts.in_training
    return f"; module {address} is in train mode" if is_on else "; its argument says so, whatever the mode"


def random(subject: Subject) -> Iterator[AuditPlace]:
    """Find random numbers, except dropout, that reach the outputs of a model in eval mode."""
    if subject.facts is None or subject.facts.is_training:
        return
    for op in subject.calls:
        if op.function_is_random and op.is_output_ancestor and op.layer_type not in _DROPOUTS:
            yield place(op, "draws random numbers that reach an output")


def nondeterministic_kernels(subject: Subject) -> Iterator[AuditPlace]:
    """Find operations whose result on a GPU depends on the order of its threads."""
    for op in subject.calls:
        if op.layer_type in _NO_ORDER and op.tensor_device.startswith("cuda") and op.is_output_ancestor:
            yield place(op, f"{op.func_applied_name} on {op.tensor_device}")


def decisions(subject: Subject) -> Iterator[AuditPlace]:
    """Find lines where a tensor's value decides which code runs."""
    yield from _by_line(subject, lambda escape: escape.is_branching, _decision)


def _decision(escape: EscapeRecord) -> str:
    asked = f"{escape.statement} {escape.condition}".strip() if escape.statement != "expression" else escape.function
    return f"asked by: {asked}" + (f" (went to {escape.branch})" if escape.branch else "")


def into_python(subject: Subject) -> Iterator[AuditPlace]:
    """Find lines where tensors become Python numbers or arrays."""
    yield from _by_line(subject, lambda escape: not escape.is_condition, lambda escape: f"by {escape.function}")


def _by_line(
    subject: Subject, is_wanted: Callable[[EscapeRecord], bool], say: Callable[[EscapeRecord], str]
) -> Iterator[AuditPlace]:
    """Yield one place for each line, with the number of times that it ran."""
    wanted: Iterable[EscapeRecord] = [escape for escape in subject.history.escapes if is_wanted(escape)]
    firsts = {escape.source_line: escape for escape in reversed(list(wanted))}
    counts = Counter(escape.source_line for escape in wanted)
    for line in counts:
        escape, times = firsts[line], f", {counts[line]} times" if counts[line] > 1 else ""
        yield AuditPlace(operation=escape.operation, source_line=line, detail=f"{say(escape)}{times}")


VIEWS = frozenset(
    "alias asstrided broadcastto chunk contiguous data detach diagonal expand expandas flatten getitem h mh movedim mt "
    "narrow permute real reshape select slice split splitwithsizes squeeze swapaxes t to transpose type typeas unbind "
    "unflatten unfold unsqueeze view viewas".split()
)
"""Kinds of operation that move no data, or hardly any."""
_WORTH_TELLING = 2**20
"""Minimum size in bytes of a reported copy."""


def unused_modules(subject: Subject) -> Iterator[AuditPlace]:
    """Find modules with parameters that were neither called nor read; report only the outermost."""
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
    """Return the outermost modules that were not called and have no parameter that was read, in order."""
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
    """Return the tree that contains a module or parameter; a mixture of experts may have thousands of trees."""
    return next((prefix for prefix in _prefixes(name) if prefix in trees), None)


def _prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def no_effect(subject: Subject) -> Iterator[AuditPlace]:
    """Find the last operation of each computation that reaches no output, no buffer and no Python code."""
    read = {escape.operation for escape in subject.history.escapes}
    partly_used = {op.call_id for op in subject.calls if op.is_output_ancestor or op.child_layers}
    for op in subject.calls:
        is_last = op.terminated_inside_model and op.call_id not in partly_used and op.label not in read
        if is_last and not _is_excused(op) and not _is_idle_view(subject, op):
            yield place(op, f"{byte_size(op.tensor_fsize)} that nothing reads")


def _is_excused(op: Operation) -> bool:
    """Whether an operation serves a condition, writes in place, or does not depend on the input."""
    is_condition = op.in_cond_branch or op.is_terminal_bool_layer or op.is_condition
    return is_condition or op.function_is_inplace or not op.has_input_ancestor


def _is_idle_view(subject: Subject, op: Operation) -> bool:
    """Whether it is a view of a tensor that is used elsewhere, taken for example to read the shape."""
    return op.layer_type in VIEWS and any(parent.is_output_ancestor for parent in subject.parents(op))


def duplicates(subject: Subject) -> Iterator[AuditPlace]:
    """Find operations that repeat an earlier operation on the same tensors."""
    groups: dict[object, list[Operation]] = defaultdict(list)
    for op in subject.calls:
        if op.fingerprint and is_floating(op) and op.has_input_ancestor and op.layer_type not in VIEWS:
            groups[_work(op)].append(op)
    for first, *others in groups.values():
        for op in others:
            if not (op.function_is_random or op.function_is_inplace):
                yield place(op, f"the same as {first.label}")


def _work(op: Operation) -> object:
    """Return a key that is equal for operations that do the same."""
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


_CUTS = ("detach", "data")
"""Kinds of operation that stop gradients."""


def frozen_parameters(subject: Subject) -> Iterator[AuditPlace]:
    """Find parameters that are not trained in a model that has trained ones: one place for each module."""
    facts = subject.facts
    if facts is None or not facts.trainable:
        return
    owners: dict[str, list[str]] = {}
    for name in facts.parameters.keys() - facts.trainable:
        owners.setdefault(name.rpartition(".")[0], []).append(name)
    for owner in sorted(owners):
        sizes = [facts.parameters[name] for name in owners[owner]]
        detail = f"{len(sizes):,} of its parameters, {sum(sizes):,} elements"
        yield AuditPlace(module=owner, source_line=facts.line_around(owner), detail=detail)


def unreached_parameters(subject: Subject) -> Iterator[AuditPlace]:
    """Find the first reads of trainable parameters that no gradient from the outputs can reach."""
    left = set(subject.facts.trainable if subject.facts else ())
    reached = _labels_with_gradient(subject)
    names = {name for op in subject.history.operations if op.label in reached for name in op.parent_param_addresses}
    left -= names
    for op in subject.calls:
        cut = [name for name in op.parent_param_addresses if name in left]
        if cut and op.is_output_ancestor:
            yield place(op, ", ".join(cut))
            left.difference_update(cut)


def _labels_with_gradient(subject: Subject) -> set[str]:
    """Return the labels of the operations that a gradient of an output reaches."""
    outputs = [op for op in subject.history.operations if op.is_output_layer]
    is_followed = any(op.gradfunc_name for op in subject.calls)
    waiting, reached = list(outputs), {op.label for op in outputs}
    while waiting:
        for parent in subject.parents(waiting.pop()):
            if parent.label not in reached and _lets_through(parent, is_followed):
                reached.add(parent.label)
                waiting.append(parent)
    return reached


def _lets_through(op: Operation, is_followed: bool) -> bool:
    """Whether a gradient passes through an operation; if autograd was on, the operation's record says so."""
    if is_followed and op.call_id >= 0:
        return bool(op.gradfunc_name)
    return (is_floating(op) or op.tensor_dtype.startswith("torch.complex")) and op.layer_type not in _CUTS
