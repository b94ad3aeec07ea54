"""Pages in a real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pytest_torchlens.records import ModelReport
from pytest_torchlens.report import page_path
from pytest_torchlens.report import save_drawing
from pytest_torchlens.report import write_site
from tests.draw.samples import alexnet
from tests.draw.samples import transformer
from tests.draw.test_folds import chain
from tests.draw.test_rolled import cell
from tests.report.samples import HOSTILE
from tests.report.samples import audited
from tests.report.samples import changed
from tests.report.samples import hostile_history
from tests.report.samples import measured
from tests.report.samples import passed
from tests.report.samples import raised
from tests.report.samples import refuted
from tests.report.samples import run
from tests.report.samples import shares

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    hostile = [passed(name, zoo=name, history=hostile_history()) for name in HOSTILE]
    long, many = passed("long", history=transformer(88)), passed("chain", history=chain(3000))
    models = [passed(), measured(), audited(), refuted(), raised(), changed(), long, many, *hostile]
    models += [passed("cell", history=cell()), *map(shares, (0.0, 0.5, 1.0))]
    drawn = [save_drawing(model, folder) for model in models]
    write_site(run(*drawn), drawn, folder)
    return folder


@pytest.fixture
def visit(browser, site):
    """Open a page, and say at the end what it asked for or complained about."""
    requests, complaints, contexts = [], [], []

    def open_(report: ModelReport | None = None, fragment: str = "", script: str = "", **context):
        contexts.append(browser.new_context(viewport={"width": 1280, "height": 900}, **context))
        contexts[-1].add_init_script(script)
        page = contexts[-1].new_page()
        page.set_default_timeout(10_000)
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        path = site / (page_path(report) if report else "index.html")
        page.goto(path.as_uri() + fragment)
        if report and report.history:
            page.wait_for_selector(".drawing[data-shown]")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert complaints == []
    assert all(url.startswith("file://") for url in requests)
    assert len(requests) == len(contexts)


def wait_until(page, expression, arg=None):
    """Ask again until it holds; Playwright's own waits evaluate text in the page, which the page forbids."""
    for _ in range(200):
        if page.evaluate(expression, arg):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never true within 10 s: {expression}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_table_of_models_is_whole_on_a_wide_screen_and_shows_that_it_scrolls_on_others(visit, scheme):
    page = visit(color_scheme=scheme)
    page.set_viewport_size({"width": 1400, "height": 900})
    hidden = "document.querySelector('.scroll').scrollWidth - document.querySelector('.scroll').clientWidth"
    assert page.evaluate(hidden) <= 0
    page.set_viewport_size({"width": 1000, "height": 900})
    assert page.evaluate(hidden) > 0
    assert page.evaluate("document.documentElement.scrollWidth") == 1000
    assert "gradient" in page.evaluate("getComputedStyle(document.querySelector('.scroll')).backgroundImage")


def panel(page):
    return page.inner_text("#panel")


def test_search_finds_a_layer_and_tells_of_it(visit):
    page = visit(passed())
    page.fill("#find", "conv2d_3")
    assert page.inner_text("#num-found") == "1 found"
    page.keyboard.press("Enter")
    page.wait_for_selector("#op-conv2d_3_7.chosen")
    assert "1x384x13x13, float32 on cpu" in panel(page)


def test_a_finding_leads_to_its_operation(visit):
    page = visit(audited())
    assert page.is_visible("#audit >> text=Bound what goes in.")
    assert not page.is_visible("#audit >> text=Remove it.")
    page.click("#audit summary >> text=A module is never used")
    assert page.is_visible("#audit >> text=Remove it.")
    page.click("#audit a:text('conv2d_2_4')")
    page.wait_for_selector("#op-conv2d_2_4.chosen")
    assert panel(page).startswith("conv2d_2_4")


def test_search_finds_modules_shapes_and_nothing(visit):
    page = visit(passed())
    page.fill("#find", "classifier.6")
    assert "linear_3_22" in page.inner_text("#found")
    page.fill("#find", "no such thing")
    assert page.inner_text("#num-found") == "0 found"


def test_a_click_on_a_node_tells_of_it_and_its_neighbours_are_one_click_away(visit):
    page = visit(passed())
    page.click("#op-linear_3_22")
    assert panel(page).startswith("linear_3_22")
    page.click("#panel button:text('relu_7_21')")
    page.wait_for_selector("#op-relu_7_21.chosen")
    assert panel(page).startswith("relu_7_21")


def show(page, level):
    page.select_option("#view", str(level))
    page.wait_for_selector(f".drawing[data-shown='{level}']")


def test_a_module_unfolds_in_its_place_and_folds_again(visit):
    page = visit(passed())
    show(page, 0)
    assert page.locator("#op-conv2d_1_1").count() == 0
    page.click("#module-features .toggle")
    assert page.locator("#op-conv2d_1_1").count() == 1
    assert page.locator("#op-linear_3_22").count() == 0
    box, inner = (page.locator(one).bounding_box() for one in ("#module-features > rect", "#op-conv2d_1_1"))
    assert box["x"] <= inner["x"] <= inner["x"] + inner["width"] <= box["x"] + box["width"]
    assert page.input_value("#view") == "own"
    page.click("#module-features .toggle")
    assert page.locator("#op-conv2d_1_1").count() == 0


def test_unfolded_modules_cover_nothing(visit):
    page = visit(passed("long", history=transformer(88)))
    show(page, 0)
    for _ in range(2):
        page.locator("g.node.module .toggle").first.click()
    places = "[...document.querySelectorAll('.drawing .node')].map((node) => node.getBoundingClientRect().toJSON())"
    boxes = page.evaluate(places)
    assert len(boxes) > 10
    for index, one in enumerate(boxes):
        for other in boxes[index + 1 :]:
            apart_x = (
                one["right"] <= other["left"] + 12 or other["right"] <= one["left"] + 12
            )  # signs to unfold stick out
            assert apart_x or one["bottom"] <= other["top"] + 1 or other["bottom"] <= one["top"] + 1


def test_a_module_is_unfolded_from_the_panel_and_by_a_double_click(visit):
    page = visit(passed())
    show(page, 0)
    page.click("#module-features")
    assert "Sequential" in panel(page)
    page.click("#panel button:text('Fold or unfold')")
    assert page.locator("#op-conv2d_1_1").count() == 1
    show(page, 0)
    page.dblclick("#module-classifier", position={"x": 20, "y": 20})
    assert page.locator("#op-linear_3_22").count() == 1


def test_what_is_folded_is_found_and_all_that_match_are_marked(visit):
    page = visit(passed("long", history=transformer(88)))
    show(page, 0)
    page.fill("#find", "softmax_7_")
    assert page.locator("g.holds").count() == 1
    page.keyboard.press("Enter")
    page.wait_for_selector("g.node.chosen.match")
    assert page.locator("g.node.chosen").get_attribute("id").startswith("op-softmax_7_")
    assert panel(page).startswith("softmax_7_")


@pytest.mark.parametrize(("words", "id_"), [("@classifier", "module-classifier"), ("classifier.6", "op-linear_3_22")])
def test_find_marks_modules_as_it_does_operations(visit, words, id_):
    page = visit(passed())
    page.fill("#find", words)
    page.keyboard.press("Enter")
    page.wait_for_selector(f"#{id_}.chosen")
    box, frame = (page.locator(one).bounding_box() for one in (f"#{id_}", ".drawing"))
    assert frame["y"] - 1 <= box["y"] + box["height"] / 2 <= frame["y"] + frame["height"] + 1


def test_all_operations_are_all_and_inputs_and_outputs_are_found(visit):
    page = visit(passed("chain", history=chain(3000)))
    assert page.locator("g.node").count() <= 60
    option = page.locator("#view option", has_text="All operations")
    assert option.inner_text() == "All operations: 3,002 nodes"
    for kind in ("inputs", "outputs"):
        page.click(f"[data-zoom={kind}]")
        node = page.locator(f".node.{kind.removesuffix('s')}").bounding_box()
        frame = page.locator(".drawing").bounding_box()
        assert frame["y"] - 1 <= node["y"] <= node["y"] + node["height"] <= frame["y"] + frame["height"] + 1
    page.select_option("#view", option.get_attribute("value"))
    assert page.locator("g.node").count() == 3002
    page.fill("#find", "sin_1500_")
    page.keyboard.press("Enter")
    page.wait_for_selector("#op-sin_1500_1500.chosen")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("level", [0, 1])
def test_whole_fits_and_the_graph_cannot_be_lost(visit, width, level):
    page = visit(passed("long", history=transformer(88)))
    page.set_viewport_size({"width": width, "height": 800})
    show(page, level)
    page.click("[data-zoom=whole]")
    paper, frame = page.locator(".drawing > svg > g"), page.locator(".drawing")
    inner, outer = paper.bounding_box(), frame.bounding_box()
    assert inner["width"] <= outer["width"] + 1
    assert inner["height"] <= outer["height"] + 1
    frame.focus()
    for key in ("ArrowDown", "ArrowRight"):
        for _ in range(60):
            page.keyboard.press(key)
    inner, outer = paper.bounding_box(), frame.bounding_box()
    assert inner["x"] < outer["x"] + outer["width"]
    assert inner["x"] + inner["width"] > outer["x"]
    assert inner["y"] + inner["height"] > outer["y"]


def test_a_recurrent_model_is_unrolled_or_rolled(visit):
    page = visit(passed("cell", history=cell()))
    assert page.locator("#module-cell\\.3").count() == 1
    page.select_option("#passes", "rolled")
    page.wait_for_selector("#module-cell")
    assert page.locator("#module-cell\\.3").count() == 0
    page.fill("#find", "@cell:2")
    page.keyboard.press("Enter")
    page.wait_for_selector("#module-cell.chosen")


def test_colours_show_time_memory_and_flops_and_what_differs(visit):
    page = visit(measured())
    for colour in ("time", "memory", "flops"):
        page.select_option("#colour", colour)
        assert all(page.locator(f"g.node.shade-{shade}").count() for shade in (0, 7))
        assert " to " in page.inner_text("#scale")
    page.select_option("#colour", "kind")
    assert page.locator(".drawing.shaded").count() == 0
    page = visit(changed())
    page.select_option("#colour", "difference")
    assert page.locator("g.node.differs").count() == 1
    page.fill("#find", "1 ulp")
    page.keyboard.press("Enter")
    assert "1 ulp" in panel(page)


def test_a_table_is_filtered_and_sorted(visit):
    page = visit(passed())
    page.fill("[data-filters=layer-table]", "1x256x6x6")
    assert page.inner_text("[data-counts=layer-table]") == "2 of 24 tensors"
    assert page.locator("#layer-table tbody tr").count() == 2
    page.fill("[data-filters=layer-table]", "")
    page.click("#layer-table th:has-text('Params') button")
    page.wait_for_selector("#layer-table th[aria-sort=ascending]")
    page.click("#layer-table th:has-text('Params') button")
    page.wait_for_selector("#layer-table th[aria-sort=descending]")
    page.wait_for_selector("#layer-table tbody tr:first-child th:has-text('linear_1_17')")  # rows move a moment later


@pytest.mark.parametrize("times", [1, 2])
def test_what_has_no_value_is_sorted_last_both_ways(visit, times):
    page = visit(passed())
    for _ in range(times):
        page.click("#layer-table th:has-text('Params') button")
    column = page.locator("#layer-table tbody td:nth-child(6)").all_inner_texts()
    numbers = [int(text.replace(",", "")) for text in column if text]
    assert column[: len(numbers)] == [text for text in column if text]
    assert numbers == sorted(numbers, reverse=times == 2)


def test_a_table_of_3000_rows_holds_those_in_sight_and_sorts_all(visit):
    page = visit(passed("chain", history=chain(3000)))
    counter = page.locator("[data-counts=layer-table]")
    wait_until(page, "document.querySelector('[data-counts=layer-table]').value !== ''")
    assert counter.inner_text() == "3002 of 3002 tensors"
    assert page.locator("#layer-table tbody tr").count() < 300
    for first in ("input_1_0", "sin_999_999", "input_1_0"):
        page.click("#layer-table thead button >> nth=1")
        assert page.locator("#layer-table tbody th").first.inner_text() == first
    page.evaluate("location.hash = '#row-sin_1500_1500'")
    page.wait_for_selector("tr.target")
    assert page.locator("tr.target").is_visible()
    page.fill("[data-filters=layer-table]", "sin_2998_")
    assert page.locator("#layer-table tbody th").all_inner_texts() == ["sin_2998_2998", "sin_2999_2999"]


def test_a_layer_of_the_table_is_shown_in_the_graph(visit):
    page = visit(passed())
    page.locator("#layers").scroll_into_view_if_needed()
    page.click("#row-conv2d_5_11 a[data-node]")
    page.wait_for_selector("#op-conv2d_5_11.chosen")
    assert page.locator("#op-conv2d_5_11").is_visible()


def test_curves_are_drawn_and_a_click_chooses_the_layer(visit):
    page = visit(measured())
    assert page.locator(".curve canvas").count() == 3
    page.locator("[data-chart=memory]").scroll_into_view_if_needed()
    page.locator("[data-chart=memory] .u-over").click(position={"x": 45, "y": 20})
    page.wait_for_selector(".chosen")
    assert panel(page).startswith("conv2d_1_1")
    assert page.locator(".bars meter").count() > 3


def test_the_panel_has_histogram_and_picture_of_an_activation(visit):
    page = visit(measured(), "#row-relu_7_21")
    histogram = page.get_by_role("img", name="Histogram of 20 values from -21 to 21")
    assert histogram.is_visible()
    assert histogram.locator("rect").count() == 5
    picture = page.get_by_role("img", name="Picture of relu_7_21")
    assert picture.is_visible()
    read = "canvas => [canvas.width, canvas.height, ...canvas.getContext('2d').getImageData(0, 0, 3, 2).data]"
    width, height, *colours = picture.evaluate(read)
    assert (width, height, colours[::4], colours[3::4]) == (3, 2, [0, 255, 128, 7, 8, 9], [255] * 6)


WRITTEN = """
window.written = [];
const write = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
  window.written.push(text);
  return write.call(this, text, ...rest);
};
"""


@pytest.mark.parametrize("zeros", [0.0, 0.5, 1.0])
def test_shares_end_at_100_percent_and_layers_are_whole_numbers(visit, zeros):
    page = visit(shares(zeros), script=WRITTEN)
    wait_until(page, "window.written.some((text) => text.endsWith('%'))")
    written = [text for text in page.evaluate("window.written") if text]
    numbers = [float(text.removesuffix(" %")) for text in written if text.endswith("%")]
    assert (min(numbers), max(numbers) <= 100) == (0, True)
    assert [text for text in written if text.replace(".", "").isdecimal() and "." in text and float(text) > 5] == []


def test_a_link_to_a_row_opens_at_it(visit):
    page = visit(passed(), "#row-relu_7_21")
    page.wait_for_selector("#op-relu_7_21.chosen")
    box = page.locator("#row-relu_7_21").bounding_box()
    assert 0 <= box["y"] <= 900


def test_the_index_is_filtered_and_sorted_and_leads_to_the_pages(visit):
    page = visit()
    page.fill("[data-filters=models]", "failed replay")
    assert page.locator("#models tbody tr").count() == 1
    page.fill("[data-filters=models]", "")
    page.click("#models th:has-text('Operations') button")
    page.wait_for_selector("#models th[aria-sort=ascending]:has-text('Operations')")
    page.click("#models th:has-text('Operations') button")
    page.wait_for_selector("#models th[aria-sort=descending]:has-text('Operations')")
    page.wait_for_selector("#models tbody tr:first-child th:has-text('chain')")  # rows move a moment later


def test_the_index_shows_only_models_of_the_words_that_are_pressed(visit):
    page = visit()
    every = page.locator("#models tbody tr").count()
    page.focus(".chips button[value=failed]")
    page.keyboard.press("Enter")
    failed = page.locator("#models tbody tr")
    assert 0 < failed.count() < every
    assert all("failed" in text for text in failed.all_inner_texts())
    assert page.locator("[data-counts=models]").inner_text() == f"{failed.count()} of {every} models"
    count = failed.count()
    page.click(".chips button[value=passed]")
    assert page.locator("#models tbody tr").count() > count
    for word in ("failed", "passed"):
        page.click(f".chips button[value={word}]")
    assert page.locator("#models tbody tr").count() == every


@pytest.mark.parametrize("width", [1400, 390])
def test_name_and_verdict_of_the_index_are_seen_without_scrolling(visit, width):
    page = visit()
    page.set_viewport_size({"width": width, "height": 900})
    frame, verdict = (page.locator(one).first.bounding_box() for one in (".scroll", "#models tbody td"))
    assert verdict["x"] + verdict["width"] <= frame["x"] + frame["width"] + 1
    findings = page.locator("#models tr:has-text('audited') >> text=1 high, 1 medium >> visible=true").bounding_box()
    assert findings["x"] + findings["width"] <= frame["x"] + frame["width"] + 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(visit, scheme):
    page = visit(passed(), color_scheme=scheme)
    colours = page.evaluate("[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]")
    ink, paper = (sum(map(int, colour.strip("rgb()").split(","))) for colour in colours)
    assert (ink < paper) == (scheme == "light")
    assert abs(ink - paper) > 300
    text = page.evaluate("getComputedStyle(document.querySelector('.drawing text')).fill")
    node = page.evaluate("getComputedStyle(document.querySelector('.drawing .node ellipse')).fill")
    inks = [sum(map(int, colour.strip("rgb()").split(","))) for colour in (text, node)]
    assert (inks[0] < inks[1]) == (scheme == "light")


@pytest.mark.parametrize("report", [None, passed(), refuted(), raised()])
def test_a_phone_scrolls_down_and_not_sideways(visit, report):
    page = visit(report)
    page.set_viewport_size({"width": 375, "height": 700})
    wait_until(page, "document.documentElement.scrollWidth === 375")  # Chromium lays the page out a moment later
    assert page.evaluate("[scrollX, scrollY]") == [0, 0]


PLACE = "document.querySelector('.drawing > svg > g').getAttribute('transform')"


def test_the_keyboard_reaches_and_moves_the_graph(visit):
    page = visit(passed())
    page.focus(".drawing")
    for key in ("ArrowUp", "+", "ArrowLeft", "0"):
        page.keyboard.press("ArrowDown")
        before = page.evaluate(PLACE)
        page.keyboard.press(key)
        wait_until(page, f"before => {PLACE} !== before", before)
    page.focus("#find")
    page.keyboard.type("relu_1_2")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector("#op-relu_1_2.chosen")


def test_tab_goes_from_node_to_node_enter_tells_and_space_unfolds(visit):
    page = visit(passed())
    show(page, 0)
    page.focus(".drawing")
    for _ in range(2):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "module-features"
    page.keyboard.press("Enter")
    assert panel(page).startswith("features")
    page.keyboard.press("Space")
    assert page.locator("#op-conv2d_1_1").count() == 1
    assert page.evaluate("document.activeElement.id") == "module-features"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector("#op-conv2d_1_1.chosen")
    page.keyboard.press("Backspace")
    assert page.locator("#op-conv2d_1_1").count() == 0


def over_graph(page):
    page.locator(".drawing").scroll_into_view_if_needed()
    box = page.locator(".drawing").bounding_box()
    page.mouse.move(box["x"] + 20, max(box["y"], 0) + 20)


def test_the_wheel_scrolls_the_page_until_the_graph_is_clicked(visit):
    page = visit(passed())
    over_graph(page)
    scrolled, place = page.evaluate(f"[scrollY, {PLACE}]")
    page.mouse.wheel(0, 120)
    wait_until(page, "scrolled => scrollY !== scrolled", scrolled)
    assert page.evaluate(PLACE) == place
    over_graph(page)
    page.mouse.down()
    page.mouse.up()
    scrolled = page.evaluate("scrollY")
    page.mouse.wheel(0, 120)
    wait_until(page, f"place => {PLACE} !== place", place)
    assert page.evaluate("scrollY") == scrolled


def test_the_wheel_zooms_with_ctrl_and_never_keeps_a_reader_in_the_graph(visit):
    page = visit(passed())
    over_graph(page)
    scrolled, place = page.evaluate(f"[scrollY, {PLACE}]")
    page.keyboard.down("Control")
    page.mouse.wheel(0, -120)
    page.keyboard.up("Control")
    wait_until(page, f"place => {PLACE} !== place", place)
    assert page.evaluate("scrollY") == scrolled
    page.mouse.down()
    page.mouse.up()
    for _ in range(40):
        page.mouse.wheel(0, 400)
    wait_until(page, "scrolled => scrollY > scrolled", scrolled)


def test_a_drag_moves_the_graph_and_selects_nothing(visit):
    page = visit(passed())
    node = page.locator("g.node.input, g.node.output").first
    before = node.bounding_box()
    page.mouse.move(before["x"] + 20, before["y"] + 10)
    page.mouse.down()
    page.mouse.move(before["x"] + 20, before["y"] - 200, steps=5)
    page.mouse.up()
    assert node.bounding_box()["y"] < before["y"] - 100
    assert page.locator(".chosen").count() == 0


def test_on_a_phone_two_fingers_move_the_graph_and_one_scrolls_the_page(visit):
    page = visit(passed(), has_touch=True, is_mobile=True)
    page.set_viewport_size({"width": 390, "height": 800})
    page.locator(".drawing").scroll_into_view_if_needed()
    box = page.locator(".drawing").bounding_box()
    touch = page.context.new_cdp_session(page)

    def fingers(*offsets, kind="touchMove"):
        points = [{"x": box["x"] + x, "y": max(box["y"], 0) + y, "id": place} for place, (x, y) in enumerate(offsets)]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    place = page.evaluate(PLACE)
    fingers((60, 200), (200, 200), kind="touchStart")
    fingers((60, 120), (200, 120))
    wait_until(page, f"place => {PLACE} !== place", place)
    scale = page.evaluate(PLACE).split("scale")[1]
    fingers((20, 120), (240, 120))
    wait_until(page, f"scale => !{PLACE}.endsWith(scale)", scale)
    fingers(kind="touchEnd")
    place, scrolled = page.evaluate(f"[{PLACE}, scrollY]")
    fingers((60, 200), kind="touchStart")
    for y in (180, 140, 100):
        fingers((60, y))
    wait_until(page, "scrolled => scrollY > scrolled", scrolled)
    assert page.evaluate(PLACE) == place


def test_the_address_follows_what_is_chosen_and_leads_back_to_it(visit):
    page = visit(passed())
    page.fill("#find", "relu_1_2")
    page.keyboard.press("Enter")
    page.wait_for_selector("#op-relu_1_2.chosen")
    assert page.url.endswith("#row-relu_1_2")
    page.evaluate("location.hash = '#row-relu_7_21'")
    page.wait_for_selector("#op-relu_7_21.chosen")
    page.fill("#find", "@features")
    page.keyboard.press("Enter")
    page.wait_for_selector("#module-features.chosen")
    assert page.url.endswith("#module-features")
    assert panel(visit(passed(), page.url[page.url.index("#") :])).startswith("features")


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_do_no_harm(visit, name):
    page = visit(passed(name, zoo=name, history=hostile_history()))
    for word in HOSTILE:
        page.fill("#find", word[:40].splitlines()[0])
        page.keyboard.press("Enter")
    page.locator("g.cluster").first.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("window.harmed") is None
    assert page.locator("main img, main script:not([type])").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") == 1280


def test_the_index_of_hostile_names_does_no_harm(visit):
    page = visit()
    assert page.evaluate("window.harmed") is None
    assert page.evaluate("document.documentElement.scrollWidth") == 1280


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("report", [None, measured(), refuted()], ids=["index", "measured", "refuted"])
def test_axe_finds_nothing_serious(visit, axe, report, scheme):
    page = visit(report, bypass_csp=True, color_scheme=scheme)
    page.evaluate(axe)
    found = page.evaluate("async () => (await axe.run()).violations")
    serious = {
        problem["id"]: [node["html"][:200] for node in problem["nodes"][:3]]
        for problem in found
        if problem["impact"] in ("serious", "critical")
    }
    assert serious == {}


def test_a_page_that_would_run_a_script_is_stopped(visit, site, browser):
    """Show that the policy holds: what the other tests rely on."""
    text = (site / page_path(passed())).read_text(encoding="utf-8")
    bad = site / "bad.html"
    bad.write_text(text.replace("</main>", "<script>window.harmed = 5</script></main>"), encoding="utf-8")
    page = browser.new_page()
    page.goto(bad.as_uri())
    assert page.evaluate("window.harmed") is None
    page.close()


def test_the_record_beside_a_page_is_the_models(site):
    text = (site / page_path(passed())).with_suffix(".json").read_text(encoding="utf-8")
    assert json.loads(text)["history"]["model_name"] == replace(alexnet()).model_name
