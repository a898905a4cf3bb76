"""Settings of machines on EC2, as users write them in YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from ebbtide.clouds.machines import MachineSettings
from ebbtide.errors import InputError
from ebbtide.jobs.parsing import Frozen, read_mapping, validated

_Text = Annotated[str, Field(min_length=1)]


class Ec2Image(Frozen):
    """An image by name, which has another id in each region.

    Attributes:
        name: Its exact name; of several, the newest one that is available is used.
        owners: Whose images count: account numbers, `self` or `amazon`.
        copy_from: Region from which it is copied to those that lack it; empty: it has to be in all of them. The
            storage of copies costs, and they stay.
    """

    # Without * and ?, which would stand for others.
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9()\[\] ./'@_-]{3,128}$", examples=["my-training-1"])]
    owners: Annotated[list[_Text], Field(min_length=1)] = Field(default=["self"], examples=[["self"]])
    copy_from: Annotated[str, Field(pattern=r"^([a-z]+(-[a-z]+)+-\d+)?$")] = Field(
        default="", examples=["us-east-1"]
    )


class Ec2Region(Frozen):
    """Settings of machines in one region.

    Attributes:
        image_id: An image with Python 3.10 or later, and what the training needs, such as PyTorch. Ebbtide need
            not be on it: the agent is sent with the run. None: the one of the settings' `image`.
        subnets: Subnet ids by zone; a zone without one uses its default subnet.
        security_groups: Ids of each machine's security groups; no port needs to be open.
    """

    image_id: Annotated[str, Field(pattern=r"^ami-[0-9a-f]+$")] | None = Field(
        default=None, examples=["ami-0123456789abcdef0"]
    )
    subnets: dict[str, str] = Field(default_factory=dict)
    security_groups: list[str] = Field(default_factory=list)


class Ec2Settings(MachineSettings):
    """Settings of machines in all regions.

    Attributes:
        regions: Regions in which machines may be rented, with their settings, by name.
        image: The image of regions without an image_id, by name: when a run begins it is found in each of them,
            or copied there; None: each has an image_id.
        store: `s3://bucket/prefix` for code, agent, checkpoints, orders and reports.
        instance_profile: Name of a role that may read and write the store, and nothing else; empty: none, for an
            image with credentials of its own.
        volume_gib: Size of the root volume in GiB; 0: as the image has it.
    """

    regions: Annotated[dict[str, Ec2Region], Field(min_length=1)]
    image: Ec2Image | None = None
    store: Annotated[str, Field(pattern=r"^s3://[a-z0-9.-]+(/.*)?$")]
    instance_profile: str = ""
    volume_gib: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _has_images(self) -> Ec2Settings:
        lacking = [name for name, region in self.regions.items() if region.image_id is None]
        if lacking and self.image is None:
            raise ValueError(
                f"{', '.join(lacking)} has no image: write `image_id: ami-0123456789abcdef0` there, or once for "
                "all regions `image: {name: my-training-1, copy_from: us-east-1}`"
            )
        return self

    def image_in(self, region: str) -> str:
        """Id of the image in a region.

        Raises:
            InputError: It was not looked up yet (`with_images`).
        """
        image_id = self.regions[region].image_id
        if image_id is None:
            raise InputError(f"the image in {region} was not looked up; begin the run anew", field="image")
        return image_id

    @classmethod
    def read(cls, path: str | Path) -> Ec2Settings:
        """Read settings from a YAML file such as examples/live/ec2.yaml.

        Raises:
            InputError: The file is missing, is not YAML, or a field is missing, unknown or out of range.
        """
        found = validated(cls, read_mapping(path, "EC2 settings: a mapping with regions, store..."), path)
        # Those that a run keeps have both, once the image was found.
        if found.image is not None and all(region.image_id for region in found.regions.values()):
            raise InputError(
                "is for regions without an image_id, and all have one: leave one of them out",
                file=path,
                field="image",
            )
        return found
