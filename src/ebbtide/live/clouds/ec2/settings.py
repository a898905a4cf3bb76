"""What machines on EC2 are, as users write it in YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from ebbtide.jobs.parsing import Frozen, read_mapping, validated

_Text = Annotated[str, Field(min_length=1)]


class Ec2Region(Frozen):
    """One region.

    Attributes:
        image_id: An image with Python 3.10 or later, and what the training needs beside it, PyTorch say. Nothing
            of Ebbtide need be on it: the agent is sent with the run.
        subnets: By zone; where none is named, the zone's default.
        security_groups: Of each machine; nothing need be reachable from outside.
    """

    image_id: Annotated[str, Field(pattern=r"^ami-[0-9a-f]+$")]
    subnets: dict[str, str] = Field(default_factory=dict)
    security_groups: list[str] = Field(default_factory=list)


class Ec2Settings(Frozen):
    """What machines are, wherever they are.

    Attributes:
        regions: Where machines may be rented.
        store: For code, agent, checkpoints, orders and reports: `s3://bucket/prefix`.
        store_endpoint_url: Where machines reach the store; empty: AWS. With another, set AWS_ENDPOINT_URL_S3 to it
            where the run is started.
        instance_profile: A role that may read and write the store, and nothing else; empty: none, where the image
            has credentials of its own.
        python: Python on the machine, 3.10 or later; `python` in a sweep's command is this one.
        setup: Lines of shell for what the training needs, run as root before the agent; if one fails, the machine
            ends.
        folder: On the machine, for all that Ebbtide writes there.
        volume_gib: Of the root volume; 0: as the image has it.
        controller_limit_s: A machine that sees no sign of its controller for so long saves and ends.
        poll_s: Between looks for orders and reports.
        notice_poll_s: Between looks at the instance metadata.
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
        """Read them from YAML, as examples/live/ec2.yaml has them.

        Raises:
            InputError: The file is missing, is not YAML, or a field is missing, unknown or out of range.
        """
        return validated(cls, read_mapping(path, "EC2 settings: a mapping with regions, store..."), path)
