"""An edited pass is what the model would have done, with the edit alone: against hooks, by replay and live."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pytest_torchlens as tl
from pytest_torchlens import DecisionChangedError
from pytest_torchlens import LookupKeyError
from pytest_torchlens import NotReplayableError
from pytest_torchlens import Part
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.edit import edit
from tests.models import Function

X = torch.linspace(-1, 1, 12).reshape(3, 4)
BOTH_WAYS = pytest.mark.parametrize("live", [False, True], ids=["replay", "live"])


@pytest.fixture
def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 6), nn.Sigmoid(), nn.Linear(6, 2))


def with_hook(model, address, change):
    handle = model.get_submodule(address).register_forward_hook(lambda module, args, output: change(output))
    try:
        return model(X)
    finally:
        handle.remove()


def output(history):
    return history["output_1"].tensor_contents


# -- what is put where ---------------------------------------------------------------------------------------------

OTHER = torch.rand(3, 6, generator=torch.Generator().manual_seed(1))


def third_feature_set(tensor):
    tensor = tensor.clone()
    tensor[:, 2] = 7
    return tensor


@BOTH_WAYS
@pytest.mark.parametrize(
    ("edits", "hook"),
    [
        ({"3": 0.0}, torch.zeros_like),
        ({"3": OTHER}, lambda t: OTHER),
        ({"3": lambda t: t.roll(1, 0)}, lambda t: t.roll(1, 0)),
        ({Part("3")[:, 2]: 7.0}, third_feature_set),
        ({Part("3", feature=2): 7.0}, third_feature_set),
        ({Part("3", feature=2): lambda t: torch.full_like(t, 7)}, third_feature_set),
        ({("3", (..., 2)): 7.0}, third_feature_set),
        ({Part("3", head=(0, 3)): 0.0}, lambda t: torch.cat([t[:, :2] * 0, t[:, 2:]], 1)),
        ({Part("3", mask=OTHER > 0.5): 1.0}, lambda t: torch.where(OTHER > 0.5, 1.0, t)),
        ({Part("3")[0]: OTHER, Part("3")[1:]: 1.0}, lambda t: torch.cat([OTHER[:1], torch.ones(2, 6)])),
    ],
)
def test_an_edit_is_what_a_hook_gives(network, edits, hook, live):
    history = tl.log_forward_pass(network, X)
    edited = history.edit(edits, live=live)
    assert torch.equal(output(edited), with_hook(network, "3", hook))
    assert edited.layer_list == history.layer_list


@BOTH_WAYS
def test_an_activation_of_another_pass_is_patched_in(network, live):
    clean, corrupted = tl.log_forward_pass(network, X), tl.log_forward_pass(network, -X)
    patched = corrupted.edit({"linear_2": clean["linear_2"]}, live=live)
    assert torch.equal(output(patched), output(clean))
    assert torch.equal(patched["relu_1"].tensor_contents, corrupted["relu_1"].tensor_contents)


@BOTH_WAYS
def test_what_an_operation_overwrote_is_overwritten(network, live):
    history = tl.log_forward_pass(network, X)
    edited = history.edit({"relu_1": 0.5}, live=live)
    assert torch.equal(output(edited), with_hook(network, "1", lambda t: torch.full_like(t, 0.5)))


@BOTH_WAYS
def test_all_is_computed_anew_behind_an_edit_and_shared_before(network, live):
    history = tl.log_forward_pass(network, X)
    before = {op.label: op.fingerprint for op in history.operations}
    edited = history.edit({"linear_2": 0.0}, live=live)
    assert {op.label: op.fingerprint for op in history.operations} == before
    changed = [op.label for op in edited if op.fingerprint != before[op.label]]
    assert changed == ["linear_2_3", "sigmoid_1_4", "linear_3_5", "output_1_6"]
    assert all(fingerprint(op.tensor_contents) == op.fingerprint for op in edited)
    if not live:
        assert edited["linear_1"].tensor_contents is history["linear_1"].tensor_contents


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        y = self.inner(x)
        return y.sin() + y.cos()


@BOTH_WAYS
def test_a_single_consumer_sees_the_edit_of_an_edge(live):
    model = Twice()
    history = tl.log_forward_pass(model, X)
    edited = history.edit({("inner", "cos_1"): 0.0}, live=live)
    y = model.inner(X)
    assert torch.equal(output(edited), y.sin() + torch.zeros_like(y).cos())
    assert torch.equal(edited["inner"].tensor_contents, y)
    part = history.edit({Part("inner", "cos_1")[:, 0]: 0.0}, live=live)
    y0 = torch.cat([torch.zeros(3, 1), y[:, 1:]], 1)
    assert torch.equal(output(part), y.sin() + y0.cos())
    assert [str(one) for one in part.edits] == ["linear_1_1 [:, 0] as cos_1_3 reads it ← 0.0"]


@BOTH_WAYS
def test_inputs_and_parameters(network, live):
    history = tl.log_forward_pass(network, X)
    weight = torch.rand(6, 6)
    edited = history.edit(inputs={"input": -X}, parameters={"2.weight": weight}, live=live)
    former = network[2].weight.detach().clone()
    assert torch.equal(network[2].weight, former)
    network[2].weight.data = weight
    assert torch.equal(output(edited), network(-X))


class Sharing(nn.Module):
    """Reads memory of its parameter and buffer under other names, too."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.tied = self.scale
        self.alias, self.part = self.scale.data, self.scale.data[1:]
        self.register_buffer("shift", torch.ones(4))
        self.kept = [self.shift]

    def forward(self, inputs, more):
        x, y = inputs["x"] * self.tied, inputs["deep"]["y"] + self.alias + self.part.sum()
        return x + y * self.shift + self.kept[0] * more


@BOTH_WAYS
def test_all_that_reads_the_memory_of_an_edited_tensor_sees_the_edit(live):
    model = Sharing()
    args = {"x": X, "deep": {"y": X * 2}}, X * 3
    history = tl.log_forward_pass(model, args)
    for name in ("scale", "tied"):
        edited = history.edit(parameters={name: 2.0}, live=live)
        assert torch.equal(output(edited), X * 2 + (X * 2 + 2 + 6) + X * 3)
    assert torch.equal(output(history.edit({"tied": 2.0}, live=live)), output(edited))
    edited = history.edit(parameters={"shift": 0.0}, live=live)
    assert torch.equal(output(edited), X)
    edited = history.edit(inputs={"inputs.deep.y": 0.0, "more": -X}, live=live)
    assert torch.equal(output(edited), X + (1 + 3) - X)
    assert model.alias.equal(torch.ones(4))
    assert model.kept[0] is model.shift
    with pytest.raises(LookupKeyError, match=r"no tensor 'inputs.deep'; name a tensor in it: inputs.deep.y"):
        history.edit(inputs={"inputs.deep": X}, live=live)


def put_over(x):
    y = x * 2
    z = torch.empty(0)
    z.set_(y)
    return z + 1


@BOTH_WAYS
def test_memory_that_set_puts_into_a_tensor_is_that_of_the_edit(live):
    model = Function(put_over)
    edited = tl.log_forward_pass(model, X).edit({"mul_1": 5.0}, live=live)
    assert torch.equal(output(edited), torch.full_like(X, 6.0))


@BOTH_WAYS
def test_a_module_that_does_nothing_names_its_argument_and_says_so(live):
    class Shortcut(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.shortcut = nn.Linear(4, 4), nn.Identity()

        def forward(self, x):
            y = self.fc(x)
            return y.sin() + self.shortcut(y)

    model = Shortcut()
    history = tl.log_forward_pass(model, X)
    with pytest.warns(UserWarning, match=r"shortcut returned its argument, linear_1_1: .*\(sin_1_2, add_1_3\)"):
        edited = history.edit({Part("shortcut"): 0.0}, live=live)
    assert torch.equal(output(edited), torch.zeros(3, 4))
    assert torch.equal(output(history.edit({"linear_1": 0.0}, live=live)), torch.zeros(3, 4))
    edge = history.edit({("shortcut", "add_1"): 0.0}, live=live)
    assert torch.equal(output(edge), model.fc(X).sin())


def test_a_replay_says_that_an_operation_returned_its_argument():
    model = Function(lambda x: (y := x * 2, F.dropout(y, 0.5, training=False).sin() + y)[1])
    history = tl.log_forward_pass(model, X)
    with pytest.warns(UserWarning, match=r"dropout_1_2 returned its argument: a replay edits .*\(sin_1_3, add_1_4\)"):
        assert torch.equal(output(history.edit({"dropout_1": 0.0})), torch.zeros(3, 4))
    assert torch.equal(output(history.edit({"dropout_1": 0.0}, live=True)), X * 2)


@BOTH_WAYS
def test_kernels_are_those_of_the_pass_where_gradients_choose_them(live):
    x = torch.rand(3, 2, 5, 8, generator=torch.Generator().manual_seed(1))
    bias = nn.Parameter(torch.rand(3, 2, 5, 5, generator=torch.Generator().manual_seed(2)))

    def attention(x, scale=1, mask=3):  # with a mask without gradients, another kernel rounds otherwise
        return F.scaled_dot_product_attention(x.sin() * scale, x.cos(), x, attn_mask=bias * mask).tanh()

    model = Function(attention)
    history = tl.log_forward_pass(model, x)
    found = [output(history.edit({key: lambda t: t * 2}, live=live)) for key in ("sin_1", "mul_2")]
    assert torch.equal(found[0], attention(x, scale=2))
    assert torch.equal(found[1], attention(x, mask=6))


class Loop(nn.Module):
    def __init__(self):
        super().__init__()
        self.step = nn.Linear(4, 4)

    def forward(self, x):
        return self.step(self.step(self.step(x)))


@BOTH_WAYS
def test_all_passes_of_a_layer_and_one_of_them(live):
    model = Loop()
    history = tl.log_forward_pass(model, X)
    assert torch.equal(output(history.edit({"linear_1": 1.0}, live=live)), torch.ones(3, 4))
    second = history.edit({"linear_1_1:2": 1.0}, live=live)
    assert torch.equal(output(second), model.step(torch.ones(3, 4)))
    patched = history.edit({"linear_1": second["linear_1"]}, live=live)
    assert torch.equal(output(patched), output(second))


@BOTH_WAYS
def test_one_of_several_results(live):
    model = Function(lambda x: torch.add(*x.chunk(2, dim=1)))
    history = tl.log_forward_pass(model, X)
    assert torch.equal(output(history.edit({"chunk_2": 0.0}, live=live)), X[:, :2] + 0)


@BOTH_WAYS
def test_edits_add_up_in_any_order(network, live):
    history = tl.log_forward_pass(network, X)
    at_once = history.edit({"linear_1": 0.1, Part("linear_2")[:, 0]: 1.0}, live=live)
    one = history.edit({Part("linear_2")[:, 0]: 1.0}, live=live)
    after_another = one.edit({"linear_1": 0.1})
    assert torch.equal(output(at_once), output(after_another))
    assert len(after_another.edits) == 2


# -- replay, or the model itself -----------------------------------------------------------------------------------


def branches(x):
    y = x * 2
    if y.sum() > 0:
        y = y.sin()
    return y + 1


def test_a_changed_decision_raises_goes_on_or_is_made_anew():
    model = Function(branches)
    history = tl.log_forward_pass(model, X + 1)
    with pytest.raises(DecisionChangedError, match=r"in branches \(y.sum\(\) > 0\): the model might run other"):
        history.edit({"mul_1": -1.0})
    recorded = history.edit({"mul_1": -1.0}, check_decisions=False)
    assert torch.equal(output(recorded), torch.full((3, 4), -1.0).sin() + 1)
    live = history.edit({"mul_1": -1.0}, live=True)
    assert torch.equal(output(live), torch.zeros(3, 4))
    assert "sin_1" not in live


def test_passes_that_only_the_edited_run_makes_are_edited_too():
    step = nn.Linear(4, 4)
    nn.init.constant_(step.weight, 0.1)

    def until_small(x):
        count = 0
        while count < 4 and (count == 0 or x.sum() > 5):
            x, count = step(x), count + 1
        return x

    model = Function(until_small)
    history = tl.log_forward_pass(model, X - 5)
    assert history["linear_1"].layer_passes_total == 1
    edited = history.edit({"linear_1": 1.0}, live=True)
    assert edited["linear_1"].layer_passes_total == 4
    assert torch.equal(output(edited), torch.ones(3, 4))


def until_large(x):
    count = 0
    while count < 4 and x.sum() < 30:
        x, count = torch.relu(x + 3), count + 1
    return x


def test_further_rounds_of_a_loop_are_edited_too():
    model = Function(until_large)
    history = tl.log_forward_pass(model, X)
    assert history["relu_1"].layer_passes_total == 1
    edited = history.edit({"relu_1": 0.0}, live=True)
    assert edited["relu_1"].layer_passes_total == 4
    assert torch.equal(output(edited), torch.zeros(3, 4))


def test_an_edit_does_not_land_on_another_call_of_the_function():
    def forward(x):
        y = x + 1
        if y.sum() > 0:
            y = torch.relu(y)
        return y + torch.relu(x * 2)

    model = Function(forward)
    history = tl.log_forward_pass(model, X)
    with pytest.raises(NotReplayableError, match="relu_1_4 did not run"):
        history.edit({"add_1": -1.0, "relu_1": 100.0}, live=True)
    second = history.edit({"add_1": -1.0, "relu_2": 100.0}, live=True)
    assert torch.equal(output(second), torch.full((3, 4), 99.0))


@pytest.mark.filterwarnings("error::UserWarning")
def test_a_call_is_found_again_when_python_has_made_its_code_faster():
    def forward(x):
        return sum(torch.relu(row) for row in x)

    model = Function(forward)
    history = tl.log_forward_pass(model, X)
    for _ in range(10):  # 3.11 calls `sum` at another instruction after some
        model(X)
    edited = history.edit({"relu_1:2": 7.0}, live=True)
    assert torch.equal(output(edited), output(history.edit({"relu_1:2": 7.0})))


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.calls, self.last = 0, None

    def forward(self, x):
        self.seen, self.calls = self.seen + 1, self.calls + 1
        self.last = x * self.seen
        return self.last.sin()


def test_attributes_that_a_live_pass_sets_are_put_back_and_old_ones_are_told():
    model = Counting()
    history = tl.log_forward_pass(model, X)
    before = dict(vars(model)), dict(model._buffers)
    with pytest.warns(UserWarning, match="add_1_1 reads '\\w+', which holds something else"):
        history.edit({"sin_1": 0.0}, live=True)
    assert (dict(vars(model)), model._buffers) == before
    assert output(history.edit({"sin_1": lambda t: t * 2})).equal(X.sin() * 2)


def test_an_edit_that_draws_leaves_the_model_its_random_numbers():
    model = Dropping().train()
    history = tl.log_forward_pass(model, X)
    change = {"batchnorm_1": lambda t: t + 0 * torch.rand(5).sum()}
    assert torch.equal(output(history.edit(change, live=True)), output(history.edit(change)))


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return F.dropout(self.norm(x), 0.5, self.training) * 2


@BOTH_WAYS
def test_random_numbers_and_running_statistics_are_those_of_the_pass(live):
    model = Dropping().train()
    torch.manual_seed(3)
    history = tl.log_forward_pass(model, X)
    drawn, state = torch.get_rng_state(), {name: each.clone() for name, each in model.state_dict().items()}
    edited = history.edit({"batchnorm_1": lambda t: t * 1}, live=live)
    assert torch.equal(output(edited), output(history))
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(torch.equal(each, state[name]) for name, each in model.state_dict().items())


def test_a_live_pass_has_the_lines_of_the_model(network):
    history = tl.log_forward_pass(network, X)
    edited = history.edit({"linear_2": 0.0}, live=True)
    assert all(op.func_call_stack == history[op.label].func_call_stack for op in edited)


def test_a_model_that_is_gone_cannot_run_live():
    history = tl.log_forward_pass(nn.Linear(4, 4), X)
    assert torch.equal(output(history.edit({"linear_1": 0.0})), torch.zeros(3, 4))
    with pytest.raises(NotReplayableError, match="Linear or its inputs are no longer there"):
        history.edit({"linear_1": 0.0}, live=True)


def test_an_operation_that_another_way_leaves_out_is_told():
    model = Function(branches)
    history = tl.log_forward_pass(model, X + 1)
    with pytest.raises(NotReplayableError, match="sin_1_4 did not run in the edited pass"):
        history.edit({"mul_1": -1.0, "sin_1": 0.0}, live=True)


# -- attention -----------------------------------------------------------------------------------------------------

MASKS = {
    "none": {},
    "causal": {"is_causal": True},
    "hiding": {"attn_mask": torch.ones(5, 5, dtype=torch.bool).tril()},
    "added": {"attn_mask": torch.linspace(-1, 1, 25).reshape(5, 5)},
    "scaled": {"scale": 0.3},
    "blind": {"attn_mask": torch.tensor([[True] * 5, *[[False] * 5] * 4])},
    "grouped": {"enable_gqa": True, "is_causal": True},
}


@pytest.mark.parametrize("options", MASKS.values(), ids=MASKS)
def test_attention_is_opened(options):
    torch.manual_seed(0)
    query = torch.rand(2, 4, 5, 8)
    heads = 2 if "enable_gqa" in options else 4
    key, value = torch.rand(2, 2, heads, 5, 8)
    model = Function(lambda query: F.scaled_dot_product_attention(query, key, value, **options))
    history = tl.log_forward_pass(model, query)
    opened = history.edit(expand={"sdpa"})
    assert output(opened).allclose(output(history), atol=1e-6)
    difference = (output(opened) - output(history)).abs().max()
    assert opened.expansions == {"sdpa": f"outputs differ by at most {difference:.2g}"}
    assert not output(opened).isnan().any()
    without = history.edit({Part("softmax_1", head=1): 0.0}, expand={"sdpa"})
    assert torch.equal(output(without)[:, 0], output(opened)[:, 0])
    assert not output(without)[:, 1].any()


@pytest.mark.parametrize(
    ("after", "scale", "text"),
    [
        (lambda y: y.argmax(-1), 1, "outputs differ in 0 of 40 integers"),
        (lambda y: (y.argmax(-1) == 0, y), 0.0, "outputs differ by at most 0, in 0 of 40 integers"),
        (lambda y: y / y, 0.0, "outputs differ by at most 0"),  # NaN in both
    ],
)
def test_it_says_by_how_much_outputs_differ(after, scale, text):
    torch.manual_seed(0)
    model = Function(lambda query: after(F.scaled_dot_product_attention(query, query, query * scale)))
    assert tl.log_forward_pass(model, torch.rand(2, 4, 5, 8)).edit(expand={"sdpa"}).expansions == {"sdpa": text}


def test_opened_attention_of_half_does_not_overflow_and_a_difference_is_counted(monkeypatch):
    query = (torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(0)) * 80).half()
    assert (query @ query.mT).isinf().any()
    model = Function(lambda query: F.scaled_dot_product_attention(query, query, query))
    history = tl.log_forward_pass(model, query)
    opened = history.edit(expand={"sdpa"})
    assert output(opened).allclose(output(history), atol=0.1)
    assert "NaN" not in opened.expansions["sdpa"]
    monkeypatch.setattr(torch, "softmax", lambda scores, dim: scores * torch.nan)
    assert history.edit(expand={"sdpa"}).expansions == {
        "sdpa": "outputs differ by at most 0, in 256 places by NaN or infinity"
    }


def test_what_cannot_be_opened():
    history = tl.log_forward_pass(nn.Linear(4, 4), X)
    with pytest.raises(ValueError, match="nothing is known of 'sdp'; did you mean 'sdpa'"):
        history.edit(expand={"sdp"})
    with pytest.raises(ValueError, match="Linear calls no scaled_dot_product_attention in this pass"):
        history.edit(expand="sdpa")


# -- what does not fit ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edits", "error", "words"),
    [
        ({"linear_22": 0.0}, LookupKeyError, "'linear_2"),
        ({"output_1": 0.0}, ValueError, "output of the model, where nothing can start"),
        (
            {("linear_3", "output_1"): 0.0},
            LookupKeyError,
            "operation that reads linear_3_5, got 'output_1_6'",
        ),
        ({("linear_1", "linear_3"): 0.0}, LookupKeyError, "'linear_3' does not read linear_1_1; what does: "),
        ({("linear_1", "relu_1"): 0.0}, NotReplayableError, "relu_1_2 overwrites linear_1_1"),
        ({Part("linear_2")[:, 6]: 0.0}, ValueError, r"linear_2_3: \[:, 6\] does not fit shape \[3, 6\]"),
        ({Part("linear_2", hed=1): 0.0}, ValueError, "is called 'hed'; did you mean 'head'"),
        ({Part("linear_2", head=1): 0.0}, ValueError, "no dimension for head"),
        ({Part("linear_2", head=(0, 4)): 0.0}, ValueError, "6 features are not 4 heads of equal size"),
        ({Part("linear_2", head=(3, 3)): 0.0}, ValueError, "there is no head 3 of 3"),
        (
            {Part("linear_2", feature=1, head=(0, 2)): 0.0},
            ValueError,
            "head is a dimension of .* name has taken",
        ),
        ({Part("linear_2")[3:]: 0.0}, ValueError, r"nothing is at \[3:\]"),
        ({"linear_2": "zero"}, TypeError, "expected a number, a tensor or a function, got str"),
        ({Part("linear_2")[0]: "zero"}, TypeError, r"edit of linear_2_3 \[0\]: expected a number, a tensor or"),
        ({"linear_2": torch.zeros(6)}, ValueError, r"\[3, 6\] on cpu, got float32\[6\] on cpu; .expand\(3, 6\) makes"),
        ({"linear_2": torch.zeros(6).double()}, ValueError, r"; .expand\(3, 6\).to\(torch.float32\) makes it fit"),
        ({"linear_2": torch.zeros(3, 6).numpy()}, TypeError, "got ndarray; torch.as_tensor makes a tensor of it"),
        ({"linear_2": 1e39}, TypeError, r"edit of linear_2_3: 1e\+39 does not fit float32.*: its values go from -3.4"),
        ({Part("linear_2")[0]: -1e39}, TypeError, r"linear_2_3 \[0\]: -1e\+39 does not fit float32\[6\] on cpu: its"),
        (
            {"linear_2": nn.ReLU},
            TypeError,
            r"edit of linear_2_3: expected a function, got the class ReLU: give ReLU\(…\)",
        ),
        (
            {Part("linear_2", mask=torch.ones(6)): 0.0},
            TypeError,
            "expected a mask of booleans, such as mask > 0, got tor",
        ),
        ({"linear_2": 1j}, TypeError, "1j does not fit float32.*: give a real number"),
        ({Part("linear_2")[0]: torch.zeros(5)}, ValueError, r"expected float32\[6\] on cpu, got float32\[5\]"),
        ({"linear_2": lambda t: t.sum()}, ValueError, r"got float32\[\]"),
        ({"linear_2": 1.0, Part("linear_2")[0]: 0.0}, ValueError, r"edited twice: as a whole, and linear_2_3 \[0\]"),
        ({Part("linear_2")[0]: 1.0, Part("linear_2")[:, 0]: 0.0}, ValueError, "edited twice: name each element"),
        ({"linear_2": 1.0, 3: 0.0}, ValueError, "linear_2_3 is edited twice: as a whole, and by another key: name it"),
        ({Part("linear_2")["first"]: 1.0}, TypeError, "expected an index, or names such as .*, got 'first'"),
        ({}, ValueError, "expected one edit or more"),
        ([("linear_2", 0.0)], TypeError, "expected a mapping from keys to changes, got list"),
    ],
)
def test_what_does_not_fit_is_named(network, edits, error, words):
    history = tl.log_forward_pass(network, X)
    with pytest.raises(error, match=words):
        history.edit(edits)


@BOTH_WAYS
def test_numbers_that_do_not_fit_whole_numbers_and_masks_are_named(live):
    model = Function(lambda x: torch.where(x > 0, x.long() + 1, 0))
    history = tl.log_forward_pass(model, X)
    for key, number, words in [
        ("add_1", 0.5, "give a whole number"),
        ("add_1", 2**70, "its values go from -9223372036854775808 to 9223372036854775807"),
        ("gt_1", 1, "give True or False"),
    ]:
        with pytest.raises(TypeError, match=words):
            history.edit({key: number}, live=live)
    edited = history.edit({"gt_1": True, Part("add_1")[0]: np.int64(7)}, live=live)
    assert torch.equal(output(edited), torch.cat([torch.full((1, 4), 7), X[1:].long() + 1]))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="notes of exceptions")
def test_an_error_of_a_function_has_the_edit_as_a_note(network):
    history = tl.log_forward_pass(network, X)
    with pytest.raises(TypeError, match="hook") as caught:
        history.edit({Part("linear_2")[0]: lambda tensor, hook: tensor})
    assert caught.value.__notes__ == ["edit of linear_2_3 [0]: its function raised this, called with float32[6] on cpu"]


def test_other_arguments_that_do_not_fit_are_named(network):
    history = tl.log_forward_pass(network, X)
    with pytest.raises(LookupKeyError, match=r"no parameter or buffer '2.wieght'; did you mean '2.weight'"):
        history.edit(parameters={"2.wieght": 0.0})
    with pytest.raises(LookupKeyError, match="read no tensor 'y'; there are: input"):
        history.edit(inputs={"y": X})
    for key in (("linear_2", (0, 1)), Part("linear_2")[0, 1]):  # at= is the index of keys that have none
        assert history.edit({key: 0.0}, at=1).edits[0].place == "linear_2_3 [0, 1]"
    for option in ("live", "check_decisions"):
        with pytest.raises(TypeError, match=f"edit: {option}: expected True or False, got 'no'"):
            history.edit({"linear_2": 0.0}, **{option: "no"})
    assert torch.equal(output(edit(history, {"linear_2": 0.0})), output(history.edit({"linear_2": 0.0})))
    other = tl.log_forward_pass(network, X, layers_to_save=["linear_1"])
    with pytest.raises(ValueError, match="the activation linear_2_3 was not saved"):
        history.edit({"linear_2": other["linear_2"]})
