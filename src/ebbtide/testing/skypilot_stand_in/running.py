"""A running stand-in for SkyPilot: its API server, a bucket, prices, and settings of machines."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ebbtide.clouds.skypilot.settings import SkyPilotPlace, SkyPilotSettings
from ebbtide.market.prices import PriceHistory
from ebbtide.testing.ec2_stand_in.running import write_credentials
from ebbtide.testing.skypilot_stand_in.api import SkyPilotApi
from ebbtide.testing.stand_in.environment import environment_variables
from ebbtide.testing.stand_in.machines import StandInMachines
from ebbtide.testing.stand_in.server import LoopbackServer, moto_application, one_at_a_time

PLACES: Mapping[str, SkyPilotPlace] = {"aws/us-east-1": SkyPilotPlace(), "lambda/us-west-1": SkyPilotPlace()}
_BUCKET = "stand-in-sky"
_HIDDEN = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE")


@contextmanager
def skypilot_stand_in(
    folder: Path,
    prices: PriceHistory,
    python: str = sys.executable,
    places: Mapping[str, SkyPilotPlace] = PLACES,
    **more: Any,
) -> Iterator[tuple[SkyPilotApi, StandInMachines, SkyPilotSettings]]:
    """Run a stand-in for SkyPilot; within the block, the environment points to it.

    Args:
        folder: Folder for all files.
        prices: Spot prices, written to the file that the settings name.
        python: Python of the machines, with the packages of their programs; the agent needs none.
        places: Places in which machines may be rented, by cloud and region.
        **more: Settings of machines that replace the defaults.
    """
    import boto3

    folder.mkdir(parents=True)
    api, storage = SkyPilotApi(), LoopbackServer(one_at_a_time(moto_application()))
    prices.write(folder / "prices.parquet")
    given: dict[str, Any] = {
        "places": dict(places),
        "prices": str(folder / "prices.parquet"),
        "store": f"s3://{_BUCKET}/ebbtide",
        "python": python,
        "controller_limit_s": 60.0,
        "poll_s": 0.2,
        "notice_poll_s": 0.2,
    }
    settings = SkyPilotSettings(**(given | more))
    write_credentials(folder / "credentials", "OF-THE-USER")
    of_machines = {
        "AWS_ENDPOINT_URL": storage.url,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_SHARED_CREDENTIALS_FILE": str(folder / "credentials"),
    }
    environment = {
        **of_machines,
        "AWS_CONFIG_FILE": str(folder / "config"),
        "SKYPILOT_API_SERVER_ENDPOINT": api.url,
    }
    machines = StandInMachines(folder / "machines", settings.folder, of_machines, api)
    try:
        with environment_variables(environment, (*_HIDDEN, "SKYPILOT_SERVICE_ACCOUNT_TOKEN")):
            boto3.Session().client("s3").create_bucket(Bucket=_BUCKET)
            yield api, machines, settings
    finally:
        machines.close()
        storage.close()
        api.close()
