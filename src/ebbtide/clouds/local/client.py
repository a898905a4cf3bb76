"""The controller's side of a local cloud: start it, send it requests, end it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

import psutil

from ebbtide.base.files import write_text
from ebbtide.clouds.cloud import Instance, MachineRequest
from ebbtide.clouds.local.machines import clear_left_machines, instance_of
from ebbtide.clouds.local.server import ADDRESS, ANOTHER, bills_of
from ebbtide.errors import CloudError, CloudGoneError, InputError
from ebbtide.market.billing import billing_preset
from ebbtide.market.catalogue import Catalogue, default_catalogue
from ebbtide.market.markets import MARKET_FIELDS, Market
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory
from ebbtide.replay.replayed_market import cleared_prices

_SERVER = "ebbtide.clouds.local.server"
_STARTS_S = 60.0
_ENDS_S = 6.0
# Timeout of a request to the cloud, and a shorter one while the cloud does not answer.
_TIMEOUT_S, _SILENT_TIMEOUT_S = 3.0, 0.5


@dataclass(frozen=True)
class LocalCloudSettings:
    """Settings of a local cloud.

    Attributes:
        folder: Path of the cloud's own folder.
        prices: Path of the file of prices to replay.
        start_s: Market time at which the replay starts, in seconds since 1970.
        speed: Market seconds in a real second.
        billing: Name of a billing preset.
        least_notice_s: Minimum length of a revocation notice in real seconds.
        request_s: Market seconds until a request is answered.
        boot_s: Market seconds from then until a machine has booted.
        forgotten_s: Real seconds without a request after which the cloud ends itself.
        lock: Path of a file that the cloud's user holds locked; empty: there is none.
        unused_s: Real seconds without a request after which the cloud ends itself if nobody holds that lock and
            none of its machines is open.
        catalogue: Path of a file of instance types and list prices; empty: those that ship with Ebbtide.
        availability: Path of a file of the markets' capacity; empty: capacity is unlimited.
    """

    folder: str
    prices: str
    start_s: float
    speed: float
    billing: str = "ec2-second"
    least_notice_s: float = 2.0
    request_s: float = 20.0
    boot_s: float = 40.0
    forgotten_s: float = 900.0
    lock: str = ""
    unused_s: float = 10.0
    catalogue: str = ""
    availability: str = ""


def start_local_cloud(settings: LocalCloudSettings) -> LocalCloud:
    """Start a local cloud as a process of its own, or find the one that runs in the folder.

    Raises:
        InputError: The cloud did not start.
    """
    folder = Path(settings.folder)
    folder.mkdir(parents=True, exist_ok=True)
    catalogue = Catalogue.read(settings.catalogue) if settings.catalogue else default_catalogue()
    prices = PriceHistory.read(settings.prices, catalogue)
    # The same prices as the cloud's own: in an auction, a policy does not see the price of the round under way.
    prices = cleared_prices(prices, billing_preset(settings.billing))
    clear_dead_cloud(folder)
    if not (folder / ADDRESS).exists():
        write_text(folder / "settings.json", json.dumps(asdict(settings)))
        _start(folder)
    try:
        return LocalCloud(folder, prices)
    except CloudError as error:
        raise InputError(str(error)) from None


def _start(folder: Path) -> None:
    """Start the process, unless another one is starting in the folder, and wait until it accepts requests."""
    command = [sys.executable, "-m", _SERVER, str(folder / "settings.json")]
    until_s = time.monotonic() + _STARTS_S
    process: subprocess.Popen[bytes] | None = None
    try:
        while not (folder / ADDRESS).exists():
            if process is None or process.poll() == ANOTHER:
                with (folder / "cloud.log").open("ab") as log:
                    process = subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                    )
            elif process.poll() is not None or time.monotonic() > until_s:
                problem = f"the local cloud did not start: {_last_line(folder)}"
                raise InputError(problem, file=folder / "cloud.log")
            time.sleep(0.05)
    except BaseException:
        if process is not None:
            process.kill()
        raise


def clear_dead_cloud(folder: Path) -> int:
    """Clean up after a local cloud that was killed: end processes of its machines, and remove its address.

    Returns:
        The number of machines that still had processes; 0 also if there was no cloud, or it still runs.
    """
    # A damaged address also gives no process id: such a cloud cannot be reached.
    if not (folder / ADDRESS).exists() or _pid(folder) is not None:
        return 0
    left = clear_left_machines(folder)
    (folder / ADDRESS).unlink(missing_ok=True)
    return left


def end_cloud(folder: Path) -> int:
    """End the local cloud of a folder and all its machines, even if it hangs or was killed.

    Returns:
        The number of machines that the cloud left running and that were ended here.
    """
    until_s, is_asked = time.monotonic() + _ENDS_S, False
    while (pid := _pid(folder)) is not None and time.monotonic() < until_s and not _is_stopped(pid):
        if not is_asked:
            _signal(pid, signal.SIGTERM)
            is_asked = True
        time.sleep(0.05)
    if pid is not None:
        # The cloud hangs: kill it, and end its machines below.
        _signal(pid, signal.SIGKILL)
        time.sleep(0.1)
    return clear_dead_cloud(folder)


def machines_running(folder: Path) -> int:
    """Return the number of machines that run in the local cloud of a folder; 0 if it does not answer."""
    pid = _pid(folder)
    if pid is None or _is_stopped(pid):
        return 0
    try:
        return len(_Api(folder).ask("processes"))
    except CloudError:
        return 0


def _pid(folder: Path) -> int | None:
    """Return the process id of a folder's local cloud; None: it does not run, or its address is damaged."""
    try:
        pid = int(json.loads((folder / ADDRESS).read_text(encoding="utf-8"))["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return pid if _is_running(pid) else None


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _is_running(pid: int) -> bool:
    """Return whether a process is a local cloud, and not another process with a reused id."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and any(_SERVER in part for part in process.cmdline())
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return False  # another user's


def _is_stopped(pid: int) -> bool:
    """Return whether a process is suspended, so that SIGTERM does not end it."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


def _last_line(folder: Path) -> str:
    try:
        lines = (folder / "cloud.log").read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return "it left no log"
    return next((line for line in reversed(lines) if line.strip()), "it left no log")


class _Api:
    """The API of a running local cloud.

    Args:
        folder: Path of the cloud's own folder.

    Raises:
        CloudError: No cloud runs there, or its address is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            address = json.loads((folder / ADDRESS).read_text(encoding="utf-8"))
            self._url, self._secret, self.pid = address["url"], address["secret"], int(address["pid"])
        except FileNotFoundError:
            raise CloudError(f"no local cloud runs in {folder}") from None
        except (ValueError, KeyError, TypeError):
            raise CloudError(f"{folder / ADDRESS} is damaged, so the local cloud cannot be reached") from None
        self._timeout_s = _TIMEOUT_S

    def ask(self, what: str, content: Any = None) -> Any:
        """Send a request and return the answer.

        Args:
            what: Last part of the request's path.
            content: Content to post; None: send a GET request.

        Raises:
            CloudError: There is no answer.
        """
        body = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(
            f"{self._url}/api/{what}", data=body, headers={"Authorization": f"Bearer {self._secret}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as answer:
                found = json.loads(answer.read())
            self._timeout_s = _TIMEOUT_S
            return found
        except (OSError, ValueError, HTTPException) as error:
            self._timeout_s = _SILENT_TIMEOUT_S
            if not _is_running(self.pid):
                raise CloudGoneError(
                    f"the local cloud has ended, and its machines with it (see {self._folder / 'cloud.log'})"
                ) from None
            raise CloudError(f"the local cloud does not answer: {error}") from error


class LocalCloud:
    """A running local cloud.

    Args:
        folder: Path of the cloud's own folder.
        prices: The price history that the cloud replays.

    Attributes:
        pid: Id of its process.

    Raises:
        CloudError: The cloud does not answer.
    """

    def __init__(self, folder: Path, prices: PriceHistory) -> None:
        self._folder = folder
        self._history = prices
        self._api = _Api(folder)
        self.pid = self._api.pid
        self._clock = self._api.ask("clock")

    @property
    def now_s(self) -> float:
        return self.time_of(time.time())

    def time_of(self, epoch_s: float) -> float:
        clock = self._clock
        return float(clock["began_s"] + (epoch_s - clock["began_epoch_s"]) * clock["speed"])

    @property
    def is_over(self) -> bool:
        return self.now_s >= self._history.end_s

    @property
    def markets(self) -> Sequence[Market]:
        return self._history.begun_by(self.now_s)[0]

    def prices(self, market: Market) -> PriceSeries:
        return self._history[market]

    def launch(self, wanted: MachineRequest) -> None:
        market = [getattr(wanted.market, name) for name in MARKET_FIELDS]
        self._api.ask("launch", {**asdict(wanted), "market": market, "agent": dict(wanted.agent)})

    def terminate(self, token: str) -> float | None:
        ended_s: float | None = self._api.ask("terminate", {"token": token})["ended_s"]
        return ended_s

    def interrupt(self, token: str) -> bool:
        """Have a running machine revoked, with a notice; False: it does not run, or has a notice already."""
        return bool(self._api.ask("interrupt", {"token": token})["is_noticed"])

    def instances(self) -> Sequence[Instance]:
        return [instance_of(values) for values in self._api.ask("instances")]

    def bills(self) -> list[dict[str, Any]]:
        """The cloud's own record of what each machine cost, in USD by token."""
        found: list[dict[str, Any]] = self._api.ask("bills")
        return found

    def processes(self) -> dict[str, int]:
        """Process ids of running agents by their machines' tokens."""
        found: dict[str, int] = self._api.ask("processes")
        return found

    def end(self) -> list[dict[str, Any]]:
        """End the cloud and all its machines; returns its bills."""
        end_cloud(self._folder)
        return bills_of(self._folder)
