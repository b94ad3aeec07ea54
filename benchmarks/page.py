"""Measures the size of a model's page, and how soon it can be used: `python -m benchmarks.page PAGE.html`.

Needs Debian's Chromium and playwright.  Times are those of Chromium's renderer process: seconds of CPU, which other
programs on the machine do not change, and seconds on the clock, which they do.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright
from tabulate import tabulate

USABLE = 2.0
"""Seconds of CPU within which a page of 1,500 operations must be usable."""


def main(path: Path) -> None:
    """Open a page, choose a layer by search, sort the table, and print what each step took."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        clock = _Clock(browser, page)
        page.goto(path.resolve().as_uri())
        page.wait_for_selector(".drawing[data-shown]")
        clock.note("the page loaded, its graph drawn")
        page.wait_for_selector("#layer-table tbody th a", state="attached")
        rows = page.locator("[data-counts=layer-table]").inner_text()
        label = page.locator("#layer-table tbody th a").last.text_content() or ""
        clock.note("")
        page.fill("#find", label)
        page.keyboard.press("Enter")
        page.wait_for_selector("#panel h3")
        clock.note(f"{label} found, its panel shown")
        page.locator("#layers").scroll_into_view_if_needed()
        page.locator("#layer-table thead button").nth(4).click()
        clock.note("the table sorted by size")
        last = page.locator("#view option", has_text="All operations").get_attribute("value")
        page.select_option("#view", last)
        page.wait_for_selector(f".drawing[data-shown='{last}']")
        clock.note("the drawing of all operations")
        browser.close()
    print(f"{path.name}: {path.stat().st_size / 1e6:.2f} MB, {rows}")
    print(tabulate(clock.steps, headers=("step", "CPU s", "s"), floatfmt=".2f"))
    print(f"usable after {clock.steps[0][1]:.2f} s of CPU; {USABLE:g} s are allowed")


class _Clock:
    """Measures the steps between its calls."""

    def __init__(self, browser: Any, page: Any) -> None:
        self._session = browser.new_browser_cdp_session()
        page.goto("about:blank")
        self._begun = self._now()
        self.steps: list[tuple[str, float, float]] = []

    def note(self, step: str) -> None:
        """End a step; one without a name is not listed."""
        now = self._now()
        took = (now[0] - self._begun[0], now[1] - self._begun[1])
        self._begun = now
        if step:
            self.steps.append((step, *took))

    def _now(self) -> tuple[float, float]:
        processes = self._session.send("SystemInfo.getProcessInfo")["processInfo"]
        return sum(process["cpuTime"] for process in processes if process["type"] == "renderer"), time.perf_counter()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
