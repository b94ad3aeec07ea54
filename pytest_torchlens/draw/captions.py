"""Writes the text of a picture: the lines of its nodes, arrows, boxes, tooltips and title, and its legend."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_torchlens.draw.draw_options import DrawOptions
from pytest_torchlens.draw.metric import once_by_parameters
from pytest_torchlens.draw.text import duration
from pytest_torchlens.draw.text import shape_text
from pytest_torchlens.draw.text import steps_text
from pytest_torchlens.draw.theme import READABLE
from pytest_torchlens.draw.theme import Theme
from pytest_torchlens.draw.theme import contrast
from pytest_torchlens.draw.theme import edit_line
from pytest_torchlens.draw.theme import ink_on
from pytest_torchlens.records import EscapeRecord
from pytest_torchlens.records import ModuleRecord
from pytest_torchlens.records import Operation
from pytest_torchlens.records import address_of
from pytest_torchlens.records import byte_size
from pytest_torchlens.records import changed_text
from pytest_torchlens.records import count_text
from pytest_torchlens.records.options import OptionError

if TYPE_CHECKING:
    from pytest_torchlens.draw.picture import Arrow
    from pytest_torchlens.draw.picture import DrawnNode
    from pytest_torchlens.draw.picture import Picture
    from pytest_torchlens.draw.scene import Scene


_MANY = 6
"""Shapes, answers and the like that one line lists."""
_MOST_LISTS = 3
"""Lists of steps inside an operation that a node of several passes shows."""
_HINT_WIDTH = 100
MARKS = {"added": "+", "removed": "−", "changed": "~"}
# Functions whose two tensors may be swapped, unless they have an `alpha`.
_COMMUTATIVE = frozenset(
    {"add", "mul", "eq", "ne", "equal", "maximum", "minimum", "fmax", "fmin", "hypot", "dot", "inner"}
    | {"and", "or", "xor", "bitwiseand", "bitwiseor", "bitwisexor", "logicaland", "logicalor", "logicalxor"}
    | {"logaddexp", "logaddexp2", "gcd", "lcm"}
)


class Words:
    """Writes the text of a picture's parts as plain lines."""

    def __init__(self, scene: Scene, options: DrawOptions) -> None:
        self._scene = scene
        self._options = options
        self._modules = {module.address: module for module in scene.history.modules}
        self._layers = {op.label: op.layer_label for op in scene.operations}
        self._answers: dict[str, list[EscapeRecord]] = defaultdict(list)
        for escape in scene.history.escapes:
            self._answers[escape.operation].append(escape)

    def of_node(self, node: DrawnNode) -> list[str]:
        """Return a node's lines; the first is its name."""
        lines = self._own_text(node) or (self._of_module(node) if node.module else self._of_operation(node))
        lines += [*node.edits[:_MANY], *changes_lines(node)]
        mark, remarks = self.mark(node), self._scene.remarks
        if mark:
            lines[0] = f"{MARKS[mark]} {lines[0]}"
        return [*lines, *(line for line in remarks.get(node.representative.label, ()) if not node.module)]

    def mark(self, node: DrawnNode) -> str:
        """Return how a node differs between two passes; a module with any difference inside is changed."""
        marks = {self._scene.marks.get(op.label, "") for op in node.operations}
        return marks.pop() if len(marks) == 1 else "changed" if marks else ""

    def _own_text(self, node: DrawnNode) -> list[str]:
        """Return the lines of the user's function for an operation."""
        function = self._options.node_text
        if function is None or node.module:
            return []
        try:
            said = function(node.representative)
            if isinstance(said, str | int | float):
                said = str(said).splitlines()
            lines = [str(line) for line in (() if said is None else said)]
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise OptionError(
                f"the function given as node_text raised {reason}, for {node.representative.label}"
            ) from error
        return [*filter(None, lines)]

    def _of_operation(self, node: DrawnNode) -> list[str]:
        op = node.representative
        name = op.layer_label if self._options.is_rolled else op.label
        tensors = dict.fromkeys(map(tensor_line, node.operations))
        lines = [with_passes(name, node.num_passes), " … ".join(list(tensors)[:: max(1, len(tensors) - 1)])]
        if shapes := op.parent_param_shapes:
            lines.append("params: " + _list_text(map(shape_text, shapes)) + _frozen_text(node))
        return [*lines, *_steps_lines(node.operations), *self._answer_lines(node.operations), *self._address(op)]

    def _answer_lines(self, operations: tuple[Operation, ...]) -> Iterator[str]:
        """Yield the values that Python read and the branches it took; those of both passes if they differ."""
        earlier = self._scene.earlier
        now = _by_question(answer for op in operations for answer in self._answers[op.label])
        was = _by_question(
            answer for op in operations for answer in earlier.get(op.label, tuple(self._answers[op.label]))
        )
        for question in dict.fromkeys([*was, *now]):
            before, after = was.get(question, ""), now.get(question, "")
            both = ", ".join(f"{word} {said}" for word, said in (("was", before), ("now", after)) if said)
            yield f"{question}: {after if before == after else both}".rstrip(": ")

    def _address(self, op: Operation) -> list[str]:
        """Return the address of the buffer or module; nothing for a free function."""
        if op.is_buffer_layer:
            return [f"@{op.buffer_address}"]
        if not op.is_bottom_level_submodule_output:
            return []
        return [f"@{self._shown_call(op.bottom_level_submodule_exited or '')}"]

    def _of_module(self, node: DrawnNode) -> list[str]:
        last = node.operations[-1]
        params = sum(op.num_params_total for op in once_by_parameters(node.operations))
        lines = [
            node.module or "" if node.is_section else with_passes(f"@{node.module}", node.num_passes),
            self._module(node.module or "").module_type,
            tensor_line(last),
            count_text(len(node.operations), "operation"),
            count_text(params, "param") + _frozen_text(node) if params else "",
        ]
        return [line for line in lines if line]

    def of_box(self, call: str, run: tuple[str, ...]) -> list[str]:
        """Return a module box's lines: address, class and passes, and the equal modules that it represents."""
        module = self._module(call)
        times = f" × {len(run)}, to @{run[-1]}" if len(run) > 1 else ""
        return [f"@{call}{times}", with_passes(module.module_type, module.num_passes)]

    def _module(self, call: str) -> ModuleRecord:
        address = address_of(call, self._modules)
        return self._modules.get(address) or ModuleRecord(address=address, module_type="")

    def of_arrow(self, arrow: Arrow) -> str:
        """Return the arguments that an arrow leads into, if the order of tensors matters to the operation."""
        if arrow.head.module or not _order_matters(arrow.head.representative):
            return ""
        said = ", ".join(map(_argument, dict.fromkeys(arrow.arguments)))
        return f"{said}, written" if arrow.through_write else said

    @staticmethod
    def of_edit(arrow: Arrow) -> str:
        """Return what was edited of an arrow's data for its head alone."""
        return f"edited: {arrow.edit}" if arrow.edit else ""

    def hint(self, node: DrawnNode) -> list[str]:
        """Return the lines of a node's tooltip."""
        if node.module is not None:
            operations = node.operations
            size, seconds = sum(op.tensor_fsize for op in operations), sum(op.func_time_elapsed for op in operations)
            what = f"{count_text(len(operations), 'operation')}, {byte_size(size)}"
            lines = [node.module, self._module(node.module).module_type, what, f"time: {duration(seconds)}"]
            return [*lines, *self._edits(node)]
        return [*(line for line in self._metadata(node) if line), *self._edits(node)]

    def _edits(self, node: DrawnNode) -> Iterable[str]:
        """Yield all that edits did to a node, each once."""
        words = (self._scene.edits.words(op) for op in node.operations)
        return dict.fromkeys(filter(None, words if node.module is None else ())) or changes_lines(node)

    def _metadata(self, node: DrawnNode) -> Iterable[str]:
        op = node.representative
        arguments = _list_text(op.func_position_args_non_tensor + op.func_keyword_args_non_tensor)
        names = zip(op.parent_param_addresses, op.parent_param_shapes, strict=False)
        params = _list_text(f"{name} {shape_text(shape)}" for name, shape in names)
        module = self._shown_call(op.containing_module_origin or "")
        yield with_passes(self._shown_layer(op.label), node.num_passes)
        yield f"{shape_text(op.tensor_shape)} {op.tensor_dtype} on {op.tensor_device}, {byte_size(op.tensor_fsize)}"
        yield f"{op.func_applied_name}{' in place' if op.function_is_inplace else ''}"
        yield f"arguments: {arguments}" if arguments else ""
        yield f"params: {params}" if params else ""
        for steps in filter(None, dict.fromkeys(each.steps for each in node.operations)):
            yield from textwrap.wrap(f"steps inside: {', '.join(steps)}", _HINT_WIDTH)
        yield f"buffer: {op.buffer_address}" if op.buffer_address else ""
        yield f"constant: {op.constant_origin}" if op.constant_origin else ""
        yield f"module: {module}" if module else ""
        yield f"from: {_list_text(dict.fromkeys(map(self._shown_layer, op.parent_layers)))}" if op.parent_layers else ""
        yield f"to: {_list_text(dict.fromkeys(map(self._shown_layer, op.child_layers)))}" if op.child_layers else ""
        yield f"backward: {op.gradfunc_name}" if op.gradfunc_name else ""
        yield f"time: {duration(op.func_time_elapsed)}" if op.func_time_elapsed else ""
        yield op.source_line

    def _shown_layer(self, label: str) -> str:
        """Return a layer's label; in the rolled view, which shows all passes, without its pass."""
        return self._layers.get(label, label) if self._options.is_rolled else label

    def _shown_call(self, call: str) -> str:
        """Return a module call's name; in the rolled view the module's address."""
        return address_of(call, self._modules) if self._options.is_rolled else call

    def title(self, picture: Picture) -> list[str]:
        """Return the title's lines: model, tensors, parameters, what the picture shows and leaves out."""
        history, options = self._scene.history, self._options
        total = "total" if options.focus is None else "in the whole model"
        lines = [
            history.model_name,
            f"{count_text(history.num_tensors_total, 'tensor')} {total} ({byte_size(history.tensor_fsize_total)})",
            f"{count_text(history.total_params, 'param')} {total} ({byte_size(history.total_params_fsize)})"
            + _frozen_count(history.total_params, history.total_params_trainable),
            *self._scene.title,
        ]
        if options.focus is not None:
            lines.append(f"only @{options.focus} ({self._module(options.focus).module_type}) and what is beside it")
        return [*lines, *_limits(picture)]


def changes_lines(node: DrawnNode) -> list[str]:
    """Return how much edits changed a node's tensors: one line, or none."""
    if not node.changes:
        return []
    least, most = changed_text(min(node.changes)), changed_text(max(node.changes))
    return [least if least == most else f"{least} to {most.removeprefix('changed by ')}"]


def with_passes(name: str, passes: int) -> str:
    """Return a name with the number of passes if there are several: ``linear_1_1 (x3)``."""
    return f"{name} (x{passes})" if passes > 1 else name


def tensor_line(op: Operation) -> str:
    """Return shape and size."""
    return f"{shape_text(op.tensor_shape)} ({byte_size(op.tensor_fsize)})"


def _steps_lines(operations: tuple[Operation, ...]) -> list[str]:
    """Return how many steps ran inside an operation, and the first of them; a line for each list that a pass ran."""
    lines = [steps_text(steps) for steps in dict.fromkeys(op.steps for op in operations) if steps]
    more = len(lines) - _MOST_LISTS
    return [*lines[:_MOST_LISTS], *([f"and {count_text(more, 'other list')} of steps"] if more > 0 else [])]


def _frozen_text(node: DrawnNode) -> str:
    operations = list(once_by_parameters(node.operations))
    return _frozen_count(
        sum(op.num_params_total for op in operations), sum(op.num_params_trainable for op in operations)
    )


def _frozen_count(total: int, trainable: int) -> str:
    """Return how many parameters are frozen; ``""`` for none."""
    if trainable == total:
        return ""
    return f", {total - trainable:,} frozen" if trainable else ", all frozen"


def _list_text(things: Iterable[str]) -> str:
    things = list(things)
    more = [f"… {len(things) - _MANY} more"] if len(things) > _MANY else []
    return ", ".join([*things[:_MANY], *more])


def _by_question(answers: Iterable[EscapeRecord]) -> dict[str, str]:
    """Return the values that Python read and the branches it took, by the statement or function that read them."""
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for answer in answers:
        asked = answer.statement if answer.is_truth_test or answer.statement != "expression" else f"{answer.function}()"
        value = (
            f"{answer.value:.4g}" if isinstance(answer.value, float) else "" if answer.value is None else answer.value
        )
        found[asked][" → ".join(filter(None, [str(value), answer.branch]))] = None
    return {asked: _list_text(said) for asked, said in found.items()}


def _limits(picture: Picture) -> Iterable[str]:
    """Yield what the picture does not show."""
    in_full = f"({count_text(picture.num_in_full, 'node')} in full)"
    if picture.rolled_to_fit:
        yield f"all passes of a layer are drawn as one node {in_full}"
    if picture.runs:
        yield f"of equal modules in a row one is drawn, × their number {in_full}"
    if picture.level is not None:
        yield f"modules at level {picture.level} are drawn as one node each {in_full}"
    if picture.num_left_out:
        yield f"the last {count_text(picture.num_left_out, 'operation')} are not drawn"


def _order_matters(operation: Operation) -> bool:
    scaled = any(argument.startswith("alpha=") for argument in operation.func_keyword_args_non_tensor)
    several = len({(edge.argument, edge.through_write) for edge in operation.edges}) > 1
    return several and (scaled or operation.layer_type not in _COMMUTATIVE)


def _argument(place: str) -> str:
    """Write ``0`` as ``arg 0``, ``0.2`` as ``arg 0[2]``, and keep a keyword."""
    name, *places = place.split(".")
    return (f"arg {name}" if name.isdigit() else name) + "".join(f"[{number}]" for number in places)


def legend(theme: Theme, picture: Picture, *, compares: bool) -> str:
    """Return a table of the visual code in Graphviz's HTML.

    Parameters
    ----------
    theme
        The picture's colours.
    picture
        Signs that it does not use are left out, except those of every picture.
    compares
        Whether it compares two passes.
    """
    rows = "".join(
        [*_of_all_pictures(theme), *_of_some_pictures(theme, picture), *(_of_marks(theme) if compares else ())]
    )
    look = f'BORDER="1" COLOR="{theme.box}" CELLBORDER="0" CELLSPACING="4"'
    return f"<<TABLE {look}><TR><TD><B>Legend</B></TD></TR>{rows}</TABLE>>"


def _of_all_pictures(theme: Theme) -> Iterator[str]:
    yield _row(theme, theme.input, "input of the model")
    yield _row(theme, theme.output, "output of the model")
    yield _row(theme, theme.params, "has trainable parameters")
    yield _row(theme, theme.plain, "oval: function of its own", style="rounded")
    yield _row(theme, theme.plain, "box: module of one operation")
    yield _row(theme, theme.plain, "double box: module drawn as one node", border=3)
    yield _row(theme, theme.plain, "dashed: tensor made inside the model", style="dashed")
    yield _row(theme, theme.buffer, "buffer or constant")
    yield _row(theme, theme.bool, "truth value that was asked for; IF: what leads to it")


def _of_some_pictures(theme: Theme, picture: Picture) -> Iterator[str]:
    """Yield rows for signs that only some pictures have."""
    if any(node.is_stub for node in picture.nodes):
        yield _row(theme, theme.plain, "dotted outline: beside what is drawn", style="dotted")
    if any(len(run) > 1 for run in picture.runs.values()):
        yield _row(theme, theme.background, "thick box, × 3: three equal modules in a row", style="rounded", border=3)
    if picture.options.is_rolled:
        yield _row(theme, theme.plain, "(x3): three passes; Out 1, In 2: from the first into the second")
    if any(arrow.through_write for arrow in picture.arrows):
        yield _row(theme, theme.background, "dotted arrow: written into another's tensor", style="dotted")
    if any(node.edits for node in picture.nodes):
        yield _row(theme, theme.edited, "edited", border=3, line=edit_line(theme))
    if any(arrow.edit for arrow in picture.arrows):
        yield _row(theme, theme.background, "thick arrow: edited for one operation alone", line=edit_line(theme))
    if any(node.changes for node in picture.nodes):
        text = "thick outline: how much edits changed the tensor"
        yield _row(theme, theme.plain, text, border=3, line=edit_line(theme))
    if picture.gradients:
        yield _row(theme, theme.background, "blue arrow: gradient", line=theme.gradient)


def _of_marks(theme: Theme) -> Iterator[str]:
    yield _row(theme, theme.added, "+ only in the second; so thick arrows")
    yield _row(theme, theme.removed, "− only in the first; so thick dashed arrows")
    yield _row(theme, theme.changed, "~ differs")


def _row(theme: Theme, fill: str, text: str, *, style: str = "", border: int = 1, line: str = "") -> str:
    look = f'BORDER="{border}" COLOR="{line or theme.line}" BGCOLOR="{fill}"' + (f' STYLE="{style}"' if style else "")
    ink = line if line and contrast(line, fill) >= READABLE else ink_on(fill, theme)
    return f'<TR><TD {look}><FONT COLOR="{ink}" POINT-SIZE="10">{text}</FONT></TD></TR>'
