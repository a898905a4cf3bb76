"""What a training does not do that its user surely wants: report its metric, and save."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from ebbtide.live.agent_state import Trial

# Real seconds of training after which silence is worth a warning, if no machine was taken before.
WARNED_AFTER_S = 60.0


def warnings_of(trial: Trial, metric: str | None, *, is_over: bool = False) -> list[str]:
    """Of one training that has run for a while, was taken from its machine, or is over; in words, without its id.

    Args:
        trial: The training.
        metric: What trials are compared by; None: nothing.
        is_over: It is at its end: that it never saved costs nothing any more.
    """
    found = []
    if metric is not None and not trial.metrics:
        found.append(_no_metric(metric, trial.fields))
    if not trial.progress.checkpoints and not is_over:
        found.append(
            "it has saved nothing: when its machine is taken it begins from nothing again; name the folder in "
            "which it saves with --checkpoints, let it write into EBBTIDE_CHECKPOINT_DIR, or use ebbtide.trial"
        )
    return found


def _no_metric(metric: str, fields: Sequence[str]) -> str:
    if not fields:
        return (
            f"metric {metric!r} was never reported: the program prints no line of JSON with numbers, "
            f'for example {{"step": 120, "{metric}": 0.31}}'
        )
    near = get_close_matches(metric, fields, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"metric {metric!r} was never reported; the program reports: {', '.join(sorted(fields))}{hint}"
