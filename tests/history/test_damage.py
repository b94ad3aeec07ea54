"""Damaged and malicious saved histories give a clear error; nothing is run, and no other file is read."""

from __future__ import annotations

import json
import os
import pickle
import shutil

import pytest
import torch
from hypothesis import HealthCheck
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

import pytest_torchlens as tl


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


def edited(folder, change):
    file = folder / "history.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    change(content)
    file.write_text(json.dumps(content), encoding="utf-8")


def op_of(content, place):
    return content["history"]["operations"][place]


def nested(depth):
    """Return modules nested deeper than in any real network."""
    addresses = ["m" + ".m" * level for level in range(depth)]
    return [{"address": outer, "module_type": "M", "children": [outer + ".m"]} for outer in addresses[:-1]] + [
        {"address": addresses[-1], "module_type": "M"}
    ]


DAMAGE = {
    "newer": (lambda c: c.update(version=3), "expected version 2, got 3: update pytest-torchlens"),
    "older": (lambda c: c.update(version=1), "expected version 2, got 1: trace the model again and save the new"),
    "odd-version": (lambda c: c.update(version="1"), "expected version 2, got '1'.*damaged"),
    "other-format": (lambda c: c.update(format="x"), "not a saved history: its format"),
    "unknown-field": (lambda c: c["history"].update(__class__="os"), "got '__class__'"),
    "wrong-type": (lambda c: c["history"].update(num_layers="9"), "num_layers: expected int, got str"),
    "no-name": (lambda c: c["history"].pop("model_name"), "model_name"),
    "no-history": (lambda c: c.pop("history"), "history"),
    "two-of-a-label": (lambda c: c["history"]["operations"].append(c["history"]["operations"][0]), "same label"),
    "cycle": (lambda c: c["history"]["operations"][0].update(parent_layers=["output_1_10"]), "does not come before"),
    "child": (
        lambda c: c["history"]["operations"][0].update(child_layers=["x"]),
        "read by 'x', which does not exist",
    ),
    "frames": (
        lambda c: c["stacks"].update(linear_1_1=[999]),
        "call stack of 'linear_1_1' refers to frames that",
    ),
    "layer-list": (lambda c: c["history"]["layer_list"].append("y"), "layer_list has 'y'"),
    "modules": (lambda c: c["history"]["modules"][1].update(children=["inner"]), "'inner' cannot contain 'inner'"),
    "no-model": (lambda c: c["history"]["modules"].pop(0), "the model is not among its modules"),
    "huge": (lambda c: c["history"].update(num_layers=10**400), "a number has 401 digits"),
    "infinite": (lambda c: c["history"].update(elapsed_time_total=float("inf")), "Infinity is not a valid number"),
    "passes": (
        lambda c: op_of(c, 1).update(layer_passes_total=10**17),
        "pass 1 of 100000000000000000, but there are 1",
    ),
    "branch": (lambda c: c["history"]["escapes"][0].update(lines_taken=[1, 10**17]), "not a first and last line"),
    "deep": (lambda c: c["history"]["modules"].extend(nested(300)), "is inside more than 200 others"),
    "not-finite": (lambda c: c["history"].update(elapsed_time_total="endless"), "expected float, got str"),
    "label": (lambda c: op_of(c, 1).update({"layer_label_w_pass": "zzz:9"}), "label 'zzz:9' should be '.*:1'"),
    "short-label": (lambda c: op_of(c, 1).update(layer_label_short="relu_7"), "label 'relu_7' should be"),
    "negative-size": (lambda c: op_of(c, 1).update(tensor_shape=[-2, 2]), r"the shape \(-2, 2\)"),
    "one-size": (lambda c: op_of(c, 1).update(tensor_shape=[4]), r"the shape \(4,\) with strides"),
    "bytes": (lambda c: op_of(c, 1).update(tensor_fsize=10**9), "1000000000 bytes, but 16 by its shape"),
    "calls": (lambda c: c["history"]["modules"][1].update(num_passes=10**9), "called 1000000000 times, but 1 calls"),
    "call": (lambda c: c["history"]["top_level_module_passes"].append("x:1"), "'x:1' is not a call of a module"),
    "around": (lambda c: op_of(c, 1).update(containing_module_origin_nested=["x"]), "beside 'x', which is not a call"),
    "edges": (lambda c: op_of(c, 1).update(edges=[]), "has edges from none, but input_1_0 as parents"),
    "children": (lambda c: op_of(c, 0).update(child_layers=[]), "is read by linear_1_1.*has none as children"),
    "keys": (
        lambda c: op_of(c, 1)["lookup_keys"].append("input_1_0"),
        "two operations have the lookup key 'input_1_0'",
    ),
    "loop": (lambda c: c["history"].update(loops=[{"source_line": "", "layers": ["x"]}]), "a loop has 'x'"),
    "escape": (lambda c: c["history"]["escapes"][0].update(operation="x"), "read from 'x', which is not an operation"),
    "backward": (lambda c: c["backward_passes"][0].update(layers=["x"]), "names 'x', which is not an operation"),
    "left-out": (lambda c: c.update(left_out={"gradient 1 x": "sparse"}), "names 'x', which is not an operation"),
    "digests": (lambda c: c["digests"].update({"gradient 9 linear_1_1": ""}), "'gradient 9 linear_1_1' is missing"),
    "renamed": (lambda c: c["history"]["operations"].pop(), "not an operation|does not exist"),
}


@pytest.mark.parametrize("name", list(DAMAGE))
def test_damaged_json(copy, name):
    change, message = DAMAGE[name]
    edited(copy, change)
    with pytest.raises(tl.HistoryFileError, match=message):
        tl.load(copy)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("{", id="cut"),
        pytest.param("[]", id="list"),
        pytest.param("[" * 100_000, id="deep"),
        pytest.param(
            '{"format": "pytest-torchlens history", "version": 2, "history": ' + '{"a":' * 5000, id="deep-cut"
        ),
        pytest.param("NaN", id="nan"),
    ],
)
def test_no_json(copy, text):
    (copy / "history.json").write_text(text, encoding="utf-8")
    with pytest.raises(tl.HistoryFileError, match=r"is damaged|not a saved history"):
        tl.load(copy)


def test_bytes_that_are_no_text(copy):
    (copy / "history.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(tl.HistoryFileError, match="is damaged"):
        tl.load(copy)


def test_nothing_there(tmp_path):
    with pytest.raises(tl.HistoryFileError, match=r"is not a saved history: history.json cannot be read"):
        tl.load(tmp_path / "nowhere")


def test_tensors_missing(copy):
    (copy / "activations-00000.safetensors").unlink()
    with pytest.raises(tl.HistoryFileError, match="the tensor of input_1_0 is missing"):
        tl.load(copy)


@pytest.mark.parametrize("keep", [0, 4, 100, -10])
def test_tensors_cut(copy, keep):
    file = copy / "activations-00000.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(tl.HistoryFileError, match="is damaged or not a safetensors file"):
        tl.load(copy)


def test_a_pickle_is_not_run(copy, tmp_path):
    class Harm:
        def __reduce__(self):
            return (open, (str(tmp_path / "harm"), "w"))

    (copy / "activations-00000.safetensors").write_bytes(pickle.dumps(Harm()))
    with pytest.raises(tl.HistoryFileError, match="is damaged or not a safetensors file"):
        tl.load(copy)
    assert not (tmp_path / "harm").exists()


def test_a_tensor_of_no_operation(copy, tmp_path):
    from safetensors.torch import save_file

    save_file({"stranger": torch.zeros(1)}, copy / "activations-00001.safetensors")
    with pytest.raises(tl.HistoryFileError, match="the tensor 'stranger' belongs to no operation"):
        tl.load(copy)


def test_a_tensor_twice(copy):
    shutil.copy(copy / "activations-00000.safetensors", copy / "activations-00001.safetensors")
    with pytest.raises(tl.HistoryFileError, match=r"both have a tensor .* in "):
        tl.load(copy)


def test_what_else_lies_there_is_not_opened(copy):
    os.mkfifo(copy / "activations-00001.pt")
    assert tl.load(copy).num_layers == 11


@pytest.mark.parametrize("name", ["history.json", "activations-00000.safetensors"])
@pytest.mark.parametrize("trap", ["link", "pipe", "folder"])
def test_links_and_devices_are_not_followed(copy, tmp_path, name, trap):
    file = copy / name
    file.rename(tmp_path / "elsewhere")
    if trap == "link":
        file.symlink_to(tmp_path / "elsewhere")
    elif trap == "pipe":
        os.mkfifo(file)
    else:
        file.mkdir()
    with pytest.raises(
        tl.HistoryFileError, match=rf"{name}( is a symbolic link; put the file itself|: expected a regular file)"
    ):
        tl.load(copy)


def test_no_other_file_is_read(copy, tmp_path, monkeypatch):
    secret = tmp_path / "secret.py"
    secret.write_text("password = 1\n")
    edited(copy, lambda c: [frame.update(file=str(secret), line=1) for frame in c["frames"]])
    monkeypatch.setattr("linecache.getlines", lambda *_: pytest.fail("a file was read"))
    loaded = tl.load(copy)
    stack = loaded["linear_1"].func_call_stack
    assert stack[0]["call_fname"] == str(secret)
    assert "password" not in str(stack)


def test_the_lines_are_those_of_when_it_was_saved(tmp_path):
    code = "import torch\n\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return x + 1\n"
    (tmp_path / "net.py").write_text(code)
    scope = {}
    exec(compile(code, tmp_path / "net.py", "exec"), scope)  # noqa: S102 - our own text
    tl.log_forward_pass(scope["Net"](), torch.ones(2)).save(tmp_path / "h")
    (tmp_path / "net.py").write_text("gone\n")
    frame = tl.load(tmp_path / "h")["add_1"].func_call_stack[0]
    assert frame["code_context"][frame["call_linenum"] - 1] == "        return x + 1\n"


@pytest.mark.parametrize("gradients", [False, True], ids=["activation", "gradient"])
def test_a_flipped_bit(copy, gradients):
    from safetensors.torch import load_file
    from safetensors.torch import save_file

    file = copy / "activations-00000.safetensors"
    tensors = load_file(file)
    name = "gradient 1 linear_1_1" if gradients else "linear_1_1"
    tensors[name].view(torch.uint8)[0, 0] ^= 1
    save_file(tensors, file)
    linear = tl.load(copy)["linear_1"]
    with pytest.raises(tl.HistoryFileError, match=f"00000.safetensors is damaged: its tensor '{name}' is not the one"):
        _ = linear.gradients if gradients else linear.tensor_contents


def test_tensors_of_another_shape_or_type(copy):
    from safetensors.torch import load_file
    from safetensors.torch import save_file

    file = copy / "activations-00000.safetensors"
    tensors = load_file(file)
    for other in (tensors["linear_1_1"].reshape(-1), tensors["linear_1_1"].view(torch.int32)):
        save_file({**tensors, "linear_1_1": other}, file)
        with pytest.raises(tl.HistoryFileError, match="is not the one that was saved"):
            _ = tl.load(copy)["linear_1"].tensor_contents


def test_complex_tensors_of_a_wrong_shape(copy):
    from safetensors.torch import load_file
    from safetensors.torch import save_file

    file = copy / "activations-00000.safetensors"
    tensors = load_file(file)
    tensors["linear_1_1#complex"] = tensors.pop("linear_1_1").reshape(4, 1)
    save_file(tensors, file)
    loaded = tl.load(copy)
    with pytest.raises(tl.HistoryFileError, match=r"safetensors is damaged: its tensor 'linear_1_1'"):
        _ = loaded["linear_1"].tensor_contents


@pytest.mark.parametrize("path", [None, 3, ""])
def test_what_is_no_path(history, path):
    for use in (history.save, tl.load):
        with pytest.raises(TypeError, match="expected the path of a folder, as 'run-1', got"):
            use(path)


@pytest.mark.parametrize(("path", "why"), [("a\0b", "a null character"), ("a\ud800b", "is not a valid character")])
def test_characters_that_no_path_has(history, path, why):
    for use in (history.save, tl.load):
        with pytest.raises(tl.HistoryFileError, match=f"is not a valid path: .*{why}"):
            use(path)
    with pytest.raises(TypeError, match=r"stream_to of SaveOptions: expected the path of a folder, got"):
        tl.SaveOptions(stream_to=path)


def test_a_folder_that_cannot_be_written(history, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(tl.HistoryFileError, match=r"file/h cannot be (created|written): Not a directory"):
        history.save(tmp_path / "file" / "h")


# -- anything at all -----------------------------------------------------------------------------------------------

ODD = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(10**17, 10**19), st.text(max_size=5),
    st.floats(allow_nan=False, allow_infinity=False), st.just({}),
    st.sampled_from(["nan", "inf", "input_1_0", "\0", "\udc80"]),
    st.lists(st.one_of(st.integers(), st.text(max_size=3), st.lists(st.none(), max_size=1)), max_size=2),
)  # fmt: skip


def places(value, path=()):
    """Yield the path to every part of a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_part_may_be_wrong(folder, tmp_path_factory, data):
    content = json.loads((folder / "history.json").read_text(encoding="utf-8"))
    way = data.draw(st.sampled_from([way for way in places(content) if way]))
    target = content
    for key in way[:-1]:
        target = target[key]
    target[way[-1]] = data.draw(ODD)
    broken = tmp_path_factory.mktemp("broken")
    shutil.copy(folder / "activations-00000.safetensors", broken)
    (broken / "history.json").write_text(json.dumps(content), encoding="utf-8")
    try:
        loaded = tl.load(broken)
    except tl.HistoryFileError:
        return
    assert len(loaded.operations) == 12
    try:
        use_all(loaded)
    except tl.HistoryFileError:
        return


def test_each_parameter_of_an_operation_has_a_shape(folder, tmp_path):
    content = json.loads((folder / "history.json").read_text(encoding="utf-8"))
    next(op for op in content["history"]["operations"] if op.get("parent_param_addresses"))[
        "parent_param_addresses"
    ] = []
    shutil.copy(folder / "activations-00000.safetensors", tmp_path)
    (tmp_path / "history.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(tl.HistoryFileError, match="shapes for its parameters"):
        tl.load(tmp_path)


def use_all(loaded):
    """Use every attribute of a history."""
    assert str(loaded)
    assert loaded._repr_html_()
    assert loaded.record()
    assert len(loaded.to_pandas()) == 12
    for op in loaded.operations:
        assert str(op)
        assert op._repr_html_()
        assert isinstance(op.gradients, dict)
        assert isinstance(op.func_call_stack, tuple)
        assert isinstance(op.sibling_layers + op.spouse_layers + op.orig_ancestors + op.same_layer_operations, tuple)
        assert loaded.ancestors(op) is not None
    assert loaded.to_networkx(rolled=True).number_of_nodes()
    assert loaded.lines_taken is not None
    assert loaded.lines_not_taken is not None
    assert loaded.merge(loaded).operations
