"""Body of the request to Google for one machine: its type, disk, network, account and scheduling."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ebbtide.clouds.cloud import MachineRequest
from ebbtide.clouds.gcp.settings import GcpSettings
from ebbtide.clouds.names import label
from ebbtide.clouds.start_script import GCP, start_script
from ebbtide.errors import InputError

RUN_LABEL, TOKEN_LABEL = "ebbtide-run", "ebbtide-token"
# A metadata item, since a label cannot hold every token unchanged.
TOKEN_ITEM = "ebbtide-token"

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"

# `n1-standard-8+nvidia-tesla-t4:1`: N1 machines name their accelerators; other types imply them.
_TYPE = re.compile(r"(?P<machine>[a-z0-9-]+)(\+(?P<kind>[a-z0-9-]+):(?P<count>[1-9]\d?))?")
_HAS_ACCELERATORS = re.compile(r"(a[234]|g[24])[a-z]*-")


def instance_body(name: str, run: str, wanted: MachineRequest, settings: GcpSettings) -> dict[str, Any]:
    """Return the request for an instance, as the API expects it.

    Args:
        name: Name of the instance.
        run: Id of the run.
        wanted: The request for a machine.
        settings: Settings of the run's machines.

    Raises:
        InputError: The instance type is malformed, or the start script is too long.
    """
    market = wanted.market
    machine, accelerators = _machine(market.instance_type, market.zone)
    labels = {**settings.labels, RUN_LABEL: label(run), TOKEN_LABEL: label(wanted.token)}
    agent = {**wanted.agent, "metadata_of": "gcp", "notice_s": float(settings.notice_s)}
    # Set here, since a run on several clouds does not know before which one rents the machine.
    agent["notice_poll_s"] = settings.notice_poll_s
    disk: dict[str, Any] = {
        "sourceImage": settings.image,
        "diskType": f"zones/{market.zone}/diskTypes/{settings.disk_type}",
        "labels": labels,
    }
    if settings.disk_gib:
        disk["diskSizeGb"] = str(settings.disk_gib)
    network: dict[str, Any] = {"network": _network(settings.network)}
    subnetwork = settings.regions[market.region].subnetwork
    if subnetwork:
        network = {"subnetwork": _subnetwork(subnetwork, market.region)}
    if settings.external_ip:
        network["accessConfigs"] = [{"type": "ONE_TO_ONE_NAT"}]
    body: dict[str, Any] = {
        "name": name,
        "machineType": f"zones/{market.zone}/machineTypes/{machine}",
        "labels": labels,
        "metadata": {
            "items": [
                {"key": "startup-script", "value": start_script(settings, agent, GCP)},
                {"key": TOKEN_ITEM, "value": wanted.token},
            ]
        },
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": disk}],
        "networkInterfaces": [network],
        "scheduling": _scheduling(wanted, settings, bool(accelerators) or _has_accelerators(machine)),
    }
    if accelerators:
        body["guestAccelerators"] = accelerators
    if settings.service_account:
        body["serviceAccounts"] = [{"email": settings.service_account, "scopes": [_SCOPE]}]
    if settings.tags:
        body["tags"] = {"items": list(settings.tags)}
    return body


def token_of(instance: Mapping[str, Any]) -> str | None:
    """The token in an instance's metadata; None: somebody removed it."""
    items = instance.get("metadata", {}).get("items", ())
    return next((str(item.get("value", "")) for item in items if item.get("key") == TOKEN_ITEM), None)


def _machine(instance_type: str, zone: str) -> tuple[str, list[dict[str, Any]]]:
    found = _TYPE.fullmatch(instance_type)
    if found is None:
        raise InputError(
            f"{instance_type!r} is no instance type of GCP; write for example g2-standard-8, or for an N1 machine "
            "with accelerators n1-standard-8+nvidia-tesla-t4:1",
            field="instance_type",
        )
    if found["kind"] is None:
        return found["machine"], []
    kind = f"zones/{zone}/acceleratorTypes/{found['kind']}"
    return found["machine"], [{"acceleratorType": kind, "acceleratorCount": int(found["count"])}]


def _has_accelerators(machine: str) -> bool:
    return _HAS_ACCELERATORS.match(machine) is not None


def _scheduling(wanted: MachineRequest, settings: GcpSettings, has_accelerators: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "provisioningModel": "STANDARD" if wanted.on_demand else "SPOT",
        # A stopped machine would keep its disk, which still costs.
        "instanceTerminationAction": "DELETE",
        "maxRunDuration": {"seconds": str(round(settings.longest_h * 3600.0))},
        "automaticRestart": False,
        # Spot machines and machines with accelerators cannot migrate to another host.
        "onHostMaintenance": "MIGRATE" if wanted.on_demand and not has_accelerators else "TERMINATE",
    }
    if not wanted.on_demand and settings.notice_s > 30:
        found["preemptionNoticeDuration"] = {"seconds": str(settings.notice_s)}
    return found


def _network(network: str) -> str:
    return network if "/" in network else f"global/networks/{network}"


def _subnetwork(subnetwork: str, region: str) -> str:
    return subnetwork if "/" in subnetwork else f"regions/{region}/subnetworks/{subnetwork}"
