"""Interrupt one of the user's own spot machines for real, by AWS's Fault Injection Service (FIS).

FIS sends what EC2 sends before it revokes a machine: a rebalance recommendation, and the notice two minutes before
the end; then EC2 ends the machine. FIS needs a role that it may assume, with `ec2:SendSpotInstanceInterruptions`
for the machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ebbtide.clouds.ec2.cloud import TOKEN_TAG, client_of
from ebbtide.errors import CloudError, InputError

# Names from the documentation of FIS.
_ACTION, _TARGET, _RESOURCE = "aws:ec2:send-spot-instance-interruptions", "SpotInstances", "aws:ec2:spot-instance"
# The shortest time that FIS accepts. The notice precedes the end by two minutes, so it comes at once.
_BEFORE = "PT2M"
# Length of the notice, seconds.
NOTICE_S = 120.0
_BEGUN = frozenset({"running", "completed"})
_PENDING = frozenset({"pending", "initiating"})
_WITHIN_S, _LOOK_S = 60.0, 1.0
_TRIES = 4


@dataclass(frozen=True)
class SpotInterruptions:
    """Interrupts spot machines.

    Attributes:
        role: ARN of the role that FIS assumes.
        client: Makes a client from the name of a service and a region; None: boto3's.
    """

    role: str
    client: Callable[[str, str], Any] | None = None

    def __post_init__(self) -> None:
        if not self.role.startswith("arn:") or ":role/" not in self.role:
            raise InputError(
                f"{self.role!r} is no role; write its ARN, arn:aws:iam::ACCOUNT:role/NAME", field="--fis-role"
            )

    def interrupt(self, region: str, token: str) -> None:
        """Have EC2 give a machine its notice now.

        Args:
            region: Region of the machine.
            token: The token that it was requested with.

        Raises:
            CloudError: There is no such spot machine, or the service refuses.
        """
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError

        try:
            arn = self._arn_of(region, token)
            self._send(self._made("fis", region), arn, token)
        except (BotoCoreError, ClientError, ResponseParserError) as error:
            raise CloudError(f"the machine cannot be interrupted by FIS in {region}: {error}") from error

    def _arn_of(self, region: str, token: str) -> str:
        ec2 = self._made("ec2", region)
        filters = [
            {"Name": f"tag:{TOKEN_TAG}", "Values": [token]},
            {"Name": "instance-state-name", "Values": ["running"]},
        ]
        for reservation in ec2.describe_instances(Filters=filters)["Reservations"]:
            for instance in reservation["Instances"]:
                if instance.get("InstanceLifecycle") == "spot":
                    return f"arn:aws:ec2:{region}:{reservation['OwnerId']}:instance/{instance['InstanceId']}"
        raise CloudError(f"there is no running spot machine {token} in {region} to be interrupted")

    def _send(self, fis: Any, arn: str, token: str) -> None:
        template = fis.create_experiment_template(
            clientToken=f"{token}-rehearsal",
            description=f"ebbtide rehearse: interrupts {token}"[:512],
            roleArn=self.role,
            targets={"machine": {"resourceType": _RESOURCE, "resourceArns": [arn], "selectionMode": "ALL"}},
            actions={
                "interrupt": {
                    "actionId": _ACTION,
                    "parameters": {"durationBeforeInterruption": _BEFORE},
                    "targets": {_TARGET: "machine"},
                }
            },
            stopConditions=[{"source": "none"}],
            tags={"Name": "ebbtide-rehearsal"},
        )["experimentTemplate"]["id"]
        try:
            experiment = fis.start_experiment(clientToken=f"{token}-start", experimentTemplateId=template)
            self._await(fis, experiment["experiment"])
        finally:
            fis.delete_experiment_template(id=template)

    @staticmethod
    def _await(fis: Any, experiment: dict[str, Any]) -> None:
        """Wait until the experiment has begun.

        Raises:
            CloudError: It failed, or has not begun within a minute.
        """
        until_s = time.monotonic() + _WITHIN_S
        while True:
            status = experiment["state"]["status"]
            if status in _BEGUN:
                return
            if status not in _PENDING or time.monotonic() >= until_s:
                reason = experiment["state"].get("reason") or "it gave no reason"
                raise CloudError(f"FIS does not interrupt the machine: the experiment is {status}: {reason}")
            time.sleep(_LOOK_S)
            experiment = fis.get_experiment(id=experiment["id"])["experiment"]

    def _made(self, service: str, region: str) -> Any:
        if self.client is not None:
            return self.client(service, region)
        if service == "ec2":
            return client_of(region, _TRIES)
        import boto3

        return boto3.Session().client(service, region_name=region)
