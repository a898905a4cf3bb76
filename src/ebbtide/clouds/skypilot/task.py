"""The SkyPilot task that runs an agent: its machine, its place, and the start script."""

from __future__ import annotations

import math
import re
from typing import Any

import yaml

from ebbtide.clouds.cloud import MachineRequest
from ebbtide.clouds.names import label
from ebbtide.clouds.skypilot.settings import SkyPilotSettings
from ebbtide.clouds.start_script import SKYPILOT, start_script
from ebbtide.market.markets import Market

RUN_LABEL, TOKEN_LABEL = "ebbtide-run", "ebbtide-token"

# Assumed seconds from notice to revocation, on clouds whose metadata do not give the revocation's time.
_NOTICE_S = 30.0


def task_yaml(run: str, wanted: MachineRequest, settings: SkyPilotSettings) -> str:
    """Return the task as YAML text.

    Args:
        run: Id of the run.
        wanted: The request for a machine.
        settings: Settings of the run's machines.

    Raises:
        InputError: The start script is too long, or a line of `setup` would end it early.
    """
    market = wanted.market
    agent = {**wanted.agent, "metadata_of": "gcp" if market.cloud == "gcp" else "aws", "notice_s": _NOTICE_S}
    resources: dict[str, Any] = {
        "infra": infra(market),
        "instance_type": market.instance_type,
        "use_spot": not wanted.on_demand,
        # An idle machine is taken down even if its controller is lost.
        "autostop": {"idle_minutes": settings.idle_min, "down": True},
        "labels": {**settings.labels, RUN_LABEL: label(run), TOKEN_LABEL: label(wanted.token)},
    }
    if not wanted.on_demand and math.isfinite(wanted.max_price_usd_per_hour):
        # SkyPilot compares this with its own price, which may be older or newer than Ebbtide's.
        resources["max_hourly_cost"] = wanted.max_price_usd_per_hour
    place = settings.places.get(f"{market.cloud}/{market.region}")
    if place is not None and place.image:
        resources["image_id"] = place.image
    if settings.disk_gib:
        resources["disk_size"] = settings.disk_gib
    content = {"name": "ebbtide", "resources": resources, "run": start_script(settings, agent, SKYPILOT)}
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def infra(market: Market) -> str:
    """Return cloud, region and zone as SkyPilot names them, without the zone if that is the whole region."""
    place = f"{market.cloud}/{market.region}"
    named = re.fullmatch(rf"{re.escape(market.region)}-?[a-z]\d?", market.zone)
    return f"{place}/{market.zone}" if named else place
