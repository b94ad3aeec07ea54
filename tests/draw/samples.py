"""Made-up forward passes, put together without torch."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import prod
from typing import Any

from pytest_torchlens.records import Edge
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import ModuleRecord
from pytest_torchlens.records import Operation


class Sketch:
    """Writes a forward pass down, one operation after the other."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.operations: list[Operation] = []
        self.modules: list[ModuleRecord] = [ModuleRecord(address="", module_type=name, num_passes=1)]
        self.counts: Counter[str] = Counter()
        self.num_layers = 0

    def module(self, address: str, module_type: str, num_passes: int = 1) -> None:
        """Add a module; its parent must have been added before it."""
        self.modules.append(ModuleRecord(address=address, module_type=module_type, num_passes=num_passes))
        parents = [m for m in self.modules if m.address == "" or address.startswith(m.address + ".")]
        parent = max((m for m in parents if m.address != address), key=lambda m: len(m.address))
        at = self.modules.index(parent)
        self.modules[at] = replace(parent, children=(*parent.children, address))

    def source(self, kind: str, shape: tuple[int, ...] = (5, 5), **fields: Any) -> str:
        """Add a buffer or a constant, which take no number from the layers after them."""
        return self._add(kind, f"{kind}_{self._count(kind)}", -1, (), shape, fields)

    def op(
        self,
        kind: str,
        *parents: str,
        shape: tuple[int, ...] = (5, 5),
        leaf: str | None = None,
        inside: tuple[str, ...] = (),
        **fields: Any,
    ) -> str:
        """Add an operation; `leaf` is the call of the bottom-level module that it is."""
        number = 0 if kind == "input" else self.num_layers
        label = f"{kind}_{self._count(kind)}_{number}"
        self.num_layers += 1
        if leaf is not None:
            fields |= {"is_bottom_level_submodule_output": True, "bottom_level_submodule_exited": leaf}
            inside = (*inside, leaf)
        if params := fields.get("parent_param_shapes"):
            fields |= {"computed_with_params": True, "num_params_total": sum(map(prod, params))}
            fields.setdefault("num_params_trainable", fields["num_params_total"])
        fields.setdefault("containing_module_origin_nested", inside)
        return self._add(kind, label, number, parents, shape, fields)

    def record(self) -> HistoryRecord:
        """Return the forward pass, children filled in."""
        children: dict[str, list[str]] = {op.layer_label: [] for op in self.operations}
        for op in self.operations:
            for parent in op.parent_layers:
                children[parent].append(op.layer_label)
        operations = tuple(replace(op, child_layers=tuple(children[op.layer_label])) for op in self.operations)
        size = sum(op.tensor_fsize for op in operations)
        params = sum(op.num_params_total for op in operations)
        return HistoryRecord(
            model_name=self.name,
            num_operations=len({op.call_id for op in operations if op.call_id >= 0}),
            num_layers=self.num_layers,
            num_tensors_total=len(operations),
            tensor_fsize_total=size,
            total_params=params,
            total_params_trainable=sum(op.num_params_trainable for op in operations),
            total_params_fsize=4 * params,
            elapsed_time_total=0.0123,
            layer_list=tuple(op.layer_label for op in operations if op.operation_num >= 0),
            operations=operations,
            modules=tuple(self.modules),
        )

    def _count(self, kind: str) -> int:
        self.counts[kind] += 1
        return self.counts[kind]

    def _add(
        self,
        kind: str,
        label: str,
        number: int,
        parents: tuple[str, ...],
        shape: tuple[int, ...],
        fields: dict[str, Any],
    ) -> str:
        common: dict[str, Any] = {
            "layer_label": label,
            "layer_label_w_pass": label,
            "layer_label_short": f"{kind}_{self.counts[kind]}",
            "operation_num": number,
            "layer_type": kind,
            "layer_type_num": self.counts[kind],
            "layer_total_num": number,
            "call_id": number,
            "tensor_shape": shape,
            "tensor_dtype": "torch.float32",
            "tensor_fsize": 4 * prod(shape),
            "func_time_elapsed": 1e-5 * (1 + len(self.operations) % 7),
            "edges": tuple(Edge(parent, str(place)) for place, parent in enumerate(parents)),
            "parent_layers": tuple(dict.fromkeys(parents)),
            "is_input_layer": kind == "input",
            "is_output_layer": kind == "output",
            "is_buffer_layer": kind == "buffer",
            "is_constant": kind == "constant",
            "func_applied_name": "" if number < 0 or kind in ("input", "output") else kind,
        }
        self.operations.append(Operation(**(common | fields)))
        return label


def demo_network() -> HistoryRecord:
    """Return the poster's DemoNetwork."""
    net = Sketch("DemoNetwork")
    net.module("fc", "Linear")
    net.module("relu_module", "ReLU")
    x = net.op("input")
    x = net.op("add", x, source_line="demo.py:12, in forward")
    x = net.op("relu", x, leaf="relu_module")
    x = net.op("linear", x, leaf="fc", parent_param_shapes=((5, 5), (5,)))
    x = net.op("relu", x)
    noise = net.op("randn", initialized_inside_model=True, function_is_random=True)
    x = net.op("add", x, noise)
    y = net.op("pow", x)
    x = net.op("div", x, y)
    buffer = net.source("buffer", buffer_address="example_buffer")
    x = net.op("mul", x, buffer)
    net.op("output", x)
    return net.record()


# Address, class, shape made, shapes of parameters.
_ALEXNET: list[tuple[str, str, tuple[int, ...], tuple[tuple[int, ...], ...]]] = [
    ("features.0", "Conv2d", (1, 64, 55, 55), ((64, 3, 11, 11), (64,))),
    ("features.1", "ReLU", (1, 64, 55, 55), ()),
    ("features.2", "MaxPool2d", (1, 64, 27, 27), ()),
    ("features.3", "Conv2d", (1, 192, 27, 27), ((192, 64, 5, 5), (192,))),
    ("features.4", "ReLU", (1, 192, 27, 27), ()),
    ("features.5", "MaxPool2d", (1, 192, 13, 13), ()),
    ("features.6", "Conv2d", (1, 384, 13, 13), ((384, 192, 3, 3), (384,))),
    ("features.7", "ReLU", (1, 384, 13, 13), ()),
    ("features.8", "Conv2d", (1, 256, 13, 13), ((256, 384, 3, 3), (256,))),
    ("features.9", "ReLU", (1, 256, 13, 13), ()),
    ("features.10", "Conv2d", (1, 256, 13, 13), ((256, 256, 3, 3), (256,))),
    ("features.11", "ReLU", (1, 256, 13, 13), ()),
    ("features.12", "MaxPool2d", (1, 256, 6, 6), ()),
    ("avgpool", "AdaptiveAvgPool2d", (1, 256, 6, 6), ()),
    ("", "Flatten", (1, 9216), ()),
    ("classifier.0", "Dropout", (1, 9216), ()),
    ("classifier.1", "Linear", (1, 4096), ((4096, 9216), (4096,))),
    ("classifier.2", "ReLU", (1, 4096), ()),
    ("classifier.3", "Dropout", (1, 4096), ()),
    ("classifier.4", "Linear", (1, 4096), ((4096, 4096), (4096,))),
    ("classifier.5", "ReLU", (1, 4096), ()),
    ("classifier.6", "Linear", (1, 1000), ((1000, 4096), (1000,))),
]


def alexnet() -> HistoryRecord:
    """Return AlexNet's forward pass."""
    net = Sketch("AlexNet")
    net.module("features", "Sequential")
    net.module("classifier", "Sequential")
    x = net.op("input", shape=(1, 3, 224, 224))
    for address, kind, shape, params in _ALEXNET:
        if not address:
            x = net.op(kind.lower(), x, shape=shape, source_line="alexnet.py:50, in forward")
            continue
        net.module(address, kind)
        inside = tuple(filter(None, [address.rpartition(".")[0]]))
        x = net.op(kind.lower(), x, shape=shape, leaf=address, inside=inside, parent_param_shapes=params)
    net.op("output", x, shape=(1, 1000))
    return net.record()


def transformer(blocks: int) -> HistoryRecord:
    """Return a forward pass of 17 operations a block, with residual sums and a three-way split."""
    net = Sketch("Transformer")
    net.module("blocks", "Sequential")
    shape = (1, 197, 768)
    x = net.op("input", shape=shape)
    for i in range(blocks):
        x = _block(net, x, f"blocks.{i}", shape)
    net.op("output", x, shape=shape)
    return net.record()


def _block(net: Sketch, x: str, block: str, shape: tuple[int, ...]) -> str:
    for name, kind in (
        ("", "Block"),
        (".norm1", "LayerNorm"),
        (".attn", "Attention"),
        (".attn.qkv", "Linear"),
    ):
        net.module(block + name, kind)
    for name, kind in ((".attn.proj", "Linear"), (".norm2", "LayerNorm"), (".mlp", "Mlp")):
        net.module(block + name, kind)
    for name, kind in ((".mlp.fc1", "Linear"), (".mlp.act", "GELU"), (".mlp.fc2", "Linear")):
        net.module(block + name, kind)
    inside = ("blocks", block)
    attention, mlp = (*inside, f"{block}.attn"), (*inside, f"{block}.mlp")
    norm, linear = ((768,), (768,)), ((768, 768), (768,))

    def op(kind: str, *parents: str, **fields: Any) -> str:
        return net.op(kind, *parents, shape=shape, source_line="vit.py:88, in forward", **fields)

    y = op("layernorm", x, leaf=f"{block}.norm1", inside=inside, parent_param_shapes=norm)
    qkv = op("linear", y, leaf=f"{block}.attn.qkv", inside=attention, parent_param_shapes=linear)
    q, k, v = (op("getitem", qkv, inside=attention) for _ in range(3))
    k = op("transpose", k, inside=attention)
    y = op("softmax", op("matmul", q, k, inside=attention), inside=attention)
    y = op("matmul", y, v, inside=attention)
    y = op("reshape", op("transpose", y, inside=attention), inside=attention)
    y = op("linear", y, leaf=f"{block}.attn.proj", inside=attention, parent_param_shapes=linear)
    x = op("add", x, y, inside=inside)
    y = op("layernorm", x, leaf=f"{block}.norm2", inside=inside, parent_param_shapes=norm)
    y = op("linear", y, leaf=f"{block}.mlp.fc1", inside=mlp, parent_param_shapes=linear)
    y = op("gelu", y, leaf=f"{block}.mlp.act", inside=mlp)
    y = op("linear", y, leaf=f"{block}.mlp.fc2", inside=mlp, parent_param_shapes=linear)
    return op("add", x, y, inside=inside)
