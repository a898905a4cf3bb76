"""A running stand-in for Google Cloud: a bucket, a service account's file, prices, and settings of machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ebbtide.clouds.gcp.settings import GcpRegion, GcpSettings
from ebbtide.market.prices import PriceHistory
from ebbtide.storage.buckets import gcs_client
from ebbtide.storage.google_tokens import GoogleTokens
from ebbtide.testing.gcp_stand_in.api import GcpApi
from ebbtide.testing.stand_in.environment import environment_variables
from ebbtide.testing.stand_in.machines import StandInMachines

PROJECT = "stand-in-project"
REGIONS: Mapping[str, tuple[str, ...]] = {"us-central1": ("us-central1-a", "us-central1-b")}
_BUCKET = "stand-in-gcs"


@contextmanager
def gcp_stand_in(
    folder: Path,
    prices: PriceHistory,
    python: str = sys.executable,
    regions: Mapping[str, tuple[str, ...]] = REGIONS,
    on_machines: Mapping[str, str] | None = None,
    **more: Any,
) -> Iterator[tuple[GcpApi, StandInMachines, GcpSettings]]:
    """Run a stand-in for Google Cloud; within the block, Google's standard credentials chain uses it.

    Args:
        folder: Folder for all files.
        prices: Spot prices, written to the file that the settings name.
        python: Python of the machines, with the packages of their programs; the agent needs none.
        regions: Zones in which machines may be rented, by region.
        on_machines: Further environment variables of machines, as their image would set them.
        **more: Settings of machines that replace the defaults.
    """
    folder.mkdir(parents=True)
    api = GcpApi(PROJECT)
    prices.write(folder / "prices.parquet")
    given: dict[str, Any] = {
        "project": PROJECT,
        "regions": {name: GcpRegion(zones=list(zones)) for name, zones in regions.items()},
        "prices": str(folder / "prices.parquet"),
        "image": "projects/stand-in-project/global/images/family/training",
        "store": f"gs://{_BUCKET}/ebbtide",
        "service_account": f"agent@{PROJECT}.iam.gserviceaccount.com",
        "python": python,
        "controller_limit_s": 60.0,
        "poll_s": 0.2,
        "notice_poll_s": 0.2,
    }
    settings = GcpSettings(**(given | more))
    write_service_account(folder / "service-account.json", api.token_url)
    storage = {"STORAGE_EMULATOR_HOST": api.url}
    environment = {
        **storage,
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{api.url}/compute/v1/",
        "GOOGLE_APPLICATION_CREDENTIALS": str(folder / "service-account.json"),
    }
    of_machines = {**storage, **(on_machines or {})}
    machines = StandInMachines(folder / "machines", settings.folder, of_machines, api.compute)
    try:
        with environment_variables(environment):
            gcs_client(GoogleTokens()).create_bucket(Bucket=_BUCKET)
            yield api, machines, settings
    finally:
        machines.close()
        api.close()


def write_service_account(path: Path, token_url: str) -> None:
    """Write the file of a service account with a new key, which gets its tokens at an address."""
    from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = generate_private_key(65_537, 2_048).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    content = {
        "type": "service_account",
        "project_id": PROJECT,
        "private_key_id": "stand-in",
        "private_key": key.decode(),
        "client_email": f"controller@{PROJECT}.iam.gserviceaccount.com",
        "token_uri": token_url,
    }
    path.write_text(json.dumps(content))
    path.chmod(0o600)
