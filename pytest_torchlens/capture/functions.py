"""What kind of thing a torch function is: its name, whether it is recorded whole, what it writes, whether it draws."""

from __future__ import annotations

import enum
import inspect
import re
import types
from collections.abc import Callable
from typing import Any

import torch

from pytest_torchlens.capture.schemas import is_operator
from pytest_torchlens.capture.schemas import may_draw
from pytest_torchlens.capture.writers import writer_of

Function = Callable[..., Any]


class Kind(enum.Enum):
    """How the tracer treats a function."""

    LEAF = "recorded as one call"
    COMPOSITE = "run with its inner calls recorded"
    ESCAPE = "hands a value over to Python"
    PLAIN = "computes no tensor: run and forgotten"
    UNSEEN = "computes out of sight: run, and what the dispatcher runs for it is missed"


class FunctionInfo:
    """Facts about one function, found once.

    Attributes
    ----------
    func
        The function as the mode was given it.
    name
        Its own name: ``"__getitem__"``, ``"add_"``, ``"conv2d"``.
    layer_type
        Name shared by operator, method, function and in-place form: ``"getitem"``, ``"add"``, ``"conv2d"``.
    kind
        How it is treated.
    writer
        Given positional and keyword arguments, the tensors that the call will overwrite; None if it never does.
    draws
        Whether it may draw random numbers.
    uninitialised
        Whether its result may hold what was in the memory before.
    borrows
        Whether its result may stand on the memory of an array.
    moves
        Whether the memory of its first argument may be elsewhere afterwards.
    heeds_settings
        Whether attention backends or matmul precision may change what it computes.
    opaque
        Whether it is code of others, recorded as one operation.
    copies
        Whether its second argument is what `copy.deepcopy` remembers: copies of others, which it does not read.
    steps
        Layer types of the functions that ran inside a transform, in order.
    bookkeeping
        Whether it computes nothing, but tells autograd something or moves memory: replayed, but no layer.
    """

    __slots__ = (
        *("bookkeeping", "borrows", "copies", "draws", "func", "heeds_settings", "kind"),
        *("layer_type", "moves", "name", "opaque", "steps", "uninitialised", "writer"),
    )

    def __init__(self, func: Function) -> None:
        self.func = func
        self.name = function_name(func)
        self.layer_type = layer_type(self.name)
        self.kind = _kind(func, self.name)
        self.writer = writer_of(func, self.name) if self.kind is Kind.LEAF else None
        self.draws = self.kind is Kind.LEAF and _may_draw(func, self.layer_type)
        self.opaque = False
        self.copies = self.name == "__deepcopy__"
        self.steps: tuple[str, ...] = ()
        self.bookkeeping = self.layer_type in ("requires_grad", "share_memory")
        self.heeds_settings = bool(_HEEDS_SETTINGS.search(self.layer_type))
        self.uninitialised = self.layer_type in _UNINITIALISED
        self.moves = self.name in _MOVERS
        self.borrows = self.name in _BORROWERS


_SYNONYMS = {"true_divide": "div", "divide": "div", "multiply": "mul", "subtract": "sub", "rsub": "sub"}
_OPERATORS = {
    "truediv": "div",
    "itruediv": "div",
    "rtruediv": "div",
    **{f"{prefix}{name}": name for prefix in "ri" for name in ("add", "sub", "mul", "div", "pow", "mod", "floordiv")},
    **{f"{prefix}{name}": name for prefix in "ri" for name in ("and", "or", "xor", "lshift", "rshift", "matmul")},
}


def function_name(func: Function) -> str:
    """Return a function's own name; for a property of tensors that of the property (``T``, ``data``)."""
    name = getattr(func, "__name__", None) or type(func).__name__
    if name in ("__get__", "__set__"):
        return str(getattr(getattr(func, "__self__", None), "__name__", name))
    if isinstance(func, torch._ops.OpOverload):
        return func._schema.name.rpartition("::")[2]
    return str(name)


def layer_type(name: str) -> str:
    """Return the name shared by an operator, its method, its function and its in-place form.

    ``__radd__``, ``add_`` and ``__iadd__`` are all ``add``; inner underscores are kept.
    """
    bare = name.strip("_").lower()
    return (_OPERATORS if name.startswith("__") else _SYNONYMS).get(bare, bare)


# Python functions of torch that do several steps, each worth a record; their fellows wrap one builtin call
_COMPOSITE = frozenset(
    """multi_head_attention_forward gumbel_softmax gaussian_nll_loss local_response_norm lp_pool1d lp_pool2d lp_pool3d
    normalize softsign softmin tanhshrink triplet_margin_with_distance_loss multilabel_soft_margin_loss stft
    pca_lowrank svd_lowrank lobpcg unravel_index __rdiv__ __contains__ linear_cross_entropy""".split()
)
_ESCAPES = frozenset(
    """__bool__ __float__ __int__ __index__ __complex__ __array__ item tolist numpy is_nonzero equal allclose
    __dlpack__""".split()
)
_PLAIN = frozenset(
    """size dim ndimension stride numel nelement storage_offset is_contiguous is_floating_point is_complex is_signed
    is_conj is_neg is_inference is_pinned is_shared is_same_size is_set_to is_coalesced element_size data_ptr
    get_device
    storage untyped_storage storage_type has_names names __len__ __repr__ __format__ __hash__ __setstate__
    __reduce_ex__ __reduce__ __dir__ __dlpack_device__ __array_wrap__
    register_hook register_post_accumulate_grad_hook
    retain_grad dim_order _clear_non_serializable_cached_data result_type can_cast
    is_tensor is_storage get_default_dtype _is_view _version _nnz _dimI _dimV qscheme q_scale q_zero_point
    sparse_dim dense_dim _has_symbolic_sizes_strides _is_zerotensor iscomplexobj broadcast_shapes
    _has_compatible_shallow_copy_type _grad_accumulator set_default_dtype manual_seed""".split()
)
_TENSOR_PROPERTIES = frozenset(["T", "mT", "H", "mH", "data", "real", "imag"])


def _kind(func: Function, name: str) -> Kind:
    accessor = getattr(func, "__name__", "")
    if accessor == "__get__":
        return Kind.LEAF if name in _TENSOR_PROPERTIES else Kind.PLAIN
    if accessor == "__set__":
        return Kind.LEAF if name in ("data", "real", "imag", "requires_grad") else Kind.PLAIN
    if name in _PLAIN and is_of_torch(func):
        return Kind.PLAIN
    if name == "backward" and is_of_torch(func):
        return Kind.UNSEEN
    if name in _ESCAPES and is_of_torch(func):
        return Kind.ESCAPE
    return Kind.COMPOSITE if isinstance(func, types.FunctionType) and _is_composite(func, name) else Kind.LEAF


def is_of_torch(func: Function) -> bool:
    """Return whether a function is PyTorch's own; operators of other libraries may have the same names."""
    if is_operator(func):
        return str(func).startswith(("aten.", "prim."))
    return not isinstance(func, types.FunctionType) or (func.__module__ or "").partition(".")[0] == "torch"


def _is_composite(func: types.FunctionType, name: str) -> bool:
    body = inspect.unwrap(func)
    if not isinstance(body, types.FunctionType):
        return False
    of_torch = (body.__module__ or "").partition(".")[0] == "torch"
    return name in _COMPOSITE if of_torch else True


_DRAWS = frozenset(
    """lstm gru rnn_tanh rnn_relu rrelu gumbel_softmax fractional_max_pool2d fractional_max_pool3d
    scaled_dot_product_attention multinomial""".split()
)


def _may_draw(func: Function, name: str) -> bool:
    if (
        (is_operator(func) and not is_of_torch(func))
        or "dropout" in name
        or getattr(func, "__module__", "") == "torch.nn.init"
        or name in _DRAWS
        or "fractional_max_pool" in name
    ):
        return True
    return may_draw(func, name)


_HEEDS_SETTINGS = re.compile("attention|transformer|mm|mv|matmul|linear|conv|einsum|dot|lstm|gru|rnn|cdist")

# what they return is, or may end in, whatever the memory held
_UNINITIALISED = frozenset(
    "empty empty_like empty_strided empty_permuted new_empty new_empty_strided new resize resize_as".split()
)

_MOVERS = frozenset(["resize_", "resize_as_", "share_memory_"])

_BORROWERS = frozenset(["as_tensor", "asarray"])


# they take no more from their first argument than its shape
SHAPE_OF_FIRST = frozenset(
    """zeros_like ones_like empty_like full_like rand_like randn_like randint_like new_zeros new_ones new_empty new_full
    new_empty_strided new_tensor new""".split()
)


_known: dict[Function, FunctionInfo] = {}


def info_of(func: Function) -> FunctionInfo:
    """Return the facts about `func`, from the cache if it was met before."""
    try:
        return _known[func]
    except KeyError:
        info = FunctionInfo(func)
        if getattr(func, "__closure__", None) is None or is_of_torch(func):  # others may be made anew each time
            _known[func] = info
        return info
    except TypeError:  # not hashable
        return FunctionInfo(func)
