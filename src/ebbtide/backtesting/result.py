"""The result of a backtest: outcomes by policy and start, their statistics, table, JSON and figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebbtide.backtesting.policy_table import PolicyTable
from ebbtide.backtesting.record import BacktestRecord, outcome_rows, outcomes_frame, typical_start
from ebbtide.backtesting.summary import Summary, models_note, summarise, summary_table
from ebbtide.base.files import write_text
from ebbtide.base.json_values import json_text
from ebbtide.engine.outcome import Outcome
from ebbtide.errors import unknown_name
from ebbtide.policies.api.protocol import Policy
from ebbtide.replay.scenario import Scenario

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


@dataclass(frozen=True)
class BacktestResult:
    """The outcomes of a backtest.

    Attributes:
        policies: The policies that were compared.
        scenario: The scenario they ran in.
        starts_s: The start times, seconds since 1970.
        outcomes: An outcome for each start, by policy name.
        models: Versions of the learnt models that decided, by name; empty: none but those of the package.
    """

    policies: tuple[Policy, ...]
    scenario: Scenario
    starts_s: tuple[float, ...]
    outcomes: Mapping[str, tuple[Outcome, ...]]
    models: Mapping[str, str] = field(default_factory=dict)

    def to_frame(self) -> pd.DataFrame:
        """A row for each policy and start, with every metric."""
        return outcomes_frame(outcome_rows(self.outcomes))

    def summary(self) -> Summary:
        """Statistics by policy (see `ebbtide.backtesting.summary.summarise`)."""
        return summarise(self.to_frame())

    def to_dict(self) -> dict[str, Any]:
        """The summary, with the settings of the backtest, in plain values."""
        return {"policies": self.summary()} | self._about()

    def to_json(self) -> str:
        """`to_dict` as text: the same bytes for the same inputs."""
        return json_text(self.to_dict())

    def write_json(self, path: str | Path) -> None:
        """Write `to_json` to a file, atomically."""
        write_text(path, self.to_json())

    def table(self) -> PolicyTable:
        """The summary as a table for the terminal, the best policy first."""
        jobs = ", ".join(job.name for job in self.scenario.jobs)
        title = f"{jobs}: {len(self.starts_s)} starts, billing {self.scenario.billing.name}"
        return summary_table(self.summary(), title, models_note(self.models))

    def __str__(self) -> str:
        return str(self.table())

    def __repr__(self) -> str:
        return f"<BacktestResult of {', '.join(self.outcomes)}: {len(self.starts_s)} starts>"

    def _repr_html_(self) -> str:
        return self.table().to_html()

    def replay(self, policy: str, index: int | None = None) -> Outcome:
        """Run one of the runs again, with its timeline recorded.

        Args:
            policy: Name of the policy.
            index: Index of the start in `starts_s`; by default `typical`.

        Raises:
            InputError: No policy has this name.
        """
        chosen = next((each for each in self.policies if each.name == policy), None)
        if chosen is None:
            raise unknown_name("policy", policy, self.outcomes)
        at = self.typical() if index is None else index
        return self.scenario.run(chosen, self.starts_s[at], record=True)

    def typical(self) -> int:
        """Index of the start at which the policies together came nearest to their median costs."""
        return typical_start(self.to_frame())

    def record(self, index: int | None = None) -> BacktestRecord:
        """The backtest as tables: what every report is made of, in memory.

        Outcomes of all starts, and of one start its leases, timeline, ledger and prices, as pandas frames.
        `record().write(FOLDER)` keeps them, and `ebbtide report FOLDER` makes a page of them; `report` makes the
        page at once.

        Args:
            index: Its place in `starts_s`; by default `typical`.
        """
        at = self.typical() if index is None else index
        shown = {policy.name: self.replay(policy.name, at) for policy in self.policies}
        return BacktestRecord.of(self._about(), self.to_frame(), shown, self.scenario.prices)

    def report(self, path: str | Path, index: int | None = None) -> Path:
        """Write the report: one HTML page with tables and plots that needs no network. Atomic.

        Args:
            path: The file to write; missing folders are created.
            index: Index in `starts_s` of the start shown in detail; by default `typical`.

        Returns:
            The path of the file.
        """
        from ebbtide.backtesting.report import write_report

        return write_report(self.record(index), path)

    def plot(self, path: str | Path | None = None, index: int | None = None) -> go.Figure:
        """Prices with leases drawn on them, cost by policy, and progress over time, of one start.

        Args:
            path: Also write the figure to this file, as an HTML page that needs no network.
            index: Index of the start in `starts_s`; by default `typical`.

        Returns:
            The figure; notebooks display it, elsewhere call `.show()`.
        """
        from ebbtide.backtesting.figures import record_figure

        figure = record_figure(self.record(index))
        if path is not None:
            write_text(path, figure.to_html(include_plotlyjs=True, div_id="ebbtide"))
        return figure

    def _about(self) -> dict[str, Any]:
        return about_backtest(self.scenario, self.starts_s, self.models)


def about_backtest(scenario: Scenario, starts_s: Sequence[float], models: Mapping[str, str]) -> dict[str, Any]:
    """The settings of a backtest in plain values."""
    return {
        "starts": len(starts_s),
        "seed": scenario.seed,
        "billing": scenario.billing.name,
        "jobs": [job.name for job in scenario.jobs],
    } | ({"models": dict(models)} if models else {})
