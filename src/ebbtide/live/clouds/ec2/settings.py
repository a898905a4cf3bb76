"""Settings of machines on EC2, as users write them in YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from ebbtide.jobs.parsing import Frozen, read_mapping, validated

_Text = Annotated[str, Field(min_length=1)]


class Ec2Region(Frozen):
    """Settings of machines in one region.

    Attributes:
        image_id: An image with Python 3.10 or later, and what the training needs, such as PyTorch. Ebbtide need
            not be on it: the agent is sent with the run.
        subnets: Subnet ids by zone; a zone without one uses its default subnet.
        security_groups: Ids of each machine's security groups; no port needs to be open.
    """

    image_id: Annotated[str, Field(pattern=r"^ami-[0-9a-f]+$")]
    subnets: dict[str, str] = Field(default_factory=dict)
    security_groups: list[str] = Field(default_factory=list)


class Ec2Settings(Frozen):
    """Settings of machines in all regions.

    Attributes:
        regions: Regions in which machines may be rented, with their settings, by name.
        store: `s3://bucket/prefix` for code, agent, checkpoints, orders and reports.
        store_endpoint_url: Address at which machines reach the store; empty: AWS. With another, set
            AWS_ENDPOINT_URL_S3 to it where the run is started.
        instance_profile: Name of a role that may read and write the store, and nothing else; empty: none, for an
            image with credentials of its own.
        python: Python on the machine, 3.10 or later; `python` in a sweep's command is this one.
        setup: Lines of shell that set up the training's needs, run as root before the agent; if one fails, the
            machine ends.
        folder: Folder on the machine for everything that Ebbtide writes there.
        volume_gib: Size of the root volume in GiB; 0: as the image has it.
        controller_limit_s: Seconds without a heartbeat of its controller after which a machine saves and ends.
        poll_s: Seconds between looks for orders and reports.
        notice_poll_s: Seconds between looks at the instance metadata.
    """

    regions: Annotated[dict[str, Ec2Region], Field(min_length=1)]
    store: Annotated[str, Field(pattern=r"^s3://[a-z0-9.-]+(/.*)?$")]
    store_endpoint_url: Annotated[str, Field(pattern=r"^(https?://[A-Za-z0-9._:/-]+)?$")] = ""
    instance_profile: str = ""
    python: _Text = "python3"
    setup: list[_Text] = Field(default_factory=list)
    folder: Annotated[str, Field(pattern=r"^/[A-Za-z0-9._/-]+$")] = "/var/lib/ebbtide"
    volume_gib: Annotated[int, Field(ge=0)] = 0
    controller_limit_s: Annotated[float, Field(ge=20)] = 900.0
    poll_s: Annotated[float, Field(gt=0)] = 5.0
    notice_poll_s: Annotated[float, Field(gt=0)] = 5.0

    @classmethod
    def read(cls, path: str | Path) -> Ec2Settings:
        """Read settings from a YAML file such as examples/live/ec2.yaml.

        Raises:
            InputError: The file is missing, is not YAML, or a field is missing, unknown or out of range.
        """
        return validated(cls, read_mapping(path, "EC2 settings: a mapping with regions, store..."), path)
