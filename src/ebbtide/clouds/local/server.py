"""The process of the local cloud: an API for controllers, and instance metadata for agents, both on loopback.

python -m ebbtide.clouds.local.server SETTINGS.json
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import json
import math
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Set
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ebbtide.base.files import only_one, write_text
from ebbtide.clouds.cloud import Instance, MachineRequest
from ebbtide.clouds.local.machines import Machines, instance_of, instance_values
from ebbtide.clouds.metadata import MetadataService
from ebbtide.errors import InputError
from ebbtide.market.availability import Availability
from ebbtide.market.billing import billing_preset
from ebbtide.market.catalogue import Catalogue, default_catalogue
from ebbtide.market.markets import Market
from ebbtide.market.prices import PriceHistory
from ebbtide.replay.replayed_market import ReplayedMarket
from ebbtide.replay.start_delay import StartDelay

ADDRESS, BILLS, CLOCK, LOCK = "cloud.json", "bills.json", "clock.json", "cloud.lock"
_ENDED, _OPEN = "ended.json", "open.json"

# Exit code if another cloud holds the folder's lock: it has not written its address yet, or is ending.
ANOTHER = 75

_LOOK_S = 1.0


class _Handler(BaseHTTPRequestHandler):
    """Answers the API under /api and metadata under /<machine>/latest."""

    machines: Machines
    secret: str
    asked_s: float
    metadata: MetadataService

    def do_GET(self) -> None:
        if self.path.startswith("/api/"):
            if self._allowed():
                self._answer_json(self._looked_up(self.path.removeprefix("/api/")))
        else:
            self._answer_metadata()

    def do_POST(self) -> None:
        if not self._allowed():
            return
        length = int(self.headers.get("Content-Length", 0))
        content = json.loads(self.rfile.read(length) or b"{}")
        match self.path:
            case "/api/launch":
                wanted = MachineRequest(**{**content, "market": Market(*content["market"])})
                self.machines.launch(wanted)
                self._answer_json({})
            case "/api/terminate":
                self._answer_json({"ended_s": self.machines.terminate(content["token"])})
            case "/api/interrupt":
                self._answer_json({"is_noticed": self.machines.interrupt(content["token"])})
            case _:
                self._answer(404, "")

    def do_PUT(self) -> None:
        self._answer_metadata()

    def _looked_up(self, what: str) -> Any:
        machines = self.machines
        match what:
            case "clock":
                return {
                    "began_s": machines.began_s,
                    "began_epoch_s": machines.began_epoch_s,
                    "speed": machines.speed,
                    "is_over": machines.is_over,
                }
            case "instances":
                return [instance_values(instance) for instance in machines.instances()]
            case "bills":
                return machines.bills()
            case "processes":
                return machines.processes()
        return None

    def _answer_metadata(self) -> None:
        answer = self.metadata.answer(self.command, self.path, dict(self.headers))
        self._answer(answer.status, answer.body)

    def _allowed(self) -> bool:
        type(self).asked_s = time.monotonic()
        given = self.headers.get("Authorization", "")
        if hmac.compare_digest(given, f"Bearer {self.secret}"):
            return True
        self._answer(401, "")
        return False

    def _answer_json(self, content: Any) -> None:
        self._answer(404 if content is None else 200, json.dumps(content))

    def _answer(self, status: int, content: str) -> None:
        body = content.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing: the machines' logs hold what matters."""


def serve(settings: dict[str, Any]) -> None:
    """Run the local cloud until it is signalled to end, or gets no request for a long time."""
    folder = Path(settings["folder"])
    catalogue = Catalogue.read(settings["catalogue"]) if settings["catalogue"] else default_catalogue()
    prices = PriceHistory.read(settings["prices"], catalogue)
    billing = billing_preset(settings["billing"])
    speed = settings["speed"]
    # Programs run at their real speed, so a notice needs a minimum length in real seconds.
    billing = billing.with_least_notice(settings["least_notice_s"] * speed)
    delay = StartDelay(settings["request_s"], settings["boot_s"])
    # The market continues where an earlier cloud in this folder ended; its machines stay listed and billed.
    capacity = Availability.read(settings["availability"]) if settings["availability"] else None
    begins_s = began_at(folder, settings["start_s"])
    market = ReplayedMarket(prices, begins_s, billing, availability=capacity, delay=delay)
    # A killed cloud's machines count as ended at its last write, where this cloud's market continues.
    billed, past = bills_of(folder), _ended(folder)
    left = _left_open(folder, {instance.token for instance in past})
    past += [instance for instance, _ in left]
    known = {bill["token"] for bill in billed}
    billed += [bill for _, bill in left if bill["token"] not in known]
    secret = secrets.token_hex(16)
    handler = type("Handler", (_Handler,), {"secret": secret, "asked_s": time.monotonic()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    url = f"http://127.0.0.1:{server.server_address[1]}"
    handler.machines = machines = Machines(  # type: ignore[attr-defined]
        market, billing, catalogue, speed, folder, url, past
    )
    handler.metadata = MetadataService(machines.metadata)  # type: ignore[attr-defined]
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.umask(0o077)
    write_text(folder / ADDRESS, json.dumps({"url": url, "secret": secret, "pid": os.getpid()}))
    (folder / ADDRESS).chmod(0o600)
    while not ended.wait(_LOOK_S):
        _keep(folder, machines, billed)
        silent_s = time.monotonic() - handler.asked_s  # type: ignore[attr-defined]
        if silent_s > settings["forgotten_s"]:
            break
        # After a controller failed, the cloud runs on until its machines have saved and ended.
        if silent_s > settings["unused_s"] and not machines.any_open and _is_free(settings["lock"]):
            break
    machines.close()
    _keep(folder, machines, billed)
    (folder / ADDRESS).unlink(missing_ok=True)
    server.shutdown()


def _is_free(lock: str) -> bool:
    """Return whether nobody holds a lock file (empty path: False); a paused controller still holds it."""
    if not lock:
        return False
    try:
        with Path(lock).open(encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def began_at(folder: Path, start_s: float) -> float:
    """Return the market time at which a cloud starts: the end of the folder's earlier cloud, else `start_s`."""
    try:
        return max(float(json.loads((folder / CLOCK).read_text(encoding="utf-8"))["now_s"]), start_s)
    except (OSError, ValueError, KeyError, TypeError):
        return start_s


def bills_of(folder: Path) -> list[dict[str, Any]]:
    """Return the recorded bills of all machines of the folder's clouds so far."""
    try:
        found: list[dict[str, Any]] = json.loads((folder / BILLS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return found


def _ended(folder: Path) -> list[Instance]:
    """Return the recorded machines of the folder's clouds so far that have ended."""
    try:
        found = json.loads((folder / _ENDED).read_text(encoding="utf-8"))
        return [instance_of(values) for values in found]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _left_open(folder: Path, ended: Set[str]) -> list[tuple[Instance, dict[str, Any]]]:
    """Return machines that were alive when a folder's cloud was killed, and their bills until then.

    Args:
        folder: Folder of the clouds.
        ended: Tokens of machines whose end was recorded.
    """
    try:
        found = json.loads((folder / _OPEN).read_text(encoding="utf-8"))
        left = [(instance_of(values["instance"]), {**values["bill"]}) for values in found]
        return [(instance, bill) for instance, bill in left if instance.token not in ended]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _keep(folder: Path, machines: Machines, billed: list[dict[str, Any]]) -> None:
    """Write the clock, ends and bills, so that a killed cloud loses at most about a second of them."""
    still_open = [
        {"instance": instance_values(replace(instance, why="the local cloud was killed")), "bill": bill}
        for instance, bill in machines.if_ended_now()
    ]
    ended = [instance_values(instance) for instance in machines.instances() if not math.isnan(instance.ended_s)]
    with contextlib.suppress(OSError):
        write_text(folder / CLOCK, json.dumps({"now_s": machines.now_s}))
        _write_changed(folder / _OPEN, json.dumps(still_open))
        # Bills before ends: if the cloud is killed between these writes, every recorded end has its bill.
        _write_changed(folder / BILLS, json.dumps([*billed, *machines.bills()]))
        _write_changed(folder / _ENDED, json.dumps(ended))


def _write_changed(path: Path, text: str) -> None:
    """Write a file, unless it holds that text already."""
    if not path.exists() or path.read_bytes() != text.encode():
        write_text(path, text)


def main() -> int:
    """Serve as the only cloud of a folder: a second one would overwrite its clock and bills."""
    settings = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        with only_one(Path(settings["folder"]) / LOCK, "local cloud"):
            serve(settings)
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return ANOTHER
    return 0


if __name__ == "__main__":
    sys.exit(main())
