"""Statistics of outcomes, and the table that shows them."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table

from ebbtide.execution.outcome import Outcome
from ebbtide.terminal import PlainConsole
from ebbtide.utc import HOUR_S

METRICS: dict[str, Callable[[Outcome], float]] = {
    "cost_usd": lambda outcome: outcome.cost_usd,
    "makespan_h": lambda outcome: outcome.makespan_s / HOUR_S,
    "revocations": lambda outcome: float(outcome.revocations),
    "refund_usd": lambda outcome: outcome.refund_usd,
    "checkpoints": lambda outcome: float(outcome.checkpoints),
    "steps_lost": lambda outcome: outcome.steps_lost,
}

Summary = dict[str, dict[str, Any]]


def summarise(outcomes: pd.DataFrame) -> Summary:
    """By policy, in the order of the frame: mean, standard deviation and 95th percentile of each metric.

    They are over the runs that finished, and None where none did; `unfinished` counts the others.

    Args:
        outcomes: A row for each policy and start: `policy`, `finished`, and the metrics.
    """
    return {
        str(policy): {
            metric: _spread(runs.loc[runs["finished"].to_numpy(dtype=bool), metric].to_numpy(dtype=float))
            for metric in METRICS
        }
        | {"unfinished": int((~runs["finished"].to_numpy(dtype=bool)).sum())}
        for policy, runs in outcomes.groupby("policy", sort=False, observed=True)
    }


def summary_table(summary: Summary, title: str) -> Table:
    """The summary as a table for the terminal."""
    caption = "mean ± standard deviation over the runs that finished"
    table = Table(title=title, caption=caption, box=SIMPLE_HEAD)
    table.add_column("policy", no_wrap=True)
    for heading in ("cost USD", "cost p95", "makespan h", "revocations", "refund USD", "steps lost", "unfinished"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, row in summary.items():
        p95 = row["cost_usd"]["p95"]
        table.add_row(
            name,
            told(row["cost_usd"], 3),
            "-" if p95 is None else f"{p95:.3f}",
            told(row["makespan_h"], 1),
            told(row["revocations"], 2),
            told(row["refund_usd"], 3),
            told(row["steps_lost"], 1),
            str(row["unfinished"]),
        )
    return table


def plain(table: Table) -> str:
    """A table as text without colours, for files and `str`."""
    out = io.StringIO()
    PlainConsole(file=out, width=120, no_color=True, highlight=False).print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def told(spread: Mapping[str, float | None], digits: int) -> str:
    """A mean and its spread in words; a dash where there is none."""
    if spread["mean"] is None:
        return "-"
    return f"{spread['mean']:.{digits}f} ± {spread['std']:.{digits}f}"


def _spread(values: np.ndarray) -> dict[str, float | None]:
    if not len(values):
        return {"mean": None, "std": None, "p95": None}
    return {
        "mean": float(values.mean()),
        "std": float(values.std(ddof=1)) if len(values) > 1 else 0.0,
        "p95": float(np.quantile(values, 0.95)),
    }
