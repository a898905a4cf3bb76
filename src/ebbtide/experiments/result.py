"""What a backtest gives: outcomes by policy and start, their statistics, table, JSON and picture."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from rich.console import Console
from rich.table import Table

from ebbtide.errors import unknown_name
from ebbtide.execution.engine import Outcome
from ebbtide.experiments.figures import outcome_figure
from ebbtide.files import write_text
from ebbtide.policies.protocol import Policy
from ebbtide.utc import HOUR_S

if TYPE_CHECKING:
    from ebbtide.experiments.backtest import Scenario

METRICS: dict[str, Callable[[Outcome], float]] = {
    "cost_usd": lambda outcome: outcome.cost_usd,
    "makespan_h": lambda outcome: outcome.makespan_s / HOUR_S,
    "revocations": lambda outcome: float(outcome.revocations),
    "refund_usd": lambda outcome: outcome.refund_usd,
    "checkpoints": lambda outcome: float(outcome.checkpoints),
    "steps_lost": lambda outcome: outcome.steps_lost,
}


@dataclass(frozen=True)
class BacktestResult:
    """The outcomes of a backtest.

    Attributes:
        policies: What was compared.
        scenario: On what.
        starts_s: From when, seconds since 1970.
        outcomes: By policy name, one for each start.
    """

    policies: tuple[Policy, ...]
    scenario: Scenario
    starts_s: tuple[float, ...]
    outcomes: Mapping[str, tuple[Outcome, ...]]

    def values(self, policy: str, metric: str) -> np.ndarray:
        """One metric of one policy, of the runs that finished, in order of start."""
        of = METRICS[metric]
        return np.array([of(outcome) for outcome in self.outcomes[policy] if outcome.finished])

    def unfinished(self, policy: str) -> int:
        """How many of the policy's runs were cut off by the end of the history."""
        return sum(not outcome.finished for outcome in self.outcomes[policy])

    def summary(self) -> dict[str, dict[str, Any]]:
        """By policy: mean, standard deviation and 95th percentile of each metric, over the runs that finished
        (None where none did), and how many did not."""
        return {
            name: {metric: _spread(self.values(name, metric)) for metric in METRICS}
            | {"unfinished": self.unfinished(name)}
            for name in self.outcomes
        }

    def to_dict(self) -> dict[str, Any]:
        """The summary with what it is of, in plain values."""
        return {
            "policies": self.summary(),
            "starts": len(self.starts_s),
            "seed": self.scenario.seed,
            "billing": self.scenario.billing.name,
            "jobs": [job.name for job in self.scenario.jobs],
        }

    def to_json(self) -> str:
        """`to_dict` as text: the same bytes for the same inputs."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n"

    def write_json(self, path: str | Path) -> None:
        """Write `to_json` to a file, atomically."""
        write_text(path, self.to_json())

    def to_frame(self) -> pd.DataFrame:
        """A row for each policy and start, with every metric."""
        rows = [
            {"policy": name, "start_s": start_s, "finished": outcome.finished}
            | {metric: of(outcome) for metric, of in METRICS.items()}
            for name, outcomes in self.outcomes.items()
            for start_s, outcome in zip(self.starts_s, outcomes, strict=True)
        ]
        frame = pd.DataFrame(rows)
        start = pd.to_datetime(frame.pop("start_s"), unit="s", utc=True)
        frame.insert(1, "start", start)
        return frame

    def table(self) -> Table:
        """The summary as a table for the terminal."""
        jobs = ", ".join(job.name for job in self.scenario.jobs)
        title = f"{jobs}: {len(self.starts_s)} starts, billing {self.scenario.billing.name}"
        table = Table(title=title, caption="mean ± standard deviation over the runs that finished")
        table.add_column("policy")
        for heading in ("cost USD", "cost p95", "makespan h", "revocations", "refund USD", "steps lost"):
            table.add_column(heading, justify="right")
        table.add_column("unfinished", justify="right")
        for name, row in self.summary().items():
            cost = row["cost_usd"]
            table.add_row(
                name,
                _told(cost, 3),
                "-" if cost["p95"] is None else f"{cost['p95']:.3f}",
                _told(row["makespan_h"], 1),
                _told(row["revocations"], 2),
                _told(row["refund_usd"], 3),
                _told(row["steps_lost"], 1),
                str(row["unfinished"]),
            )
        return table

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=120, no_color=True, highlight=False)
        console.print(self.table())
        text = console.file.getvalue()  # type: ignore[attr-defined]
        return "\n".join(line.rstrip() for line in text.splitlines())

    def replay(self, policy: str, index: int | None = None) -> Outcome:
        """Run one of the runs again, with its timeline recorded.

        Args:
            policy: Its name.
            index: The start's place in `starts_s`; by default `typical`.

        Raises:
            InputError: There is no such policy.
        """
        chosen = next((each for each in self.policies if each.name == policy), None)
        if chosen is None:
            raise unknown_name("policy", policy, self.outcomes)
        at = self.typical() if index is None else index
        return self.scenario.run(chosen, self.starts_s[at], record=True)

    def typical(self) -> int:
        """The start at which the policies together came nearest to their median costs."""
        distance = np.zeros(len(self.starts_s))
        for outcomes in self.outcomes.values():
            cost = np.array([outcome.cost_usd for outcome in outcomes])
            distance += np.abs(cost - np.median(cost)) / max(float(np.median(cost)), 1e-9)
        return int(np.argmin(distance))

    def plot(self, path: str | Path | None = None, index: int | None = None) -> go.Figure:
        """Prices with leases drawn on them, cost by policy, and progress over time, of one start.

        Args:
            path: Write the figure there, as a page of its own that needs no network.
            index: The start's place in `starts_s`; by default `typical`.

        Returns:
            The figure; in a notebook it shows itself, elsewhere call `.show()`.
        """
        at = self.typical() if index is None else index
        recorded = {name: self.replay(name, at) for name in self.outcomes}
        costs = {name: self.values(name, "cost_usd") for name in self.outcomes}
        figure = outcome_figure(recorded, costs, self.scenario.prices)
        if path is not None:
            write_text(path, figure.to_html(include_plotlyjs=True, div_id="ebbtide"))
        return figure


def _spread(values: np.ndarray) -> dict[str, float | None]:
    if not len(values):
        return {"mean": None, "std": None, "p95": None}
    return {
        "mean": float(values.mean()),
        "std": float(values.std(ddof=1)) if len(values) > 1 else 0.0,
        "p95": float(np.quantile(values, 0.95)),
    }


def _told(spread: Mapping[str, float | None], digits: int) -> str:
    if spread["mean"] is None:
        return "-"
    return f"{spread['mean']:.{digits}f} ± {spread['std']:.{digits}f}"
