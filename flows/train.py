"""A live run as a flow: the same run as `ebbtide run` and `eb.run`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect import flow

import ebbtide as eb


@flow(name="train", validate_parameters=False)
def train(
    job: str | Path, policy: str = "default", provider: str = "local", options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Run a job or a sweep to its end.

    Args:
        job: Path of the file that describes it, a job or a sweep.
        policy: Name of the policy that decides.
        provider: `local`, `ec2` or `replay`.
        options: What else `eb.run` takes, by name (`eb.RunOptions`).

    Returns:
        Name of the run (empty in replay), whether it finished, its cost in USD, and its number of revocations.

    Raises:
        InputError: The file, the policy or an option is wrong.
        TrainingError: All trials ended, and some failed, so that the flow run fails too.
    """
    found: eb.Run | eb.Outcome = eb.run(job, policy, provider, **options or {})  # type: ignore[call-overload]
    # A flow that is cancelled stops its run, which saves everything and can be resumed.
    outcome = found.result() if isinstance(found, eb.Run) else found
    return {
        "run": found.id if isinstance(found, eb.Run) else "",
        "finished": outcome.finished,
        "cost_usd": outcome.cost_usd,
        "revocations": outcome.revocations,
    }
