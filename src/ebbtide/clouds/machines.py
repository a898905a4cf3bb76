"""Settings of machines on any cloud: where they find the run, and how they are set up."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from ebbtide.base.utc import DAY_S
from ebbtide.errors import InputError
from ebbtide.jobs.parsing import Frozen

# Longest limits and polls that a new run may have, seconds.
_LONGEST_S = {
    "setup_limit_s": DAY_S,
    "controller_limit_s": 7 * DAY_S,
    "poll_s": 600.0,
    "price_poll_s": DAY_S,
    "notice_poll_s": 60.0,
}


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
    setup_limit_s: Annotated[float, Field(ge=1)] = 1800.0
    folder: Annotated[str, Field(pattern=r"^/[A-Za-z0-9._/-]+$")] = "/var/lib/ebbtide"
    controller_limit_s: Annotated[float, Field(ge=20)] = 900.0
    poll_s: Annotated[float, Field(gt=0)] = 5.0
    price_poll_s: Annotated[float, Field(ge=1)] = 300.0
    notice_poll_s: Annotated[float, Field(gt=0)] = 5.0
    labels: dict[
        Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,62}$")],
        Annotated[str, Field(pattern=r"^[a-z0-9_-]{0,63}$")],
    ] = Field(default_factory=dict)

    def check_limits(self, file: str | Path | None = None) -> None:
        """Check the limits and polls of a new run; what a run keeps is never refused, or it could not be ended.

        Args:
            file: Their file, for errors; None: there is none.

        Raises:
            InputError: One is so long that machines would not end themselves, or nobody would look.
        """
        for name, longest_s in _LONGEST_S.items():
            if not getattr(self, name) <= longest_s:
                problem = f"is {getattr(self, name):g}; {longest_s:g} s is the most"
                raise InputError(problem, file=file, field=name)
