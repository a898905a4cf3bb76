"""The page in a headless Chromium: every view, 200 trials, no error on the console, names that are no markup."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.ui.made_run import made_run
from tests.waiting import LIMIT_S

import ebbtide as eb

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the extra dev")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-core, of the extra dev")

pytestmark = [
    pytest.mark.usefixtures("processes"),
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: on Debian, the package chromium"),
]
VIEWS = ("trials", "machines", "spend", "decisions")
MARKUP = "<img src=x onerror=document.title='owned'>&amp;"


@contextmanager
def served(runs: Path) -> Iterator[str]:
    """The address of `ebbtide ui` over a folder of runs."""
    command = [sys.executable, "-m", "ebbtide.cli.main", "ui", "--runs", str(runs), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        said = server.stdout.readline()
        found = re.match(r"(http://127\.0\.0\.1:\d+) ", said)
        assert found is not None, said
        yield found[1]
    finally:
        server.terminate()
        server.wait(LIMIT_S)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page") / "runs"
    made_run(folder, 200)
    made_run(folder, 2, name="marked", setting=MARKUP)
    return folder


@pytest.fixture(scope="module")
def address(runs: Path) -> Iterator[str]:
    with served(runs) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page on which anything that the console says is an error."""
    found = browser.new_page(viewport={"width": 1300, "height": 900})
    found.set_default_timeout(LIMIT_S * 1000)
    said: list[str] = []
    found.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    found.on("pageerror", lambda error: said.append(f"error: {error}"))
    found.on(
        "request",
        lambda request: (
            said.append(request.url)
            if "127.0.0.1" not in request.url and not request.url.startswith("data:")
            else None
        ),
    )
    yield found
    found.close()
    assert said == []


def opened(page: Any, address: str, place: str, ready: str) -> None:
    page.goto(f"{address}/#/{place}")
    page.wait_for_selector(f"body[data-ready='{ready}']")


def shot(page: Any, name: str) -> None:
    """A picture of the page, where somebody wants to look at it: EBBTIDE_SCREENSHOTS names the folder."""
    if folder := os.environ.get("EBBTIDE_SCREENSHOTS"):
        page.wait_for_timeout(300)
        page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)


def test_a_round_number_keeps_its_zeros(page: Any) -> None:
    script = (Path(eb.__file__).parent / "ui" / "page" / "app.js").read_text()
    (line,) = re.findall(r"^const number = .*$", script, re.MULTILINE)
    asked = "[number(1000), number(5000.04), number(120000, 6), number(1e9, 6), number(0.25), number(null)]"
    words = page.evaluate(f"(() => {{ {line}\n return {asked}; }})()")
    assert words == ["1000", "5000", "120000", "1000000000", "0.25", "-"]


@pytest.mark.parametrize("width", [1300, 400])
def test_every_view_shows_200_trials(page: Any, address: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    opened(page, address, "", "runs")
    assert page.locator("#runs tbody tr").count() == 2
    shot(page, f"runs-{width}")
    page.get_by_role("link", name="made").click()
    page.wait_for_selector("body[data-ready='made/trials']")
    assert page.locator("#trials tbody tr").count() == 200
    assert page.locator("#curves svg.main-svg").count() > 0
    shot(page, f"trials-{width}")
    for view in VIEWS[1:]:
        page.get_by_role("link", name=view.capitalize(), exact=True).click()
        page.wait_for_selector(f"body[data-ready='made/{view}']")
        shot(page, f"{view}-{width}")
        # Nothing is wider than the window: tables scroll within themselves.
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.locator("#decisions tbody tr a").first.click()
    page.wait_for_selector("#weighed tr.chosen")
    shot(page, f"decision-{width}")


def barriers(page: Any) -> list[str]:
    """Serious problems of accessibility on the page as it is, as axe-core finds them."""
    found = axe.Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {each['help']}: {[node['target'] for node in each['nodes'][:3]]}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("width", [1300, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_view_has_a_barrier(page: Any, address: str, scheme: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    places = {"": "runs"} | {f"run/made/{view}": f"made/{view}" for view in VIEWS}
    places["run/made/decisions/0"] = "made/decisions"
    found = {}
    for place, ready in places.items():
        opened(page, address, place, ready)
        found[place] = barriers(page)
    assert not any(found.values()), found


@pytest.mark.parametrize("width", [1300, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_report_has_a_barrier(page: Any, scheme: str, width: int, one_day: eb.Job, tmp_path: Path) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    policies = [eb.policy(name) for name in ("on-demand", "cheapest-spot")]
    found = eb.compare(one_day, policies, eb.generate_prices(days=15, kind="auction"), starts=2)
    page.set_content(found.report(tmp_path / "report.html").read_text())
    assert barriers(page) == []


def test_a_decision_can_be_checked_by_hand(page: Any, address: str) -> None:
    opened(page, address, "run/made/decisions/0", "made/decisions")
    page.wait_for_selector("#weighed tr.chosen")
    for cells in [row.locator("td").all_inner_texts() for row in page.locator("#weighed tbody tr").all()]:
        per_step = re.match(r"([\d.e-]+) USD a step x (\d+) steps", cells[3])
        by_hour = re.match(r"([\d.]+) USD/h x ([\d.]+) h \(", cells[3])
        told = per_step or by_hour
        assert told is not None, cells
        assert float(told[1]) * float(told[2]) == pytest.approx(float(cells[2]), rel=1e-4)


def test_names_are_text_and_not_markup(page: Any, address: str) -> None:
    for view in VIEWS:
        opened(page, address, f"run/marked/{view}", f"marked/{view}")
        # An image that cannot be read, as one of the names would be, fails later than theirs.
        page.evaluate("new Promise(done => { const it = new Image(); it.onerror = done; it.src = 'data:,'; })")
        assert page.title() == "Ebbtide"
        assert page.locator("img").count() == 0
    opened(page, address, "run/marked/trials", "marked/trials")
    assert MARKUP in page.locator("#trials").inner_text()


def test_what_is_no_run_is_told(browser: Any, address: str) -> None:
    page = browser.new_page()
    page.goto(f"{address}/#/run/nothing/trials")
    page.wait_for_selector("main .problem")
    assert "there is no run 'nothing'" in page.locator("main").inner_text()
    page.close()


def test_it_goes_on_when_the_server_comes_back(browser: Any, runs: Path) -> None:
    page = browser.new_page()
    with served(runs) as address:
        opened(page, address, "run/marked/trials", "marked/trials")
    page.wait_for_selector("#fresh:has-text('the server does not answer')", timeout=LIMIT_S * 1000)
    # What was shown stays.
    assert page.locator("#trials tbody tr").count() == 2
    page.close()
