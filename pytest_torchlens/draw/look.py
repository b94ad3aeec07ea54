"""The paper's visual code: how a node, an arrow, a box and the title look."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from pytest_torchlens.draw.text import counted
from pytest_torchlens.draw.text import printable
from pytest_torchlens.draw.text import shape_text
from pytest_torchlens.draw.text import shortened
from pytest_torchlens.records import byte_size

if TYPE_CHECKING:
    from pytest_torchlens.draw.picture import Arrow
    from pytest_torchlens.draw.picture import Node
    from pytest_torchlens.draw.picture import Picture
    from pytest_torchlens.records import HistoryRecord
    from pytest_torchlens.records import Operation

FILLS = {
    "input": "#b7ebc0",
    "output": "#ffb3ae",
    "bool": "#f9dc6c",
    "params": "#dcdcdc",
    "buffer": "#f3f3f3",
    "plain": "#ffffff",
}
_SMALL = 10
_MANY_SHAPES = 6
_LONGEST_HINT = 200

# Under these names the order of two tensors does not matter; an `alpha` makes it matter again.
_COMMUTATIVE = frozenset(
    {"add", "mul", "eq", "ne", "equal", "maximum", "minimum", "fmax", "fmin", "hypot", "dot", "inner"}
    | {"and", "or", "xor", "bitwiseand", "bitwiseor", "bitwisexor", "logicaland", "logicalor", "logicalxor"}
    | {"logaddexp", "logaddexp2", "gcd", "lcm"}
)


def kind(node: Node) -> str:
    """Return which of `FILLS` a node has; the first rule that holds wins."""
    first = node.operations[0]
    if node.module is None:
        rules = {
            "output": first.is_output_layer,
            "input": first.is_input_layer,
            "bool": first.is_terminal_bool_layer,
            "buffer": first.is_buffer_layer or first.is_constant,
        }
        if found := next((name for name, holds in rules.items() if holds), None):
            return found
    return "params" if any(operation.computed_with_params for operation in node.operations) else "plain"


def node_style(node: Node) -> dict[str, str]:
    """Return the attributes that the visual code gives a node."""
    name = kind(node)
    boxed = node.module is not None or node.operations[0].is_bottom_level_submodule_output
    dashed = node.module is None and node.operations[0].initialized_inside_model
    return {
        "shape": "box" if boxed else "ellipse",
        "style": "filled,dashed" if dashed else "filled",
        "fillcolor": FILLS[name],
        "class": f"{name} module" if node.module else name,
        "peripheries": "2" if node.module else "1",
    }


def node_label(node: Node, module_type: str) -> str:
    """Return a node's text as Graphviz HTML."""
    lines = _module_lines(node, module_type) if node.module else _operation_lines(node.operations[0])
    head, *rest = map(_html, lines)
    small = "".join(f"<BR/>{line}" for line in rest)
    return f'<<B>{head}</B><FONT POINT-SIZE="{_SMALL}">{small}</FONT>>' if small else f"<<B>{head}</B>>"


def box_label(call: str, module_type: str, num_passes: int) -> str:
    """Return the text of a module's box as Graphviz HTML: address, class, passes."""
    address, class_name = _html(f"@{call}"), _html(_class_and_passes(module_type, num_passes))
    left = '<BR ALIGN="LEFT"/>'
    return f'<<B>{address}</B>{left}<FONT POINT-SIZE="{_SMALL}">{class_name}</FONT>{left}>'


def title(history: HistoryRecord, picture: Picture) -> str:
    """Return the picture's title as Graphviz HTML: model, tensors, parameters, what is not shown."""
    name = _html(history.model_name)
    lines = [
        f"{counted(history.num_tensors_total, 'tensor')} total ({byte_size(history.tensor_fsize_total)})",
        f"{counted(history.total_params, 'param')} total ({byte_size(history.total_params_fsize)})",
        *_limits(history, picture),
    ]
    rest = "".join(f'{line}<BR ALIGN="LEFT"/>' for line in lines)
    return f'<<FONT POINT-SIZE="18"><B>{name}</B></FONT><BR ALIGN="LEFT"/>{rest}>'


def arrow_label(arrow: Arrow) -> str:
    """Return where the values go in, if the order of the tensors matters to the operation."""
    operation = arrow.head.operations[0]
    if arrow.head.module or not _order_matters(operation):
        return ""
    return shortened(printable(", ".join(_argument(edge.argument) for edge in arrow.edges)))


def tooltip(node: Node) -> list[str]:
    """Return the lines that are shown when the pointer rests on a node."""
    if node.module is not None:
        return [f"{shortened(node.module)}: {counted(len(node.operations), 'operation')}"]
    operation = node.operations[0]
    lines = (
        operation.label,
        f"{shape_text(operation.tensor_shape)} {operation.tensor_dtype} on {operation.tensor_device}",
        operation.func_applied_name,
        ", ".join(operation.func_position_args_non_tensor + operation.func_keyword_args_non_tensor),
        operation.source_line,
    )
    return [shortened(printable(line), _LONGEST_HINT) for line in lines if line]


def _html(text: str) -> str:
    r"""Escape for a label: Graphviz takes ``\N`` in it, even in HTML, for the name of the node."""
    return escape(shortened(printable(text))).replace("\\", r"\\")


def _operation_lines(operation: Operation) -> list[str]:
    lines = [
        operation.label,
        f"{shape_text(operation.tensor_shape)} ({byte_size(operation.tensor_fsize)})",
    ]
    if shapes := operation.parent_param_shapes:
        more = [f"… {len(shapes) - _MANY_SHAPES} more"] if len(shapes) > _MANY_SHAPES else []
        lines.append("params: " + ", ".join([*map(shape_text, shapes[:_MANY_SHAPES]), *more]))
    return [*lines, *_address(operation)]


def _address(operation: Operation) -> list[str]:
    """Return where the model's object has it; nothing for a free function."""
    if operation.is_buffer_layer:
        return [f"@{operation.buffer_address}"]
    return [f"@{operation.bottom_level_submodule_exited}"] if operation.is_bottom_level_submodule_output else []


def _module_lines(node: Node, module_type: str) -> list[str]:
    last = node.operations[-1]
    params = sum(operation.num_params_total for operation in node.operations)
    lines = [
        f"@{node.module}",
        module_type,
        f"{shape_text(last.tensor_shape)} ({byte_size(last.tensor_fsize)})",
        counted(len(node.operations), "operation"),
        counted(params, "param") if params else "",
    ]
    return [line for line in lines if line]


def _class_and_passes(module_type: str, num_passes: int) -> str:
    return f"{module_type} (x{num_passes})" if num_passes > 1 else module_type


def _limits(history: HistoryRecord, picture: Picture) -> list[str]:
    """Say what the picture does not show."""
    lines = []
    if picture.depth is not None:
        operations = counted(len(history.operations), "node")
        lines.append(f"modules at level {picture.depth} are drawn as one node each ({operations} in full)")
    if picture.num_left_out:
        lines.append(f"the last {counted(picture.num_left_out, 'operation')} are not drawn")
    return lines


def _order_matters(operation: Operation) -> bool:
    scaled = any(argument.startswith("alpha=") for argument in operation.func_keyword_args_non_tensor)
    return len(operation.edges) > 1 and (scaled or operation.layer_type not in _COMMUTATIVE)


def _argument(place: str) -> str:
    """Write ``0`` as ``arg 0``, ``0.2`` as ``arg 0[2]``, and keep a keyword."""
    name, *places = place.split(".")
    return (f"arg {name}" if name.isdigit() else name) + "".join(f"[{number}]" for number in places)
