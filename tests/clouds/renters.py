"""One with a sweep that is trained on machines of a stand-in, and what differs from cloud to cloud."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from tests.harness.rented_demo import REFUSED
from tests.runs.commands import User
from tests.runs.sweeps import flapping, steady, sweep
from tests.waiting import LIMIT_S, eventually

from ebbtide.base.utc import HOUR_S
from ebbtide.clouds.machines import MachineSettings
from ebbtide.clouds.skypilot.settings import SkyPilotPlace
from ebbtide.market.billing import billing_preset
from ebbtide.market.prices import PriceHistory
from ebbtide.testing.ec2_stand_in.running import KEYS, stand_in, write_credentials
from ebbtide.testing.gcp_stand_in.running import gcp_stand_in
from ebbtide.testing.skypilot_stand_in.running import skypilot_stand_in
from ebbtide.testing.stand_in.machines import ROLE_KEY, StandInMachines
from ebbtide.testing.stand_in.money import billed, until_now

# What a run takes on a busy machine at most.
LONGEST_S = 600.0


def quiet() -> PriceHistory:
    """Two markets of EC2 that stay as they are, until now."""
    whole = flapping(hours=2.0)
    return until_now(whole.window(whole.start_s, whole.start_s + 12 * HOUR_S), time.time())


def write_sweep(path: Path, **options: Any) -> None:
    """Write a sweep with a budget, and its program beside it; how it is charged is left to the cloud."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = sweep(path.parent, **{"budget_usd": 1.0, **options}).model_dump(mode="json", exclude_none=True)
    content["command"] = "python program.py {checkpoint_dir} {max_steps} {lr}"
    assert content.pop("billing") == "ec2-second"
    path.write_text(yaml.safe_dump(content))


def wait_for(controller: subprocess.Popen[Any], condition: Callable[[], object]) -> None:
    """Wait for something that comes before a run ends."""

    def has_come() -> object:
        found = condition()
        assert found or controller.poll() is None, f"the run has ended: {controller.communicate()[1]}"
        return found

    eventually(has_come, limit_s=3 * LIMIT_S, poll_s=0.1)


@dataclass(frozen=True)
class StandIn:
    """The differences between clouds, for tests that run on each.

    Attributes:
        provider: Its name on the command line.
        prices: Prices of its machines.
        opened: Its stand-in, in a folder, at prices, with a Python of machines: its API, machines and settings.
        refusals: What of its API refuses launches.
        refused: What it answers to launches, in turn; empty: the launch succeeds.
        failures: What is told of launches that failed; of the others that are refused nothing is.
        secrets: Parts of credentials that were given.
        billing: The rule by which a run is charged whose file names none.
        charged: The rule by which its machines are charged.
        credentials: A variable that names credentials, a place without any, and words of what is said of that.
        expire: Has the user's credentials end, and gives them anew.
        expired: What is refused meanwhile, as its API lists it.
        kept: Settings that a run keeps beyond those that it was given.
    """

    provider: str
    prices: Callable[[], PriceHistory]
    opened: Callable[..., AbstractContextManager[tuple[Any, StandInMachines, Any]]]
    refusals: Callable[[Any], Any]
    refused: tuple[str, ...]
    failures: tuple[str, ...]
    secrets: Callable[[Any], list[str]]
    billing: str
    charged: str
    credentials: tuple[str, str, tuple[str, ...]]
    expire: Callable[[Any, Path], None] = lambda _api, _folder: None
    expired: tuple[str, ...] = ()
    kept: Callable[[Any], Mapping[str, Any]] = lambda _api: {}

    def __str__(self) -> str:
        return self.provider


def _expire_on_ec2(api: Any, folder: Path) -> None:
    """They end, and are renewed where they are kept."""
    api.refusals.expired.add(KEYS[0])
    eventually(lambda: "RequestExpired" in api.refusals.sent)
    write_credentials(folder / "credentials", KEYS[1])


EC2 = StandIn(
    "ec2",
    quiet,
    stand_in,
    refusals=lambda api: api.refusals,
    refused=REFUSED,
    failures=("InsufficientInstanceCapacity", "SpotMaxPriceTooLow"),
    secrets=lambda _: [*KEYS, ROLE_KEY],
    billing="ec2-second",
    charged="ec2-second",
    credentials=("AWS_SHARED_CREDENTIALS_FILE", "none", ("there are no AWS credentials",)),
    expire=_expire_on_ec2,
    expired=("RequestExpired",),
)
GCP = StandIn(
    "gcp",
    lambda: until_now(steady(), time.time()),
    gcp_stand_in,
    refusals=lambda api: api.compute.refusals,
    refused=("ZONE_RESOURCE_POOL_EXHAUSTED", "", "rateLimitExceeded"),
    failures=("ZONE_RESOURCE_POOL_EXHAUSTED",),
    secrets=lambda api: [*api.given, ROLE_KEY, "BEGIN PRIVATE KEY"],
    billing="gcp-spot",
    charged="gcp-spot",
    credentials=("GOOGLE_APPLICATION_CREDENTIALS", "none.json", ("gcloud auth application-default login",)),
    # The library gets another token by itself.
    expire=lambda api, _folder: api.expired.update(api.given),
)
SKYPILOT = StandIn(
    "skypilot",
    GCP.prices,
    partial(skypilot_stand_in, places={"gcp/us-central1": SkyPilotPlace()}),
    refusals=lambda api: api.refusals,
    refused=("ResourcesUnavailableError", ""),
    failures=("ResourcesUnavailableError: Failed to provision all possible launchable",),
    secrets=lambda _: ["OF-THE-USER"],
    billing="by-cloud",
    charged="gcp-spot",
    credentials=(
        "SKYPILOT_API_SERVER_ENDPOINT",
        "http://127.0.0.1:9",
        ("does not answer", "`sky api start` starts one"),
    ),
    # Which server it was.
    kept=lambda api: {"server": api.url},
)


@dataclass(kw_only=True)
class Renter(User):
    """One with a sweep and a file of machines, which a stand-in rents out.

    Attributes:
        cloud: Which cloud it is.
        api: The stand-in's API.
        machines: Its machines.
        settings: What machines are.
        prices: Their prices.
        stand_in: The stand-in's folder.
    """

    cloud: StandIn
    api: Any
    machines: StandInMachines
    settings: MachineSettings
    prices: PriceHistory
    stand_in: Path

    @property
    def file(self) -> Path:
        return self.folder / "code" / "sweep.yaml"

    def write(self, *, settings: MachineSettings | None = None, **options: Any) -> None:
        """Write a sweep with its program, and what machines are."""
        write_sweep(self.file, **options)
        self.write_machines(settings or self.settings)

    def write_machines(self, settings: MachineSettings) -> None:
        """Write what machines are."""
        path = self.folder / "machines.yaml"
        path.write_text(yaml.safe_dump(settings.model_dump(mode="json")))

    def change(self, **fields: Any) -> None:
        """Change fields of the sweep; None: leave one out."""
        content = yaml.safe_load(self.file.read_text()) | fields
        kept = {name: value for name, value in content.items() if value is not None}
        self.file.write_text(yaml.safe_dump(kept))

    @property
    def words(self) -> tuple[object, ...]:
        """The command that runs the sweep."""
        return ("run", self.file, "--provider", self.cloud.provider, "--machines", self.folder / "machines.yaml")

    def wait(self, condition: Callable[[], object]) -> None:
        """Wait for something that comes before the end of the run."""
        wait_for(self.started[-1], condition)

    def end(self, code: int = 0) -> str:
        """Wait for the end of the run; what it said of what was wrong."""
        controller = self.started[-1]
        _, errors = controller.communicate(timeout=LONGEST_S)
        assert controller.returncode == code, errors
        return errors

    def has_saved(self) -> bool:
        """Look for a checkpoint of any program on a machine."""
        return any(any((one.folder / "root" / "work").glob("*/checkpoints")) for one in self.machines.running)

    def billed_usd(self) -> float:
        """The cost of the machines by the record of their cloud."""
        return billed(self.machines.all.values(), self.prices, billing_preset(self.cloud.charged))


@contextmanager
def renter(cloud: StandIn, folder: Path, python: str) -> Iterator[Renter]:
    """Whatever becomes of it, no process of it is left."""
    prices = cloud.prices()
    with cloud.opened(folder / "stand-in", prices, python) as (api, machines, settings):
        one = Renter(
            folder / "user",
            cloud=cloud,
            api=api,
            machines=machines,
            settings=settings,
            prices=prices,
            stand_in=folder / "stand-in",
        )
        one.folder.mkdir()
        try:
            yield one
        finally:
            one.kill()
