"""A headless Chromium, driven by its DevTools protocol: pages as a user sees them, once they are drawn."""

from __future__ import annotations

import base64
import json
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.waiting import LIMIT_S, eventually
from websockets.sync.client import ClientConnection, connect

_LOOK_AGAIN_S = 0.5
# Pages that look complete still lay out their charts: they are, once so many looks in a row find the same.
_SAME_LOOKS = 4


class Browser:
    """One window of a browser.

    Args:
        connection: To the window's DevTools.
    """

    def __init__(self, connection: ClientConnection) -> None:
        self._connection, self._asked = connection, 0
        self.errors: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")

    def look_at(self, url: str, drawn: str, picture: Path) -> list[str]:
        """Open a page, wait until it is drawn, and take a screenshot.

        Args:
            url: Address of the page.
            drawn: JavaScript that is true once the page shows what is looked for.
            picture: The PNG file.

        Returns:
            What the page told its console of errors.

        Raises:
            AssertionError: What is looked for never appeared.
        """
        # What the page before shows must not be taken for this one: addresses may differ after the `#` alone.
        self._ask("Page.navigate", url="about:blank")
        eventually(lambda: self._value("location.href") == "about:blank", poll_s=_LOOK_AGAIN_S)
        self.errors = []
        self._ask("Page.navigate", url=url)
        eventually(
            lambda: self._value(f"Boolean({drawn})"),
            poll_s=_LOOK_AGAIN_S,
            message=lambda: f"{url} never showed {drawn}:\n{self.text()[:2000]}",
        )
        self._settle()
        taken = self._ask("Page.captureScreenshot", format="png")
        picture.write_bytes(base64.b64decode(taken["data"]))
        return self.errors

    def _settle(self) -> None:
        """Wait until the page no longer changes; one that never ceases to, such as a clock, is taken as it is."""
        looks: list[object] = []

        def is_settled() -> bool:
            looks.append(self._value("document.readyState + document.documentElement.outerHTML"))
            return len(looks) >= 10 * _SAME_LOOKS or (
                len(looks) >= _SAME_LOOKS and len(set(looks[-_SAME_LOOKS:])) == 1
            )

        eventually(is_settled, poll_s=_LOOK_AGAIN_S)

    def text(self) -> str:
        """What the page says."""
        return str(self._value("document.body ? document.body.innerText : ''"))

    def _value(self, script: str) -> Any:
        return self._ask("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._asked += 1
        self._connection.send(json.dumps({"id": self._asked, "method": method, "params": parameters}))
        while True:
            told = json.loads(self._connection.recv(timeout=LIMIT_S))
            if told.get("id") == self._asked:
                assert "result" in told, told
                found: dict[str, Any] = told["result"]
                return found
            self._happened(told)

    def _happened(self, told: dict[str, Any]) -> None:
        match told.get("method"), told.get("params"):
            case "Runtime.exceptionThrown", {"exceptionDetails": details}:
                self.errors.append(str(details.get("exception", {}).get("description", details["text"])))
            case "Runtime.consoleAPICalled", {"type": "error", "args": given}:
                self.errors.append(" ".join(str(one.get("value", one.get("description"))) for one in given))
            case "Log.entryAdded", {"entry": {"level": "error", "text": text, **about}}:
                self.errors.append(f"{text} {about.get('url', '')}")


@contextmanager
def browser(chromium: str, folder: Path) -> Iterator[Browser]:
    """A window of a new browser, without its user's settings.

    Args:
        chromium: The executable.
        folder: An empty folder for its profile.
    """
    command = [
        chromium,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--remote-debugging-port=0",
        f"--user-data-dir={folder}",
        "--window-size=1400,1000",
        "about:blank",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port = _port(folder / "DevToolsActivePort", process)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=LIMIT_S) as answer:
            window = next(one for one in json.loads(answer.read()) if one["type"] == "page")
        with connect(window["webSocketDebuggerUrl"], max_size=None) as connection:
            yield Browser(connection)
    finally:
        process.kill()
        process.wait(LIMIT_S)


def _port(file: Path, process: subprocess.Popen[bytes]) -> int:
    def told() -> list[str]:
        assert process.poll() is None, "the browser has ended"
        return file.read_text().split() if file.exists() else []

    return int(eventually(told, poll_s=0.1, message="the browser does not start")[0])
