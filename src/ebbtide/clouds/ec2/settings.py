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
    """An image given by name, since its id differs by region.

    Attributes:
        name: Its exact name; if several images have it, the newest available one is used.
        owners: Owners of the images to consider: account numbers, `self` or `amazon`.
        copy_from: Region from which it is copied to regions that lack it; empty: every region must have it. Copies
            are kept, and their storage costs.
    """

    # No * or ?: EC2's name filter takes them as wildcards.
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9()\[\] ./'@_-]{3,128}$", examples=["my-training-1"])]
    owners: Annotated[list[_Text], Field(min_length=1)] = Field(default=["self"], examples=[["self"]])
    copy_from: Annotated[str, Field(pattern=r"^([a-z]+(-[a-z]+)+-\d+)?$")] = Field(
        default="", examples=["us-east-1"]
    )


class Ec2Region(Frozen):
    """Settings of machines in one region.

    Attributes:
        image_id: An image with Python 3.10 or later, and what the training needs, such as PyTorch. It need not
            have Ebbtide: machines fetch the agent from the store. None: the image that `image` names.
        subnets: Subnet ids by zone; a zone without an entry uses its default subnet.
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
        image: Name of the image for regions without an image_id, found or copied there when a run begins;
            None: every region has an image_id.
        store: `s3://bucket/prefix` for code, agent, checkpoints, orders and reports.
        instance_profile: Name of an instance profile whose role may read and write the store, and nothing else;
            empty: none, for an image with credentials of its own.
        volume_gib: Size of the root volume in GiB; 0: the image's size.
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
        """Return the id of the image in a region.

        Raises:
            InputError: `with_images` has not looked it up yet.
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
        # Only a user's file is checked: the settings that a run keeps have both, once the image was found.
        if found.image is not None and all(region.image_id for region in found.regions.values()):
            raise InputError(
                "is for regions without an image_id, and all have one: leave one of them out",
                file=path,
                field="image",
            )
        return found
