"""Settings of machines on Google Cloud, as users write them in YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from ebbtide.clouds.machines import MachineSettings
from ebbtide.jobs.parsing import Frozen, read_mapping, validated

_Text = Annotated[str, Field(min_length=1)]
_Name = Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$")]
_Image = Annotated[str, Field(pattern=r"^projects/[A-Za-z0-9.:-]+/global/images/(family/)?[a-z0-9.-]+$")]


class GcpRegion(Frozen):
    """Settings of machines in one region.

    Attributes:
        zones: Zones in which machines may be rented, such as `us-central1-a`.
        subnetwork: Name of the machines' subnetwork; empty: the network's own in this region.
    """

    zones: Annotated[list[_Name], Field(min_length=1)] = Field(examples=[["us-central1-a", "us-central1-b"]])
    subnetwork: Annotated[str, Field(pattern=r"^[A-Za-z0-9/_.:-]*$")] = ""


class GcpSettings(MachineSettings):
    """Settings of machines in all regions of a Google Cloud project.

    Attributes:
        project: Id of the project that pays for the machines.
        regions: Regions in which machines may be rented, with their settings, by name.
        prices: Path of a file with spot prices of `gcp`, as `ebbtide ingest` writes it: Google publishes no price
            history. It is read again when it has changed. A price of a region holds in each of its zones.
        image: Image with Python 3.10 or later and what the training needs: `projects/P/global/images/family/F`, or
            `projects/P/global/images/I`.
        store: `gs://bucket/prefix` for code, agent, checkpoints, orders and reports; or `s3://bucket/prefix`, for
            an image with AWS credentials of its own.
        service_account: Email address of the machines' service account, which may read and write the store and
            nothing else; empty: none, so that only a store at S3 can be used.
        network: Name of the machines' network.
        external_ip: Whether machines have external IP addresses; without them, the subnetwork needs Private Google
            Access, or machines do not reach the store.
        tags: Network tags of each machine, for firewall rules; no port needs to be open.
        disk_gib: Size of the boot disk in GiB; 0: the image's size.
        disk_type: Type of the boot disk, such as `pd-balanced` or `hyperdisk-balanced`.
        longest_h: Hours after which Google deletes a machine in any case, even if its controller is lost.
        notice_s: Seconds of the notice before a machine is preempted: 30, or 120, which Google grants on request.
    """

    project: Annotated[str, Field(pattern=r"^([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]$")] = Field(
        examples=["my-project-1"]
    )
    regions: Annotated[dict[_Name, GcpRegion], Field(min_length=1)]
    prices: _Text = Field(examples=["gcp-prices.parquet"])
    image: Annotated[str, Field(pattern=r"^projects/[A-Za-z0-9.:-]+/global/images/(family/)?[a-z0-9.-]+$")] = (
        Field(examples=["projects/my-project-1/global/images/family/training"])
    )
    store: Annotated[str, Field(pattern=r"^(gs|s3)://[a-z0-9._-]+(/.*)?$")] = Field(
        examples=["gs://my-bucket/ebbtide"]
    )
    service_account: Annotated[str, Field(pattern=r"^([^@\s]+@[^@\s]+)?$")] = ""
    network: Annotated[str, Field(pattern=r"^[A-Za-z0-9/_.:-]+$")] = "default"
    external_ip: bool = True
    tags: list[_Name] = Field(default_factory=list)
    disk_gib: Annotated[int, Field(ge=0)] = 0
    disk_type: _Name = "pd-balanced"
    longest_h: Annotated[float, Field(ge=0.1, le=2880)] = 168.0
    notice_s: Literal[30, 120] = 30
    notice_poll_s: Annotated[float, Field(gt=0)] = 1.0

    @field_validator("regions")
    @classmethod
    def _zones_are_theirs(cls, regions: dict[str, GcpRegion]) -> dict[str, GcpRegion]:
        for name, region in regions.items():
            for zone in region.zones:
                if zone.rpartition("-")[0] != name:
                    raise ValueError(f"{zone} is no zone of {name}; write for example {name}-a")
        return regions

    @property
    def zones(self) -> list[str]:
        """All zones in which machines may be rented."""
        return [zone for region in self.regions.values() for zone in region.zones]

    @classmethod
    def read(cls, path: str | Path) -> GcpSettings:
        """Read settings from a YAML file such as examples/live/gcp.yaml; its `prices` path is relative to it.

        Raises:
            InputError: The file is missing, is not YAML, or a field is missing, unknown or out of range.
        """
        found = validated(cls, read_mapping(path, "GCP settings: a mapping with project, regions, store..."), path)
        return found.beside(path)

    def beside(self, file: str | Path) -> GcpSettings:
        """Return the settings with their `prices` path, relative to a file's folder, made absolute."""
        return self.model_copy(update={"prices": str((Path(file).parent / self.prices).resolve())})
