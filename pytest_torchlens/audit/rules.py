"""Lists all rules, with what a finding means and what to do about it."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from dataclasses import dataclass

from pytest_torchlens.audit import structure_rules
from pytest_torchlens.audit import value_rules
from pytest_torchlens.audit.subject import Subject
from pytest_torchlens.records import AuditPlace
from pytest_torchlens.records import Severity


@dataclass(frozen=True)
class AuditRule:
    """One rule."""

    name: str
    severity: Severity
    title: str
    meaning: str
    advice: str
    find: Callable[[Subject], Iterable[AuditPlace]]
    """Yields the places that break the rule."""


RULES = (
    AuditRule(
        "not-a-number",
        Severity.HIGH,
        "An activation holds NaN",
        "From here on nothing that is computed from it means anything.",
        "Look at its parameters and arguments: a division by zero, a logarithm or root of a negative number, "
        "infinity less infinity.",
        value_rules.not_a_number,
    ),
    AuditRule(
        "infinite",
        Severity.HIGH,
        "An activation holds infinity",
        "The next difference or product with it becomes NaN.  Values that the code writes down, as masks do, are not "
        "counted.",
        "Bound what goes in (clamp, a larger epsilon, normalization), or compute in a wider type.",
        value_rules.infinite,
    ),
    AuditRule(
        "train-mode",
        Severity.HIGH,
        "Dropout or batch norm acts as in training, in a model in eval mode",
        "The result changes with chance, or with what else is in the batch.",
        "Call eval() on the whole model after all its parts are there; give F.dropout and F.batch_norm "
        "training=self.training.",
        structure_rules.train_mode,
    ),
    AuditRule(
        "random",
        Severity.MEDIUM,
        "Random numbers reach an output in eval mode",
        "Two calls with the same input give different results.",
        "Draw them only if self.training, or from a generator that the caller gives.",
        structure_rules.random,
    ),
    AuditRule(
        "constant",
        Severity.MEDIUM,
        "All elements of an activation are the same",
        "Nothing of the input comes through here.",
        "Look at its parameters (zeros?), at a softmax or norm over one element, at rectifiers before it; with weights "
        "as first made it may be meant.",
        value_rules.constant,
    ),
    AuditRule(
        "dead-relu",
        Severity.MEDIUM,
        "A rectifier lets next to nothing through",
        "Units that are zero for all inputs learn nothing and cost as much.",
        "Try several inputs; if it stays, look at the bias and the scale before it, or use a leaky rectifier.",
        value_rules.dead_relu,
    ),
    AuditRule(
        "large-activation",
        Severity.MEDIUM,
        "Activations are far larger than the rest, and than float16 can hold",
        "In float16 they become infinite, and in quantized form they take the precision of all others.",
        "Normalize before it, or keep this part in a wider type under autocast.",
        value_rules.large_activations,
    ),
    AuditRule(
        "unused-module",
        Severity.MEDIUM,
        "A module with parameters is never used in this pass",
        "It takes memory and a place in checkpoints; with distributed training it is an error by default.",
        "Remove it, or make it only where it is wanted (auxiliary heads are used in train mode alone).",
        structure_rules.unused_modules,
    ),
    AuditRule(
        "unused-parameter",
        Severity.MEDIUM,
        "A parameter is never read in this pass",
        "It has no part in the result, and no gradient.",
        "Remove it, register it as a buffer, or use it.",
        structure_rules.unused_parameters,
    ),
    AuditRule(
        "no-effect",
        Severity.MEDIUM,
        "An operation's result reaches no output",
        "It is computed for nothing.",
        "Remove it, or use what it gives; results for training alone belong under if self.training.",
        structure_rules.no_effect,
    ),
    AuditRule(
        "float64",
        Severity.MEDIUM,
        "Numbers become float64 in a model that is given none",
        "Twice the memory, on most GPUs a thirtieth of the speed, and no such type on some devices.",
        "Give factories and NumPy arrays a dtype, as in torch.tensor(array, dtype=x.dtype).",
        value_rules.doubles,
    ),
    AuditRule(
        "mixed-types",
        Severity.LOW,
        "An operation mixes floating-point types",
        "One side is converted each time, and the result is of the wider type.",
        "Make both of one type where they are made.",
        value_rules.mixed_types,
    ),
    AuditRule(
        "duplicate",
        Severity.LOW,
        "The same is computed twice",
        "Same function, same tensors, same result, bit for bit.",
        "Keep the first result in a variable.",
        structure_rules.duplicates,
    ),
    AuditRule(
        "unreached-parameter",
        Severity.LOW,
        "No gradient can come from the outputs to a trainable parameter",
        "Between it and every output lies detach(), no_grad, or an operation without a gradient.",
        "If a loss inside the model reads it, all is well; else take out what cuts the gradient off.",
        structure_rules.unreached_parameters,
    ),
    AuditRule(
        "frozen-parameter",
        Severity.LOW,
        "Some parameters are not trained",
        "requires_grad is False for them, and True for others.",
        "If that is not meant, call requires_grad_(True) on them.",
        structure_rules.frozen_parameters,
    ),
    AuditRule(
        "data-dependent-branch",
        Severity.LOW,
        "A tensor's value decides what code runs",
        "Another input may run other operations, which this audit has not seen; compiling and exporting break here, "
        "and a GPU is waited for.",
        "Where it can be, select by torch.where; else audit the model with an input for each way.",
        structure_rules.decisions,
    ),
    AuditRule(
        "value-in-python",
        Severity.LOW,
        "Values of tensors go to Python",
        "What Python makes of them is not recorded, has no gradient, breaks compiling, and waits for the GPU.",
        "Stay with tensors, or take the number from shapes and settings.",
        structure_rules.into_python,
    ),
    AuditRule(
        "nondeterministic-kernel",
        Severity.LOW,
        "The result depends on the order of threads",
        "PyTorch lists the operation as nondeterministic on a GPU: the last bits change from run to run.",
        "Where that matters, call torch.use_deterministic_algorithms(True).",
        structure_rules.nondeterministic_kernels,
    ),
    AuditRule(
        "copy",
        Severity.LOW,
        "A large tensor is copied to be laid out anew",
        "contiguous(), reshape() or flatten() of a permuted tensor moves every byte.",
        "Permute later, or ask the operation before it for the layout that is needed (channels_last).",
        structure_rules.copies,
    ),
)
