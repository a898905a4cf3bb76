"""moto's instances, in all regions, as the stand-in's machines see them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ebbtide.market.markets import Market
from ebbtide.testing.stand_in.machines import StandInInstance

_TAKEN = "Server.SpotInstanceTermination"
_SHUT_DOWN = "Client.InstanceInitiatedShutdown"

# Held while moto launches instances: moto lists an instance before marking it as spot.
LAUNCHING = threading.Lock()


class MotoInstances:
    """The instances of moto, whose state is global to the process."""

    def running(self) -> Sequence[StandInInstance]:
        """Return the running instances."""
        with LAUNCHING:
            return [_rented(instance) for instance in instances() if str(instance._state.name) == "running"]

    def end(self, rented: StandInInstance, taken: bool, ended_s: float) -> None:
        """Terminate an instance as EC2 does, not as a user does."""
        from moto.ec2.models.instances import StateReason

        instance, reason = rented.instance, _TAKEN if taken else _SHUT_DOWN
        instance.terminate()
        at = datetime.fromtimestamp(ended_s, UTC)
        instance._reason = f"{reason}: ended by EC2 ({at:%Y-%m-%d %H:%M:%S} GMT)"
        instance.state_reason = StateReason(f"{reason}: ended by EC2", reason)

    def environment(self, metadata_url: str) -> Mapping[str, str]:
        """Return the variable by which AWS's tools find the metadata."""
        return {"AWS_EC2_METADATA_SERVICE_ENDPOINT": metadata_url}


def instances() -> list[Any]:
    """Return all of moto's instances, in all regions."""
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.ec2.models import ec2_backends

    backends = list(ec2_backends[DEFAULT_ACCOUNT_ID].values())
    return [
        instance
        for backend in backends
        for reservation in list(backend.reservations.values())
        for instance in reservation.instances
    ]


def _rented(instance: Any) -> StandInInstance:
    zone = instance.placement.zone
    return StandInInstance(
        instance.id,
        Market("aws", zone[:-1], zone, instance.instance_type),
        instance.lifecycle == "spot",
        instance.launch_time.timestamp(),
        instance.user_data.decode(),
        instance,
    )
