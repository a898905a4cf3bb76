"""Settings of machines on any cloud: where they find the run, and how they are set up."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ebbtide.base.utc import DAY_S
from ebbtide.jobs.parsing import Frozen


class MachineSettings(Frozen):
    """Settings of machines that are the same on every cloud.

    Attributes:
        store: Bucket and prefix for code, agent, checkpoints, orders and reports.
        store_endpoint_url: Address at which machines reach the store; empty: its cloud's own. If you set it, set
            AWS_ENDPOINT_URL_S3, or STORAGE_EMULATOR_HOST for gs://, to it where you start the run.
        python: Python on the machine, 3.10 or later; `python` in a sweep's command stands for it.
        setup: Shell lines that install what the training needs, run as root before the agent; if one fails, or
            they take longer than `setup_limit_s`, the machine ends.
        setup_limit_s: Seconds, set-up included, after which a machine ends if its agent has sent no heartbeat.
            After three such machines in a row the run ends; while others train, it requests one an hour.
        folder: Folder on the machine for everything that Ebbtide writes there.
        controller_limit_s: Seconds without a heartbeat of its controller after which a machine saves and ends.
        poll_s: Seconds between polls for orders and reports.
        price_poll_s: Seconds between fetches of prices.
        notice_poll_s: Seconds between polls of the instance metadata for notices.
        labels: Labels of each machine and its disk, beyond Ebbtide's own, for cost reports; tags on EC2.
    """

    store: str
    store_endpoint_url: Annotated[str, Field(pattern=r"^(https?://[A-Za-z0-9._:/-]+)?$")] = ""
    python: Annotated[str, Field(min_length=1)] = "python3"
    setup: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    setup_limit_s: Annotated[float, Field(ge=1, le=DAY_S)] = 1800.0
    folder: Annotated[str, Field(pattern=r"^/[A-Za-z0-9._/-]+$")] = "/var/lib/ebbtide"
    controller_limit_s: Annotated[float, Field(ge=20, le=7 * DAY_S)] = 900.0
    poll_s: Annotated[float, Field(gt=0, le=600)] = 5.0
    price_poll_s: Annotated[float, Field(ge=1, le=DAY_S)] = 300.0
    notice_poll_s: Annotated[float, Field(gt=0, le=60)] = 5.0
    labels: dict[
        Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,62}$")],
        Annotated[str, Field(pattern=r"^[a-z0-9_-]{0,63}$")],
    ] = Field(default_factory=dict)
