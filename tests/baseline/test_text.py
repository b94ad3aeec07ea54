from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pytest_torchlens.baseline.compare import compare
from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.baseline.snapshot_file import BaselineError
from pytest_torchlens.baseline.snapshot_file import parse_snapshot
from pytest_torchlens.baseline.snapshot_file import read
from pytest_torchlens.baseline.snapshot_file import to_text
from pytest_torchlens.records import Change
from tests.baseline.samples import Small
from tests.baseline.samples import an_input
from tests.baseline.samples import filled
from tests.baseline.samples import snapshot_of


@pytest.fixture(scope="module")
def snapshot() -> Snapshot:
    return snapshot_of(filled(Small()), an_input(2, 3, 8, 8))


class Odd(nn.Module):
    def forward(self, x):
        values, places = x.sort()
        views = x.t()[1:], torch.view_as_complex(x.reshape(-1, 2))
        nan = torch.log(x - 1)
        return values, places, *views, nan, x.double() * 1e300 * 1e300, x.to_sparse(), torch.empty(0)


def test_a_snapshot_comes_back_from_its_text(snapshot):
    text = to_text(snapshot)
    back = parse_snapshot(text)
    assert back == snapshot
    assert to_text(back) == text


def test_what_is_odd_comes_back_too():
    text = to_text(snapshot_of(Odd(), an_input(4, 4)))
    assert to_text(parse_snapshot(text)) == text


@pytest.mark.parametrize(("odd", "escaped"), [("a\ud800", "a\\ud800"), ("a\x1b[31m", "a\\x1b[31m"), ("a\nb", "a\\nb")])
def test_odd_characters_in_a_name_are_escaped(odd, escaped, tmp_path):
    model = nn.Sequential(OrderedDict({odd: nn.Linear(2, 2)}))
    found = snapshot_of(model, an_input(2))
    (tmp_path / "model.json").write_text(to_text(found), encoding="utf-8")
    back = read(tmp_path / "model.json")
    assert list(back.calls) == [escaped]
    assert f"{escaped}.weight" in back.state
    assert [edge.parent for edge in back.steps[1].reads] == [f"{escaped}.weight", f"{escaped}.bias"]
    assert compare(back, found).verdict is Change.IDENTICAL


def test_the_text_is_the_same_each_time_and_names_no_path(snapshot):
    text = to_text(snapshot)
    assert to_text(snapshot_of(filled(Small()), an_input(2, 3, 8, 8))) == text
    assert str(Path(__file__).parent) not in text


def test_an_operation_is_one_line_and_says_all_but_its_numbers(snapshot):
    line = next(line for line in to_text(snapshot).splitlines() if line.startswith('{"id":"norm/batchnorm"'))
    step = json.loads(line.rstrip(","))
    assert step["in"] == ["0=^"]
    assert step["reads"] == ["1=.running_mean", "2=.running_var", "weight=.weight", "bias=.bias"]
    assert step["args"] == ["training=False", "momentum=0.1", "eps=1e-05"]
    assert step["out"] == "float32[2,8,8,8]"


def test_an_added_operation_changes_no_line_of_others(snapshot):
    class More(Small):
        def forward(self, x):
            return super().forward(x.clone())

    before = set(to_text(snapshot).splitlines())
    after = set(to_text(snapshot_of(filled(More()), an_input(2, 3, 8, 8))).splitlines())
    assert len(before - after) <= 3  # model, totals, the operation that reads the new one


def _damaged(text: str, change: Any) -> str:
    raw = json.loads(text)
    change(raw)
    return json.dumps(raw)


def _block(raw: Any) -> Any:
    return next(iter(raw["measured"].values()))


DAMAGE = {
    "lacks 'steps'": lambda raw: raw.pop("steps"),
    "has an unknown 'extra'": lambda raw: raw.update(extra=1),
    "expected the format .*, got 'other'": lambda raw: raw.update(format="other"),
    "expected version 1 to 2, got 3": lambda raw: raw.update(version=3),
    "expected version 1 to 2, got True": lambda raw: raw.update(version=True),
    "expected int": lambda raw: raw["totals"].update(operations="7"),
    "expected a 62-bit number": lambda raw: raw["totals"].update(operations=2**80),
    "expected 0 or more, got -5": lambda raw: raw["totals"].update(peak_bytes=-5),
    "expected 0 or more, got -8": lambda raw: raw["steps"][1].update(out="float32[1,-8]"),
    "'conv/conv2d' has the parent 'conv/conv2d', which is not an earlier step": lambda raw: raw["steps"][1].update(
        {"in": ["0=conv/conv2d"]}
    ),
    "has the parent '/output', which is not": lambda raw: raw["steps"][1].update({"in": ["0=/output"]}),
    "'model': .* has a character": lambda raw: raw.update(model="\x1b[31mNet"),
    "'a name': .* has a character": lambda raw: raw["totals"].update({"a\ud800": 1}),
    "'environment': .* has a character": lambda raw: _block(raw)["environment"].update(packages={"x": "1\n"}),
    "two steps have the same id": lambda raw: raw["steps"].append(raw["steps"][0]),
    "inside itself": lambda raw: raw["calls"].update(conv=["conv", "Conv2d"]),
    "not a module call": lambda raw: raw["calls"].pop("conv"),
    "expected a dtype and shape": lambda raw: raw["steps"][0].update(out="float32[1;2]"),
    "has an unknown 'code'": lambda raw: raw["steps"][0].update(code="x"),
    "expected ARGUMENT=NAME, got 'x'": lambda raw: raw["steps"][1].update({"in": ["x"]}),
    "expected a digest, got '<script>'": lambda raw: raw["state"].update(a=["float32[1]", "<script>"]),
    "numbers of 'none'": lambda raw: _block(raw)["numbers"].update(none={}),
    "statistics cannot be read: expected a number, got 'x'": lambda raw: _block(raw)["numbers"].update(
        {"/input": {"rms": "x"}}
    ),
    "'/input' has an unknown 'median'": lambda raw: _block(raw)["numbers"].update({"/input": {"median": 1}}),
    "'/input' has statistics, and no digest": lambda raw: _block(raw)["sketches"].__setitem__(0, None),
    "'/input': its digest and sketch cannot be read": lambda raw: _block(raw)["sketches"].__setitem__(
        0, "AAAAAAAAAAAA"
    ),
    "'/output': its digest and sketch cannot be read": lambda raw: _block(raw)["sketches"].__setitem__(-1, "AAA"),
    "'sketches': expected one for each of 11 steps, got 10": lambda raw: _block(raw)["sketches"].pop(),
    "got 'evil'": lambda raw: _block(raw)["environment"].update(evil=1),
}


@pytest.mark.parametrize("reason", DAMAGE)
def test_a_file_that_is_not_as_we_write_it_is_refused(reason, snapshot, tmp_path):
    file = tmp_path / "model.json"
    file.write_text(_damaged(to_text(snapshot), DAMAGE[reason]), encoding="utf-8")
    with pytest.raises(BaselineError, match=reason) as error:
        read(file)
    assert str(file) in str(error.value)


@pytest.mark.parametrize(
    "text", ["", "{}", "[" * 100_000, '{"format": NaN}', '{"format": 1, "format": 2}', "null", '"x"', "\ud800"]
)
def test_no_text_leads_to_anything_but_a_clear_refusal(text, tmp_path):
    file = tmp_path / "model.json"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(BaselineError, match=r"model\.json"):
        read(file)


def test_a_file_that_is_not_there_or_too_large_is_named(tmp_path, monkeypatch):
    with pytest.raises(BaselineError, match=r"none\.json cannot be read"):
        read(tmp_path / "none.json")
    monkeypatch.setattr("pytest_torchlens.baseline.snapshot_file.LARGEST", 10)
    (tmp_path / "large.json").write_text("x" * 11)
    with pytest.raises(BaselineError, match=r"large\.json: expected a baseline of at most"):
        read(tmp_path / "large.json")
