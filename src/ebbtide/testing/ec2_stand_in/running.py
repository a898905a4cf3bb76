"""A running stand-in for EC2: a bucket, a credentials file, and settings of machines."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ebbtide.clouds.ec2.settings import Ec2Region, Ec2Settings
from ebbtide.market.prices import PriceHistory
from ebbtide.testing.ec2_stand_in.api import StandInApi
from ebbtide.testing.ec2_stand_in.instances import MotoInstances
from ebbtide.testing.stand_in.environment import environment_variables
from ebbtide.testing.stand_in.machines import StandInMachines

REGIONS = ("us-east-1",)
# The user's access keys: the first one, and its replacement after a renewal.
KEYS = ("FIRST", "RENEWED")
_BUCKET = "stand-in"
# Region of a bucket made without a location.
_DEFAULT_REGION = "us-east-1"
# Variables with the user's real credentials.
_HIDDEN = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE")


@contextmanager
def stand_in(
    folder: Path, prices: PriceHistory, python: str = sys.executable, regions: Sequence[str] = REGIONS
) -> Iterator[tuple[StandInApi, StandInMachines, Ec2Settings]]:
    """Run a stand-in for EC2 with a bucket, a credentials file and settings for machines.

    Args:
        folder: Folder for all files.
        prices: Price history that EC2 reports.
        python: Python of the machines, with the packages of their programs; the agent needs none.
        regions: Regions in which machines may be rented; the bucket is in the first.
    """
    import boto3

    folder.mkdir(parents=True)
    api = StandInApi(prices)
    settings = Ec2Settings(
        regions={region: Ec2Region(image_id="ami-12c6146b") for region in regions},
        store=f"s3://{_BUCKET}/ebbtide",
        python=python,
        controller_limit_s=60.0,
        poll_s=0.2,
        notice_poll_s=0.2,
    )
    environment = {
        "AWS_ENDPOINT_URL": api.url,
        "AWS_DEFAULT_REGION": regions[0],
        "AWS_SHARED_CREDENTIALS_FILE": str(folder / "credentials"),
        "AWS_CONFIG_FILE": str(folder / "config"),
    }
    write_credentials(folder / "credentials", KEYS[0])
    # Machines get their credentials from their role.
    of_machines = {name: environment[name] for name in ("AWS_ENDPOINT_URL", "AWS_DEFAULT_REGION")}
    machines = StandInMachines(folder / "machines", settings.folder, of_machines, MotoInstances())
    try:
        with environment_variables(environment, _HIDDEN):
            place = {} if regions[0] == _DEFAULT_REGION else {"LocationConstraint": regions[0]}
            boto3.Session().client("s3").create_bucket(
                Bucket=_BUCKET, **({"CreateBucketConfiguration": place} if place else {})
            )
            yield api, machines, settings
    finally:
        machines.close()
        api.close()


def write_credentials(path: Path, key: str) -> None:
    """Write a credentials file, as a user does to renew credentials."""
    path.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = none\n")
