"""Statistics of outcomes, and their table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ebbtide.backtesting.policy_table import MeanAndDeviation, PolicyTable
from ebbtide.base.utc import HOUR_S
from ebbtide.engine.outcome import Outcome

if TYPE_CHECKING:
    import pandas as pd

METRICS: dict[str, Callable[[Outcome], float]] = {
    "cost_usd": lambda outcome: outcome.cost_usd,
    "makespan_h": lambda outcome: outcome.makespan_s / HOUR_S,
    "revocations": lambda outcome: float(outcome.revocations),
    "refund_usd": lambda outcome: outcome.refund_usd,
    "checkpoints": lambda outcome: float(outcome.checkpoints),
    "steps_lost": lambda outcome: outcome.steps_lost,
}

SPREAD_NOTE = "mean ± standard deviation over the runs that finished"

Summary = dict[str, dict[str, Any]]


def summarise(outcomes: pd.DataFrame) -> Summary:
    """Mean, standard deviation and 95th percentile of each metric, by policy, in the order of the frame.

    Statistics are over the finished runs, and None if none finished; `unfinished` counts the others.

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


def models_note(models: Mapping[str, str]) -> str:
    """A line with the versions of the models that decided; empty: none but those of the package did."""
    return f"models: {', '.join(f'{name} {version}' for name, version in models.items())}" if models else ""


def summary_table(summary: Summary, title: str, note: str = "") -> PolicyTable:
    """The summary as a table, the best policy first; with a further note below it, if there is one."""
    rows: list[tuple[str, list[str | MeanAndDeviation]]] = []
    for name, row in best_first(summary):
        p95 = row["cost_usd"]["p95"]
        rows.append(
            (
                name,
                [
                    spread_of(row, "cost_usd", 3),
                    "-" if p95 is None else f"{p95:.3f}",
                    spread_of(row, "makespan_h", 1),
                    spread_of(row, "revocations", 2),
                    spread_of(row, "refund_usd", 3),
                    spread_of(row, "steps_lost", 1),
                    str(row["unfinished"]),
                ],
            )
        )
    headings = ("cost USD", "cost p95", "time h", "revoked", "refund USD", "steps lost", "not done")
    return PolicyTable(title, headings, rows, (SPREAD_NOTE, *([note] if note else [])))


def best_first(summary: Summary) -> list[tuple[str, dict[str, Any]]]:
    """Policies and their statistics: those late or not finished least often first, of these the cheapest first."""

    def rank(row: tuple[str, dict[str, Any]]) -> tuple[int, float]:
        mean: float | None = row[1]["cost_usd"]["mean"]
        return row[1].get("missed", row[1]["unfinished"]), math.inf if mean is None else mean

    return sorted(summary.items(), key=rank)


def cheapest_in_time(summary: Summary) -> str:
    """Name of the cheapest policy whose runs all finished, and in time; empty: there is none."""
    able = [name for name, row in best_first(summary) if not row.get("missed", row["unfinished"])]
    return able[0] if able else ""


def money_of(summary: Summary) -> dict[str, float]:
    """Mean costs of the cheapest policy in time and of on-demand machines, USD, and the share that is saved.

    What is not known is left out.
    """
    means = {name: row["cost_usd"]["mean"] for name, row in summary.items()}
    found = {"best_usd": means.get(cheapest_in_time(summary)), "on_demand_usd": means.get("on-demand")}
    if found["best_usd"] is not None and found["on_demand_usd"]:
        found["saving"] = 1.0 - found["best_usd"] / found["on_demand_usd"]
    return {name: value for name, value in found.items() if value is not None}


def spread_of(row: Mapping[str, Any], metric: str, digits: int) -> MeanAndDeviation:
    """A metric of a summary row, as a table cell."""
    mean, std = row[metric]["mean"], row[metric]["std"]
    return MeanAndDeviation(math.nan if mean is None else mean, 0.0 if std is None else std, digits)


def sample_std(values: np.ndarray) -> float:
    """The sample standard deviation (n - 1 in the denominator), used for all reported spreads.

    Args:
        values: One or more values; the result for one is 0.
    """
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0


def _spread(values: np.ndarray) -> dict[str, float | None]:
    if not len(values):
        return {"mean": None, "std": None, "p95": None}
    return {
        "mean": float(values.mean()),
        "std": sample_std(values),
        "p95": float(np.quantile(values, 0.95)),
    }
