"""Describes torch functions: name, kind, what they overwrite, and whether they draw random numbers.

The facts come from the function's name, its ``inplace`` flag, its schema, and a table of functions that write silently.
Batch norm in training and instance norm with running statistics change these statistics without raising the version
counter, so they must be listed in this table.
"""

from __future__ import annotations

import enum
import functools
import inspect
import re
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Function = Callable[..., Any]
Writer = Callable[[tuple[Any, ...], dict[str, Any]], tuple[Any, ...]]


class Kind(enum.Enum):
    """How the tracer treats a function."""

    LEAF = "recorded as one call"
    COMPOSITE = "run with its inner calls recorded"
    ESCAPE = "returns a value to Python"
    PLAIN = "computes no tensor: run, not recorded"
    UNTRACED = "computes what no mode sees: run, and the completeness check reports its operations as missed"
    GRADIENT = "recorded as one call, in which autograd may run code of the model"
    NODE = "returns a node of the autograd graph: run, and the node is noted"


class FunctionInfo:
    """Facts about one function, computed once.

    Attributes
    ----------
    func
        The function as the mode received it; one that returns before its result has values waits for them.
    name
        Its own name: ``"__getitem__"``, ``"add_"``, ``"conv2d"``.
    layer_type
        Name shared by operator, method, function and in-place form: ``"getitem"``, ``"add"``, ``"conv2d"``.
    kind
        How the tracer treats it.
    writer
        Returns the tensors that a call with these arguments will overwrite; None if the function never writes.
    draws
        Whether it may draw random numbers.
    uninitialised
        Whether its result may be uninitialised memory.
    borrows
        Whether its result may share the memory of an array.
    moves
        Whether it may move the tensor that it returns, one of its arguments, to other memory.
    depends_on_settings
        Whether attention backends or matmul precision may change what it computes.
    opaque
        Whether it is an opaque call, recorded as one operation.
    copies
        Whether its second argument is the memo of `copy.deepcopy`, which it does not read.
    steps
        Layer types of the functions that ran inside a transform, in order.
    bookkeeping
        Whether it computes nothing, but sets an autograd flag or moves memory: replayed, but not a layer.
    """

    __slots__ = (
        *("bookkeeping", "borrows", "copies", "draws", "func", "depends_on_settings", "kind"),
        *("layer_type", "moves", "name", "opaque", "steps", "uninitialised", "writer"),
    )

    def __init__(self, func: Function) -> None:
        self.func = _waiting(func) if is_operator(func) and str(func).startswith(_COLLECTIVE_OPERATORS) else func
        self.name = function_name(func)
        self.layer_type = layer_type(self.name)
        self.kind = _kind(func, self.name)
        self.writer = writer_of(func, self.name) if self.kind is Kind.LEAF else None
        self.draws = self.kind is Kind.LEAF and _may_draw(func, self.layer_type)
        self.opaque = False
        self.copies = self.name == "__deepcopy__"
        self.steps: tuple[str, ...] = ()
        self.bookkeeping = self.layer_type in ("requires_grad", "share_memory")
        self.depends_on_settings = bool(_DEPEND_ON_SETTINGS.search(self.layer_type))
        self.uninitialised = self.layer_type in _UNINITIALISED
        self.moves = self.name in _MOVERS
        self.borrows = self.name in _BORROWERS


_COLLECTIVE_OPERATORS = "_c10d_functional"


def _waiting(func: Function) -> Function:
    """Wrap a collective that runs on after it has returned: its results get their values in memory that they have."""

    @functools.wraps(func)
    def waiting(*args: Any, **kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        for tensor in result if isinstance(result, list | tuple) else (result,):
            torch.ops._c10d_functional.wait_tensor(tensor)
        return result

    return waiting


_infos: dict[Function, FunctionInfo] = {}


def info_of(func: Function) -> FunctionInfo:
    """Return the facts about `func`, from the cache if they are in it."""
    try:
        return _infos[func]
    except KeyError:
        info = FunctionInfo(func)
        if getattr(func, "__closure__", None) is None or is_of_torch(func):  # other closures may be new each time
            _infos[func] = info
        return info
    except TypeError:  # not hashable
        return FunctionInfo(func)


def leaf_of(func: Function) -> FunctionInfo:
    """Return new facts about one of our own functions, which is recorded as one operation."""
    info = FunctionInfo(func)
    info.kind = Kind.LEAF
    return info


def function_name(func: Function) -> str:
    """Return a function's own name; for a tensor property (``T``, ``data``), the name of the property."""
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


_SYNONYMS = {"true_divide": "div", "divide": "div", "multiply": "mul", "subtract": "sub", "rsub": "sub"}
_OPERATORS = {
    "truediv": "div",
    "itruediv": "div",
    "rtruediv": "div",
    **{f"{prefix}{name}": name for prefix in "ri" for name in ("add", "sub", "mul", "div", "pow", "mod", "floordiv")},
    **{f"{prefix}{name}": name for prefix in "ri" for name in ("and", "or", "xor", "lshift", "rshift", "matmul")},
}


def _kind(func: Function, name: str) -> Kind:
    accessor = getattr(func, "__name__", "")
    if accessor == "__get__":
        return Kind.LEAF if name in _TENSOR_PROPERTIES else Kind.NODE if name == "grad_fn" else Kind.PLAIN
    if accessor == "__set__":
        return Kind.LEAF if name in ("data", "real", "imag", "requires_grad") else Kind.PLAIN
    if name in _PLAIN and is_of_torch(func):
        return Kind.PLAIN
    if name == "backward" and is_of_torch(func):
        return Kind.UNTRACED
    if func is torch.autograd.grad:
        return Kind.GRADIENT
    if name in _ESCAPES and is_of_torch(func):
        return Kind.ESCAPE
    return Kind.COMPOSITE if isinstance(func, types.FunctionType) and _is_composite(func, name) else Kind.LEAF


def is_of_torch(func: Function) -> bool:
    """Return whether a function belongs to PyTorch; operators of other libraries may have the same names."""
    if is_operator(func):
        return str(func).startswith(("aten.", "prim."))
    return not isinstance(func, types.FunctionType) or (func.__module__ or "").partition(".")[0] == "torch"


def _is_composite(func: types.FunctionType, name: str) -> bool:
    body = inspect.unwrap(func)
    if not isinstance(body, types.FunctionType):
        return False
    of_torch = (body.__module__ or "").partition(".")[0] == "torch"
    return name in _COMPOSITE or body.__module__ == _COLLECTIVES if of_torch else True


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


# torch's Python functions that run several operations, each recorded; all others wrap one builtin call
_COMPOSITE = frozenset(
    """multi_head_attention_forward gumbel_softmax gaussian_nll_loss local_response_norm lp_pool1d lp_pool2d lp_pool3d
    normalize softsign softmin tanhshrink triplet_margin_with_distance_loss multilabel_soft_margin_loss stft
    pca_lowrank svd_lowrank lobpcg unravel_index __rdiv__ __contains__ linear_cross_entropy""".split()
)
_COLLECTIVES = "torch.distributed.distributed_c10d"  # they call methods of a process group, which are replaced
_ESCAPES = frozenset(
    """__bool__ __float__ __int__ __index__ __complex__ __array__ item tolist numpy is_nonzero equal allclose
    __dlpack__ data_ptr __repr__ __format__ __reduce_ex__ __reduce__""".split()
)
_PLAIN = frozenset(
    """size dim ndimension stride numel nelement storage_offset is_contiguous is_floating_point is_complex is_signed
    is_conj is_neg is_inference is_pinned is_shared is_same_size is_set_to is_coalesced element_size
    get_device
    storage untyped_storage storage_type has_names names __len__ __hash__ __setstate__
    __dir__ __dlpack_device__ __array_wrap__
    register_hook register_post_accumulate_grad_hook
    retain_grad dim_order _clear_non_serializable_cached_data result_type can_cast
    is_tensor is_storage get_default_dtype _is_view _version _nnz _dimI _dimV qscheme q_scale q_zero_point
    sparse_dim dense_dim _has_symbolic_sizes_strides _is_zerotensor iscomplexobj broadcast_shapes
    _has_compatible_shallow_copy_type _grad_accumulator set_default_dtype manual_seed""".split()
)
_TENSOR_PROPERTIES = frozenset(["T", "mT", "H", "mH", "data", "real", "imag"])
_DRAWS = frozenset(
    """lstm gru rnn_tanh rnn_relu rrelu gumbel_softmax fractional_max_pool2d fractional_max_pool3d
    scaled_dot_product_attention multinomial""".split()
)
_DEPEND_ON_SETTINGS = re.compile("attention|transformer|mm|mv|matmul|linear|conv|einsum|dot|lstm|gru|rnn|cdist")
# their result is, or may end in, uninitialised memory
_UNINITIALISED = frozenset(
    "empty empty_like empty_strided empty_permuted new_empty new_empty_strided new resize resize_as".split()
)
_MOVERS = frozenset(["resize_", "resize_as_", "share_memory_"])
_BORROWERS = frozenset(["as_tensor", "asarray"])
# they read only the shape of their first argument
SHAPE_OF_FIRST = frozenset(
    """zeros_like ones_like empty_like full_like rand_like randn_like randint_like new_zeros new_ones new_empty new_full
    new_empty_strided new_tensor new""".split()
)
# they read only shape and dtype of their second argument
SHAPE_OF_SECOND = frozenset(
    """expand_as view_as reshape_as type_as resize_as to max_pool2d_with_indices_backward
    new_zeros_with_same_feature_meta""".split()
)

BY_NAME = sys.maxsize
"""The place of a keyword-only argument."""


def is_operator(func: Callable[..., Any]) -> bool:
    """Return whether a function is a dispatcher operator, which has a schema."""
    return isinstance(func, _OPERATOR)


_OPERATOR = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)


def overloads_of(func: Callable[..., Any], name: str) -> list[torch._ops.OpOverload]:
    """Return the dispatcher overloads behind a torch function; none if the dispatcher has another name for it."""
    if isinstance(func, torch._ops.OpOverload):
        return [func]
    own = getattr(func, "__name__", name)
    candidates = [func, getattr(torch.ops.aten, own, None), getattr(torch.ops.aten, name, None)]
    packets = (candidate for candidate in candidates if isinstance(candidate, torch._ops.OpOverloadPacket))
    packet = next(packets, None)
    names = packet.overloads() if packet is not None else []  # type: ignore[no-untyped-call]
    return [getattr(packet, overload) for overload in names]


def may_draw(func: Callable[..., Any], name: str) -> bool:
    """Return whether an overload is tagged as drawing random numbers."""
    return any(torch.Tag.nondeterministic_seeded in overload.tags for overload in overloads_of(func, name))


def written_arguments(func: Callable[..., Any], name: str) -> list[tuple[int, str]]:
    """Return place and name of each argument that an overload writes to, except ``out``; `BY_NAME` for keywords."""
    written = {
        (BY_NAME if argument.kwarg_only else place, argument.name)
        for overload in overloads_of(func, name)
        for place, argument in enumerate(overload._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    }
    # in torch's own functions, the only keyword argument that is written is `out`
    return sorted(entry for entry in written if entry[0] != BY_NAME or (is_operator(func) and entry[1] != "out"))


NOTHING: tuple[Any, ...] = ()


def writer_of(func: Callable[..., Any], name: str) -> Writer | None:
    """Return a function that returns the tensors a call of `func` will overwrite; None if it never overwrites any.

    The caller handles ``out=``: any function may have it.
    """
    own = name if isinstance(func, torch._ops.OpOverload) else getattr(func, "__name__", name)
    silent = (_OF_FUNCTIONAL if isinstance(func, types.FunctionType) else _OF_BUILTINS).get(own)
    if silent is not None:
        return silent
    if own in ("embedding", "embedding_bag") and isinstance(func, types.FunctionType):
        return _embedding_table
    by_schema = None if isinstance(func, types.FunctionType) else _by_schema(func, name)
    if by_schema is not None or is_operator(func):
        return by_schema
    if name == "__setitem__" or own == "__set__" or has_in_place_name(name):
        return _first_argument
    return _by_flag(func) if isinstance(func, types.FunctionType) else None


def has_in_place_name(name: str) -> bool:
    """Return whether the name says that a function overwrites its first argument: ``add_``, ``__iadd__``."""
    if name.startswith("__i") and name.endswith("__"):
        return name not in ("__invert__", "__index__", "__int__", "__init__", "__iter__")
    return name.endswith("_") and not name.endswith("__")


def _first_argument(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    target = args[0] if args else next(iter(kwargs.values()))
    return tuple(target) if isinstance(target, list | tuple) else (target,)


def _by_schema(func: Callable[..., Any], name: str) -> Writer | None:
    written = written_arguments(func, name)
    if not written:
        return None

    def targets(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        each = [args[place] if place < len(args) else _keyword_argument(kwargs, keyword) for place, keyword in written]
        flat = [item for one in each for item in (one if isinstance(one, list | tuple) else (one,))]
        return tuple(item for item in flat if isinstance(item, torch.Tensor))

    return targets


def _keyword_argument(kwargs: dict[str, Any], keyword: str) -> Any:
    """Return a keyword argument by its schema name; Python calls ``self`` ``input``."""
    return kwargs.get(keyword, kwargs.get("input") if keyword == "self" else None)


def _by_flag(func: types.FunctionType) -> Writer | None:
    """Return a writer for functions with an ``inplace`` parameter, such as `torch.nn.functional.relu`."""
    body = inspect.unwrap(func)
    names = inspect.signature(body).parameters if isinstance(body, types.FunctionType) else ()
    if "inplace" not in names:
        return None
    place = list(names).index("inplace")

    def target(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        flag = args[place] if len(args) > place else kwargs.get("inplace", False)
        return _first_argument(args, kwargs) if flag else NOTHING

    return target


_MAX_NORM = 3  # position among the arguments of F.embedding and F.embedding_bag
_WEIGHT = 1  # likewise


def _embedding_table(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return the table of an embedding if `max_norm` is set: the rows that are looked up are rescaled in place."""
    max_norm = args[_MAX_NORM] if len(args) > _MAX_NORM else kwargs.get("max_norm")
    weight = args[_WEIGHT] if len(args) > _WEIGHT else kwargs.get("weight")
    return NOTHING if max_norm is None or weight is None else (weight,)


@dataclass(frozen=True)
class _Statistics:
    """Position of the running mean (the variance follows it), and the flag that makes the function write, if any."""

    mean: int
    flag: tuple[int, str, bool] | None

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return the running statistics if the call writes to them."""
        if self.flag is not None:
            place, keyword, default = self.flag
            if not (args[place] if len(args) > place else kwargs.get(keyword, default)):
                return NOTHING
        names = enumerate(("running_mean", "running_var"), self.mean)
        statistics = (args[place] if len(args) > place else kwargs.get(name) for place, name in names)
        return tuple(item for item in statistics if item is not None)


_TRAINING, _INPUT_STATS = (5, "training", False), (5, "use_input_stats", True)
_OF_FUNCTIONAL = {"batch_norm": _Statistics(1, _TRAINING), "instance_norm": _Statistics(1, _INPUT_STATS)}
_OF_BUILTINS = {
    **{name: _Statistics(3, _TRAINING) for name in ("batch_norm", "native_batch_norm", "_batch_norm_impl_index")},
    **{name: _Statistics(3, _TRAINING) for name in ("cudnn_batch_norm", "miopen_batch_norm")},
    **{name: _Statistics(3, None) for name in ("batch_norm_gather_stats", "batch_norm_gather_stats_with_counts")},
    "instance_norm": _Statistics(3, _INPUT_STATS),
    "batch_norm_update_stats": _Statistics(1, None),
}
