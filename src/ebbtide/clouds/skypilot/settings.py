"""Settings of machines that SkyPilot rents, as users write them in YAML."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ebbtide.clouds.machines import MachineSettings
from ebbtide.jobs.parsing import Frozen, read_mapping, validated
from ebbtide.market.markets import Place

_Text = Annotated[str, Field(min_length=1)]
_Place = Annotated[str, Field(pattern=r"^[a-z][a-z0-9]*/[A-Za-z0-9][A-Za-z0-9_-]*$")]
_Zone = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]


class SkyPilotPlace(Frozen):
    """Settings of machines in one region of one cloud.

    Attributes:
        zones: Zones in which machines may be rented; none: in all that have a price. If the price is for the whole
            region, SkyPilot chooses the zone.
        image: Image as SkyPilot names it there, such as `ami-...` or `docker:python:3.12`; empty: SkyPilot's own.
    """

    zones: list[_Zone] = Field(default_factory=list, examples=[["us-east-1a"]])
    image: Annotated[str, Field(pattern=r"^\S*$")] = ""


class SkyPilotSettings(MachineSettings):
    """Settings of machines that SkyPilot rents, in any of its clouds.

    Attributes:
        places: Settings by place in which machines may be rented: `CLOUD/REGION`, such as `lambda/us-west-1`.
        prices: Path of a file with prices of those clouds, as `ebbtide ingest` writes it: SkyPilot has no price
            history. It is read again when it has changed.
        server: Address of SkyPilot's API server; empty: the one in SKYPILOT_API_SERVER_ENDPOINT, or else the one
            that `sky api start` starts on this machine.
        store: `s3://bucket/prefix` or `gs://bucket/prefix` for code, agent, checkpoints, orders and reports; all
            machines need credentials for it, which SkyPilot provides to machines of the same cloud.
        disk_gib: Size of the disk in GiB; 0: SkyPilot's default.
        idle_min: Minutes without an agent after which SkyPilot takes a machine down by itself.
        folder: Folder on the machine for everything that Ebbtide writes there; the programs' user makes it.
        setup: Shell lines that install what the training needs, run before the agent as SkyPilot's user; if one
            fails, or they take longer than `setup_limit_s`, the machine ends.
    """

    places: Annotated[dict[_Place, SkyPilotPlace], Field(min_length=1)]
    prices: _Text = Field(examples=["prices.parquet"])
    server: Annotated[str, Field(pattern=r"^(https?://[A-Za-z0-9._:/\[\]-]+)?$")] = ""
    store: Annotated[str, Field(pattern=r"^(gs|s3)://[a-z0-9._-]+(/.*)?$")] = Field(
        examples=["s3://my-bucket/ebbtide"]
    )
    disk_gib: Annotated[int, Field(ge=0)] = 0
    idle_min: Annotated[int, Field(ge=1)] = 5
    folder: Annotated[str, Field(pattern=r"^/[A-Za-z0-9._/-]+$")] = "/tmp/ebbtide"

    @property
    def zones(self) -> Mapping[Place, list[str]]:
        """Zones in which machines may be rented, by place; an empty list: all zones."""
        return {Place(*name.split("/")): place.zones for name, place in self.places.items()}

    @classmethod
    def read(cls, path: str | Path) -> SkyPilotSettings:
        """Read settings from a YAML file such as examples/live/skypilot.yaml.

        Its `prices` path is relative to the file.

        Raises:
            InputError: The file is missing, is not YAML, or a field is missing, unknown or out of range.
        """
        content = read_mapping(path, "settings of SkyPilot: a mapping with places, prices, store...")
        return validated(cls, content, path).beside(path)

    def beside(self, file: str | Path) -> SkyPilotSettings:
        """Return the settings with their `prices` path, relative to a file's folder, made absolute."""
        return self.model_copy(update={"prices": str((Path(file).parent / self.prices).resolve())})
