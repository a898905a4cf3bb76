"""How long the page takes to show 200 trials whose curves have all changed, beside the server's own part of it."""

from __future__ import annotations

import statistics
import time
import urllib.request
from pathlib import Path

from tests.ui.made_run import made_run
from tests.ui.test_page import CHROMIUM, VIEWS, opened, playwright, served

from ebbtide.controller.journal.changes import Changes
from ebbtide.controller.journal.journal import Journal

TRIALS, LOOKS = 200, 6


def test_a_page_of_200_trials(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "runs", TRIALS)
    journal = Journal(folder.journal)
    with served(tmp_path / "runs") as address, playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1300, "height": 900})
        page.add_init_script(
            "window.longest = []; new PerformanceObserver(list => { for (const one of list.getEntries()) "
            "window.longest.push(one.duration); }).observe({ type: 'longtask', buffered: true });"
        )
        for view in VIEWS:
            opened(page, address, f"run/made/{view}", f"made/{view}")
            page.wait_for_timeout(500)
            page.evaluate("() => { performance.clearMeasures(); window.longest.length = 0; }")
            for look in range(LOOKS):
                rows = [(trial, 1_900 + look, 0.3 + 0.001 * trial) for trial in range(TRIALS)]
                journal.keep({}, changes=Changes((), rows))
                page.wait_for_timeout(2_300)
            took = page.evaluate("() => performance.getEntriesByName('refresh').map(one => one.duration)")
            longest = page.evaluate("() => Math.max(0, ...window.longest)")
            floor = _answer_ms(f"{address}/api/runs/made") + _answer_ms(
                f"{address}/api/runs/made/{'curves' if view == 'trials' else view}"
            )
            print(
                f"{view}: a refresh takes {statistics.median(took):.0f} ms (median of {len(took)}), the server's answers "
                f"alone {floor:.0f} ms; the longest time for which the page answers nobody: {longest:.0f} ms"
            )
        browser.close()


def _answer_ms(address: str) -> float:
    times = []
    for _ in range(5):
        began_s = time.perf_counter()
        with urllib.request.urlopen(address) as answer:
            answer.read()
        times.append(1000 * (time.perf_counter() - began_s))
    return statistics.median(times)
