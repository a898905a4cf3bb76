"""The SkyPilot task that runs an agent: what machine, where, and the script that starts it."""

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

# Seconds from a notice to the revocation, on clouds whose metadata do not say when that is.
_NOTICE_S = 30.0


def task_yaml(run: str, wanted: MachineRequest, settings: SkyPilotSettings) -> str:
    """The task as YAML text.

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
        # Whatever becomes of its controller, a machine on which nothing runs is taken down.
        "autostop": {"idle_minutes": settings.idle_min, "down": True},
        "labels": {**settings.labels, RUN_LABEL: label(run), TOKEN_LABEL: label(wanted.token)},
    }
    if not wanted.on_demand and math.isfinite(wanted.max_price_usd_per_hour):
        # By the price that SkyPilot knows, which may be older or newer than ours.
        resources["max_hourly_cost"] = wanted.max_price_usd_per_hour
    place = settings.places.get(f"{market.cloud}/{market.region}")
    if place is not None and place.image:
        resources["image_id"] = place.image
    if settings.disk_gib:
        resources["disk_size"] = settings.disk_gib
    content = {"name": "ebbtide", "resources": resources, "run": start_script(settings, agent, SKYPILOT)}
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def infra(market: Market) -> str:
    """Cloud, region and zone as SkyPilot names them; the zone where it has a name of its own, as us-east-1a."""
    place = f"{market.cloud}/{market.region}"
    named = re.fullmatch(rf"{re.escape(market.region)}-?[a-z]\d?", market.zone)
    return f"{place}/{market.zone}" if named else place
