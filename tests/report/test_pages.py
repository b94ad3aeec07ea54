from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from dataclasses import replace

import pytest

from pytest_torchlens.baseline.wording import comparison_text
from pytest_torchlens.records import AuditFinding
from pytest_torchlens.records import AuditPlace
from pytest_torchlens.records import Change
from pytest_torchlens.records import Comparison
from pytest_torchlens.records import Finding
from pytest_torchlens.records import Growth
from pytest_torchlens.records import Outcome
from pytest_torchlens.records import OutputsComparison
from pytest_torchlens.records import Severity
from pytest_torchlens.records import Stage
from pytest_torchlens.report import page_path
from pytest_torchlens.report import pages
from pytest_torchlens.report import save_drawing
from pytest_torchlens.report import write_site
from pytest_torchlens.report.drawings import read_views
from pytest_torchlens.report.layer_table import Costs
from pytest_torchlens.report.layer_table import details
from pytest_torchlens.report.layer_table import flames
from pytest_torchlens.report.layer_table import module_tree
from pytest_torchlens.report.pages import Pages
from tests.draw.samples import Sketch
from tests.draw.samples import transformer
from tests.draw.test_folds import chain
from tests.draw.test_rolled import cell
from tests.report.html_page import Page
from tests.report.samples import audited
from tests.report.samples import measured
from tests.report.samples import passed
from tests.report.samples import raised
from tests.report.samples import refuted
from tests.report.samples import run

HOSTILE = """<script>alert(1)</script><img src=x onerror="alert(2)">'"&{{ 7 * 7 }}</style>"""


def model_page(report, tmp_path, *, drawn=True):
    if drawn:
        report = save_drawing(report, tmp_path)
    return Page(Pages(run(report)).model(report, read_views(report, tmp_path)[0]))


def hostile_report():
    net = Sketch(HOSTILE)
    net.module(HOSTILE, HOSTILE)
    x = net.op("input", source_line=HOSTILE)
    net.op(HOSTILE, x, inside=(HOSTILE,), source_line=HOSTILE, containing_module_origin=HOSTILE)
    place = AuditPlace(operation=HOSTILE, module=HOSTILE, source_line=HOSTILE, detail=HOSTILE)
    found = AuditFinding(rule=HOSTILE, severity=Severity.HIGH, title=HOSTILE, places=(place,), num_places=1)
    texts = {"nodeid": HOSTILE, "weights": HOSTILE, "inputs": (HOSTILE,), "notes": (HOSTILE,), "findings": (found,)}
    return replace(passed(HOSTILE, zoo=HOSTILE, history=net.record()), **texts)


def test_a_page_tells_what_was_found(tmp_path):
    words = model_page(passed(), tmp_path).words
    for text in (
        "alexnet",
        "✓ passed",
        "parameters 61,100,840 233.1 MB",
        "operations 24",
        "forward pass 12.3 ms median of 5",
        "inputs x: float32[1, 3, 224, 224]",
        "24 activations checked",
        "3 exempt",
        "2 comparison: the result stayed the same",
        "completeness ○ not-run needs torch 2.6 or later",
        "CPU capability AVX512",
        "pytest --lens-zoo torchvision:alexnet",
    ):
        assert text in words


def test_a_page_has_a_row_for_each_layer_and_the_graph_leads_to_it(tmp_path):
    page = model_page(passed(), tmp_path)
    rows = [id_ for id_ in page.ids if id_.startswith("row-")]
    assert len(rows) == 24
    links = {link.removeprefix("#") for link in page.values("a", "href") if link.startswith("#")}
    assert links <= set(page.ids) | {"main"}
    assert set(rows) <= links


def test_a_page_names_a_few_steps_in_the_table_and_all_beside_the_graph(tmp_path):
    net, steps = Sketch("Net"), ("linear", "tanh", "linear", *["add"] * 200)
    net.op("output", net.op("vmap", net.op("input"), steps=steps))
    report = save_drawing(passed("steps", history=net.record()), tmp_path)
    views, _ = read_views(report, tmp_path)
    page = Page(Pages(run(report)).model(report, views))
    assert "203 steps: linear, tanh, linear and 200 more" in page.words
    assert ", ".join(steps) in page.values("small", "title")
    layers = details(report, Costs(report.history))["layers"]
    assert ["steps inside", ", ".join(steps)] in [list(fact) for fact in layers["row-vmap_1_1"]["facts"]]
    assert "steps inside" not in dict(layers["row-input_1_0"]["facts"])


def test_a_page_tells_of_findings_with_their_places(tmp_path):
    page = model_page(audited(), tmp_path)
    for text in (
        "Audit What this pass shows that may be a mistake, or costs more than it need: 1 high, 1 medium.",
        "high An activation holds NaN 1 place From here on nothing means anything. What to do: Bound what goes in.",
        "conv2d_2_4 features.3 2 % /zoo/net.py:48, in forward",
        "aux 2 parameters of 90 elements /zoo/net.py:12, in forward",
        "and at 3 more places",
    ):
        assert text in page.words
    assert "row-conv2d_2_4" in page.values("a", "data-node")


def test_a_page_tells_that_the_audit_found_nothing_only_where_it_looked(tmp_path):
    nothing = "Nothing in this pass looks like a mistake"
    assert nothing in model_page(passed(), tmp_path).text
    assert nothing not in model_page(audited(), tmp_path).text
    for unaudited in (replace(passed(), stage=Stage.DRAW), raised()):
        assert "audit" not in model_page(unaudited, tmp_path).ids


def test_the_index_counts_findings_where_there_are_some():
    words = Page(Pages(run(audited(), passed())).index()).words
    assert "Audit" in words
    assert "1 high, 1 medium" in words
    assert "Audit" not in Page(Pages(run(passed())).index()).words


def test_ids_are_unique_and_tags_balanced(tmp_path):
    page = model_page(refuted(), tmp_path)
    assert len(page.ids) == len(set(page.ids))
    assert page.open == []


def test_a_refuted_page_tells_what_broke_where_and_what_to_do(tmp_path):
    words = model_page(refuted(), tmp_path).words
    assert "Failed in replay at conv2d_2_4 replay gave other values" in words
    assert "where conv2d_2_4, zoo/net.py:48, in forward" in words
    assert "what to do set model.counter = 0" in words
    assert "and 13 more" in words


def test_a_page_of_a_model_that_raised_has_its_traceback(tmp_path):
    page = model_page(raised(), tmp_path, drawn=False)
    assert "Failed in forward RuntimeError: mat1 and mat2 shapes" in page.words
    assert "return self.linear(x)" in page.words
    assert "graph" not in page.ids
    assert "layers" not in page.ids


@pytest.mark.parametrize("which", ["model", "index"])
def test_hostile_names_make_no_tag(which, tmp_path):
    report = hostile_report()
    harmless = replace(audited("harmless"), zoo="own", history=report.history)
    if which == "index":
        page, plain = (Page(Pages(run(each)).index()) for each in (report, harmless))
    else:
        page, plain = model_page(report, tmp_path), model_page(harmless, tmp_path)
    assert {tag for tag, _ in page.tags} <= {tag for tag, _ in plain.tags} | {"code"}
    assert "img" not in {tag for tag, _ in page.tags}
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]
    assert page.raw["style"] == plain.raw["style"]
    assert page.raw["script"][-1] == plain.raw["script"][-1]
    assert all(re.fullmatch(r"[A-Za-z0-9+/=]*", text) for text in page.raw["script"][:-1])
    assert "{{ 7 * 7 }}" in page.text
    assert page.open == []


@pytest.mark.parametrize("which", ["model", "index"])
def test_the_policy_allows_our_own_style_and_script_and_nothing_else(which, tmp_path):
    page = model_page(passed(), tmp_path) if which == "model" else Page(Pages(run(passed())).index())
    policy = dict(part.split(" ", 1) for part in page.values("meta", "content")[0].split("; "))
    assert policy["default-src"] == "'none'"
    for kind in ("style", "script"):
        text = page.raw[kind][-1]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy[f"{kind}-src"].split()
        assert all(word.startswith("'sha256-") for word in policy[f"{kind}-src"].split())
    assert not [attrs for _, attrs in page.tags if "style" in attrs]


def test_nothing_is_fetched(tmp_path):
    page = model_page(passed(), tmp_path)
    assert not {"img", "link", "iframe", "object", "embed"} & {tag for tag, _ in page.tags}
    assert not [attrs for _, attrs in page.tags if "src" in attrs]
    assert not [link for link in page.values("a", "href") if "//" in link]


def test_a_verdict_is_told_in_words_not_by_colour_alone(tmp_path):
    for report, word in ((passed(), "✓ passed"), (refuted(), "✕ failed"), (raised(), "✕ failed")):
        assert word in Page(Pages(run(report)).index()).words


def test_the_index_links_to_every_page_and_counts():
    models = [passed("b"), passed("a/b"), refuted(), replace(passed("c"), outcome=Outcome.SKIPPED)]
    page = Page(Pages(run(*models)).index())
    assert "✕ 1 failed ✓ 2 passed ○ 1 skipped" in page.words
    assert "models/torchvision/b.html" in page.values("a", "href")
    assert "replay at conv2d_2_4" in page.words


def test_the_index_has_totals_and_costs_where_they_were_measured():
    plain = Page(Pages(run(passed(), refuted())).index())
    assert "In all: 2 models, 122.2M params, 48 operations, 9.6 MB of activations, 48 operations checked" in plain.words
    assert "FLOPs" not in plain.words
    page = Page(Pages(run(passed(), measured())).index())
    assert "FLOPs Peak memory Activations" in page.words
    assert "4.0M 28.6 MB 4.8 MB" in page.words


def test_the_index_counts_models_by_the_words_that_narrow_it():
    page = Pages(run(refuted(), passed(), audited())).index()
    words = re.findall(r'<button type="button" class="badge (\S+)".*?</span> (\d+) ', page)
    assert words[0] == ("failed", "1")
    assert {word for word, _ in words} >= {"failed", "passed"}
    assert 'data-is="failed' in page.split("<tbody>")[1].split("</tr>")[0]
    assert "<button" not in Pages(run(passed())).index().split("<table")[0]


def test_an_index_of_no_models():
    assert "No model ran." in Page(Pages(run()).index()).words


def test_a_page_without_its_drawings_says_so(tmp_path):
    report = save_drawing(passed(), tmp_path)
    page = tmp_path / page_path(report)
    views = page.with_suffix(".views.json")
    for damage, said in (("{", "alexnet.views.json is damaged"), (None, "alexnet.views.json is not in the report's")):
        views.write_text(damage, encoding="utf-8") if damage else views.unlink()
        write_site(run(report), [report], tmp_path)
        assert said in Page(page.read_text(encoding="utf-8")).words


def unpacked(page, key):
    """Return one of the page's packed blocks."""
    texts = dict(zip([attrs.get("id") for tag, attrs in page.tags if tag == "script"], page.raw["script"], strict=True))
    return gzip.decompress(base64.b64decode(texts[key])).decode()


def test_a_page_has_a_fold_of_each_module(tmp_path):
    (kind, folds), *others = json.loads(unpacked(model_page(passed(), tmp_path), "folds")).items()
    assert (kind, others) == ("unrolled", [])
    nodes = {fold["id"]: [node[0] for node in fold["nodes"]] for fold in folds}
    assert list(nodes) == ["", "module-features", "module-classifier"]
    assert {"op-input_1_0", "module-features", "module-classifier", "op-output_1_23"} <= set(nodes[""])
    assert "op-linear_3_22" in nodes["module-classifier"]
    assert "op-conv2d_1_1" not in nodes["module-classifier"]


def test_a_recurrent_model_has_a_rolled_graph_too(tmp_path):
    page = model_page(passed(history=cell()), tmp_path)
    kinds = json.loads(unpacked(page, "folds"))
    ids = {kind: [fold["id"] for fold in folds] for kind, folds in kinds.items()}
    assert ids == {
        "unrolled": ["", "module-cell.1", "module-cell.2", "module-cell.3"],
        "rolled": ["", "module-cell"],
    }
    assert {"unrolled", "rolled"} <= set(page.values("option", "value"))
    modules = json.loads(unpacked(page, "details"))["modules"]
    assert [told["nodes"][:2] for told in modules.values()] == [[f"module-cell.{n}", "module-cell"] for n in (1, 2, 3)]


def test_a_measured_page_has_costs_peak_curves_and_bars(tmp_path):
    page = model_page(measured(), tmp_path)
    for text in (
        "FLOPs 4.0M",
        "peak memory 28.6 MB beside model and input; measured 29.6 MB",
        "Time by kind of operation",
        "Time by module",
        "live_bytes computed from storages and last uses",
    ):
        assert text in page.words
    curves = json.loads(unpacked(page, "charts"))
    assert list(curves) == ["memory", "values", "shares"]
    assert curves["memory"]["series"]["alive"][0] == 30_000_000
    assert curves["values"]["series"]["max"][:2] == [None, 1.0]
    assert curves["memory"]["rows"][1] == "row-conv2d_1_1"
    known = json.loads(unpacked(page, "details"))
    assert ["FLOPs", "17.0M"] in known["layers"]["row-linear_1_17"]["facts"]
    assert known["layers"]["row-flatten_1_15"]["code"] == ">   50 x = torch.flatten(x, 1)"
    assert ["time", "2 s"] in known["modules"]["module-features"]["facts"]
    assert known["layers"]["row-linear_1_17"]["numbers"] == {"memory": 16384, "time": 0.0017, "flops": 17_000_000}


def test_the_flame_chart_puts_modules_below_the_one_around_them():
    costs = Costs(transformer(3))
    bars = {flame.branch.module.address: flame for flame in flames(costs, module_tree(costs))}
    inside = [bars[f"blocks.{block}"] for block in range(3)]
    around = bars["blocks"]
    assert [bar.branch.level for bar in (bars[""], around, *inside)] == [0, 1, 2, 2, 2]
    assert bars[""].branch.share == pytest.approx(1)
    for bar, after in zip(inside, [*inside[1:], None], strict=True):
        end = bar.x + bar.branch.share
        assert around.x <= bar.x < end <= around.x + around.branch.share + 1e-9
        assert after is None or after.x == pytest.approx(end)


def test_a_page_knows_all_of_a_layer_and_where_it_is_drawn(tmp_path):
    known = json.loads(unpacked(model_page(passed(), tmp_path), "details"))
    layer = known["layers"]["row-linear_1_17"]
    assert layer["label"] == "linear_1_17"
    assert layer["nodes"] == ["op-linear_1_17"]
    assert known["modules"]["module-classifier-2e-1"]["nodes"][2] == "op-linear_1_17"
    assert ["size", "16.0 KB"] in layer["facts"]
    assert layer["from"] == [["dropout_1_16", "row-dropout_1_16"]]
    assert layer["to"] == [["relu_6_18", "row-relu_6_18"]]


def test_rows_beyond_the_limit_are_left_out_and_that_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(pages, "MAX_ROWS", 10)
    page = model_page(passed(), tmp_path)
    assert len([id_ for id_ in page.ids if id_.startswith("row-")]) == 10
    assert "the table shows the first 10 of 24 tensors; the JSON file has all" in page.words


@pytest.mark.parametrize("history", [transformer(176), chain(3000)], ids=["transformer", "chain"])
def test_a_page_of_3000_operations_is_below_1_5_megabytes(tmp_path, history):
    assert len(history.operations) > 2_900
    report = save_drawing(passed(history=history), tmp_path)
    text = Pages(run(report)).model(report, read_views(report, tmp_path)[0])
    assert len(text.encode()) < 1_500_000


def test_a_long_table_and_a_large_tree_are_packed(tmp_path):
    page = model_page(passed(history=transformer(60)), tmp_path)
    assert not [id_ for id_ in page.ids if id_.startswith("row-")]
    assert 'id="row-softmax_7_' in unpacked(page, "layer-table-rows")
    assert "<b>blocks.59</b>" in unpacked(page, "tree-html")


def test_an_index_of_1500_models_is_below_2_megabytes():
    assert len(Pages(run(*[passed()] * 1500)).index().encode()) < 2_000_000


@pytest.mark.parametrize(
    ("comparison", "said", "command"),
    [
        (Comparison(verdict=Change.NEW), "Baseline ○ new It has no baseline yet, so nothing was compared.", True),
        (Comparison(verdict=Change.NEW, stored="a.json", notes=("stored: a.json",)), "○ new stored: a.json", False),
        (Comparison(verdict=Change.LOCAL_CHANGE), "Baseline ○ local-change", True),
        (Comparison(verdict=Change.LOCAL_CHANGE, against="old (torch 2.9.1)"), "Baseline ○ local-change", False),
        (Comparison(verdict=Change.IDENTICAL), "Baseline ✓ identical", False),
    ],
)
def test_a_page_says_what_a_comparison_without_a_failure_is(tmp_path, comparison, said, command):
    report = replace(passed("a[b]"), comparison=comparison)
    page = model_page(report, tmp_path)
    assert said in page.words
    accept = "This result waits to be accepted: pytest-lens accept torchvision/a-b-"
    assert (accept in page.words) == command
    assert '<a href="#baseline">' in Pages(run(report)).model(report, read_views(report, tmp_path)[0])
    word = comparison.verdict.value
    assert (f"baseline: {word}" in Page(Pages(run(report)).index()).words) == (word != "identical")


def test_a_page_tells_what_differs_from_the_baseline(tmp_path):
    finding = Finding(
        change=Change.REGRESSION,
        operation="features.3/conv2d",
        message="was 1.0 and is 1.5",
        source_line="net.py:4, in forward",
        error=0.5,
        limit=0.001,
    )
    comparison = Comparison(
        verdict=Change.REGRESSION,
        fails=True,
        baseline="lens_baselines/torchvision/alexnet.json, cpu",
        axes=("torch 2.13.0 → 2.14.1",),
        counts={"regression": 1, "propagated": 9},
        findings=(finding,),
        growth=(Growth(operation="features.4/relu", error=0.25, nrms=0.1),),
        outputs=OutputsComparison(operation="/output", error=0.25, nrms=0.125, limit=2e-05),
        notes=("buffers were not compared",),
    )
    words = model_page(replace(passed(), comparison=comparison), tmp_path).words
    for text in (
        "Baseline ✕ regression",
        "differs in torch 2.13.0 → 2.14.1",
        "propagated 9 operations",
        "regression features.3/conv2d was 1.0 and is 1.5 (error 0.5 of 0.001 allowed)",
        "features.4/relu 0.25",
        "outputs differ by 0.25 of the largest value (limit 2e-05), RMS 0.12 at /output",
        "buffers were not compared",
        "To reproduce with torch alone: pytest-lens repro torchvision:alexnet --against=PYTHON",
    ):
        assert text in words
    against = replace(comparison, against="../old/bin/python")
    in_terminal = comparison_text(against, "alexnet", "a-key", repro="torchvision:alexnet")
    command = "pytest-lens repro torchvision:alexnet --against=../old/bin/python"
    assert f"to reproduce: {command}\n" in f"{in_terminal}\n"
    assert command in model_page(replace(passed(), comparison=against), tmp_path).words
    for other in (replace(comparison, fails=False), replace(comparison, verdict=Change.STRUCTURE, findings=())):
        assert "To reproduce" not in model_page(replace(passed(), comparison=other), tmp_path).words
