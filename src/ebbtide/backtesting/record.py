"""The record of a backtest: all data of a report, as tables that are written to a folder and read again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ebbtide.backtesting.summary import METRICS, Summary, summarise
from ebbtide.base.files import replacing, write_text
from ebbtide.base.input_files import read_json
from ebbtide.base.utc import from_epoch_s, iso
from ebbtide.engine.outcome import Outcome
from ebbtide.errors import InputError
from ebbtide.market.leases import Lease
from ebbtide.market.prices import PriceHistory
from ebbtide.market.sources.parquet import load_parquet

if TYPE_CHECKING:
    import pandas as pd

_TABLES = ("outcomes", "leases", "timeline", "ledger", "prices")
_ABOUT = "about.json"

# A run that ends within a second of its deadline, by rounding, is in time.
_TOLERANCE_H = 1.0 / 3600.0


@dataclass(frozen=True)
class BacktestRecord:
    """A backtest as tables. Times are UTC datetimes.

    Attributes:
        about: Plain values: job names, billing, number of starts, seed, the shown start; `deadline_h` where the
            job has a deadline, `models` where learnt models decided.
        outcomes: A row for each policy and start, with every metric.
        leases: A row for each lease of the shown start.
        timeline: A row for each moment of the shown start, by policy.
        ledger: A row for each charge or refund of the shown start, by policy.
        prices: Price changes of the markets rented in the shown start, over its duration.
    """

    about: Mapping[str, Any]
    outcomes: pd.DataFrame
    leases: pd.DataFrame
    timeline: pd.DataFrame
    ledger: pd.DataFrame
    prices: pd.DataFrame

    @classmethod
    def of(
        cls, about: Mapping[str, Any], outcomes: pd.DataFrame, shown: Mapping[str, Outcome], prices: PriceHistory
    ) -> BacktestRecord:
        """Make a record.

        Args:
            about: Plain values of the backtest, as in the attribute.
            outcomes: A row for each policy and start, as `outcomes_frame` makes them.
            shown: The run of each policy from the shown start, with its timeline recorded.
            prices: Prices of the backtest.
        """
        start_s = next(iter(shown.values())).start_s
        return cls(
            about={**about, "start_shown": iso(start_s)},
            outcomes=outcomes,
            leases=leases_frame(shown),
            timeline=by_policy({name: outcome.timeline.to_frame() for name, outcome in shown.items()}),
            ledger=by_policy({name: outcome.ledger.to_frame() for name, outcome in shown.items()}),
            prices=rented_prices(shown, prices),
        )

    @property
    def title(self) -> str:
        """A line with jobs, number of starts and billing."""
        first, *others = self.about["jobs"]
        jobs = f"{first} and {len(others)} more" if len(others) > 2 else ", ".join([first, *others])
        return f"{jobs}: {self.about['starts']} starts, billing {self.about['billing']}"

    def title_under(self, name: str) -> str:
        """The title after the name that the record has among others, unless its jobs are called that already."""
        return self.title if self.title.startswith(f"{name}:") else f"{name}: {self.title}"

    def summary(self) -> Summary:
        """Statistics by policy; with a deadline also `missed`: runs that were late or did not finish."""
        found = summarise(self.outcomes)
        deadline_h = self.about.get("deadline_h")
        if deadline_h is not None:
            for name, runs in self.outcomes.groupby("policy", sort=False, observed=True):
                in_time = runs["finished"].astype(bool) & (runs["makespan_h"] <= deadline_h + _TOLERANCE_H)
                found[str(name)]["missed"] = int((~in_time).sum())
        return found

    def to_dict(self) -> dict[str, Any]:
        """The summary, with the settings of the backtest, in plain values."""
        keys = ("starts", "seed", "billing", "jobs", "deadline_h", "models")
        return {"policies": self.summary()} | {key: self.about[key] for key in keys if key in self.about}

    def write(self, folder: str | Path) -> None:
        """Write the tables to a folder, `about.json` last: without it, the folder is not a record."""
        folder = Path(folder)
        (folder / _ABOUT).unlink(missing_ok=True)
        for name in _TABLES:
            with replacing(folder / f"{name}.parquet") as temporary:
                getattr(self, name).to_parquet(temporary, index=False)
        write_text(folder / _ABOUT, json.dumps(dict(self.about), indent=2, sort_keys=True) + "\n")

    @classmethod
    def read(cls, folder: str | Path) -> BacktestRecord:
        """Read a record written by `write`.

        Raises:
            InputError: The folder is not a complete record.
        """
        folder = Path(folder)
        try:
            about = read_json(folder / _ABOUT)
            if not isinstance(about, dict):
                raise InputError("holds no record", file=folder / _ABOUT)
        except InputError:
            raise InputError(
                f"is not the record of a backtest: no readable {_ABOUT}; `ebbtide compare --record` makes one",
                file=folder,
            ) from None
        missing = [name for name in ("jobs", "starts", "seed", "billing") if name not in about]
        if missing:
            raise InputError(f"has no {missing[0]}: it is not the record of a backtest", file=folder / _ABOUT)
        record = cls(about, *(load_parquet(folder / f"{name}.parquet") for name in _TABLES))
        for column in ("policy", "start", "finished", *METRICS):
            if column not in record.outcomes:
                raise InputError(f"has no column {column!r}", file=folder / "outcomes.parquet", field=column)
        return record


def read_records(folder: str | Path) -> dict[str, BacktestRecord]:
    """The records below a folder, by the names of their folders; or the one record of a folder, by its title.

    Raises:
        InputError: The folder holds no complete record.
    """
    folder = Path(folder)
    names = sorted(file.parent.name for file in folder.glob(f"*/{_ABOUT}"))
    if names and not (folder / _ABOUT).exists():
        return {name: BacktestRecord.read(folder / name) for name in names}
    record = BacktestRecord.read(folder)
    return {record.title: record}


def metrics_of(records: Mapping[str, BacktestRecord]) -> dict[str, Any]:
    """Statistics of several backtests in plain values: the models that decided, and each job's policies."""
    told = {name: record.to_dict() for name, record in records.items()}
    models: dict[str, str] = {}
    for content in told.values():
        models |= content.pop("models", {})
    return {"models": models, "jobs": told}


def costs_csv(records: Mapping[str, BacktestRecord]) -> str:
    """Mean costs as CSV, for plots: a row for each job and policy."""
    import pandas as pd

    rows = [
        {"job": name, "policy": f"{name}: {policy}", "cost_usd": row["cost_usd"]["mean"]}
        for name, record in records.items()
        for policy, row in record.summary().items()
    ]
    return pd.DataFrame(rows).to_csv(index=False, lineterminator="\n")


def outcome_rows(outcomes: Mapping[str, Sequence[Outcome]]) -> list[dict[str, Any]]:
    """A row of plain values for each policy and start, with every metric; the start is in seconds since 1970."""
    return [
        {"policy": name, "start_s": outcome.start_s, "finished": bool(outcome.finished)}
        | {metric: float(of(outcome)) for metric, of in METRICS.items()}
        for name, runs in outcomes.items()
        for outcome in runs
    ]


def outcomes_frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The frame of `outcome_rows`, with the start as a UTC datetime."""
    import pandas as pd

    frame = pd.DataFrame(rows)
    frame.insert(1, "start", [from_epoch_s(start_s) for start_s in frame.pop("start_s")])
    return frame


def typical_start(outcomes: pd.DataFrame) -> int:
    """Index of the start at which the policies together came nearest to their median costs."""
    costs = [rows["cost_usd"].to_numpy() for _, rows in outcomes.groupby("policy", sort=False, observed=True)]
    medians = [float(np.median(cost)) for cost in costs]
    distances = [np.abs(cost - median) / max(median, 1e-9) for cost, median in zip(costs, medians, strict=True)]
    return int(np.argmin(np.sum(distances, axis=0)))


def leases_frame(outcomes: Mapping[str, Outcome]) -> pd.DataFrame:
    """A row for each charged lease."""
    import pandas as pd

    rows = [
        _lease_row(name, outcome, lease)
        for name, outcome in outcomes.items()
        for lease in outcome.leases
        if lease.is_charged
    ]
    return pd.DataFrame(rows)


def by_policy(frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The frames concatenated, with the policy as first column."""
    import pandas as pd

    named = [frame.assign(policy=name) for name, frame in frames.items()]
    stacked = pd.concat(named, ignore_index=True)
    return stacked[["policy", *(column for column in stacked.columns if column != "policy")]]


def rented_prices(outcomes: Mapping[str, Outcome], prices: PriceHistory) -> pd.DataFrame:
    """Price changes of the rented spot markets, over the time of the runs."""
    rented = {lease.market for outcome in outcomes.values() for lease in outcome.leases if not lease.on_demand}
    start_s = min(outcome.start_s for outcome in outcomes.values())
    end_s = min(max(outcome.end_s for outcome in outcomes.values()), prices.end_s)
    if not rented:
        return prices.to_frame().iloc[:0]
    return prices.select(sorted(rented)).window(start_s, end_s).to_frame()


def _lease_row(policy: str, outcome: Outcome, lease: Lease) -> dict[str, object]:
    return {
        "policy": policy,
        "lease_id": lease.lease_id,
        "market": str(lease.market),
        "on_demand": lease.on_demand,
        "max_price_usd_per_hour": lease.max_price_usd_per_hour,
        "started": from_epoch_s(lease.started_s),
        "ended": from_epoch_s(lease.ended_s),
        "ending": str(lease.state),
        "usd": outcome.ledger.usd_of(lease.lease_id),
        "refund_usd": outcome.ledger.refund_of(lease.lease_id),
    }
