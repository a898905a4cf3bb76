"""A comparison of policies on the same work, prices, billing rule and starts, with a lower bound of the cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from ebbtide.backtesting.backtest import check_policies, job_first, start_times
from ebbtide.backtesting.policy_table import MeanAndDeviation, PolicyTable
from ebbtide.backtesting.record import BacktestRecord
from ebbtide.backtesting.replays import replay_all
from ebbtide.backtesting.result import BacktestResult
from ebbtide.backtesting.summary import SPREAD_NOTE, models_note, sample_std
from ebbtide.base.files import write_text
from ebbtide.base.json_values import json_text
from ebbtide.base.utc import HOUR_S
from ebbtide.errors import InputError
from ebbtide.forecasts.bundle import ModelBundle
from ebbtide.forecasts.champions import read_models
from ebbtide.jobs.job import Job, jobs_of
from ebbtide.jobs.job_files import measured
from ebbtide.market.availability import Availability
from ebbtide.market.billing import Billing, Refund, billing_preset
from ebbtide.market.catalogue import Catalogue, default_catalogue
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.api.goals import Goals
from ebbtide.policies.api.protocol import Policy
from ebbtide.replay.replayed_market import cleared_prices
from ebbtide.replay.scenario import Scenario

FLOOR = "all prices known"
# Jobs that a title or an error names.
_NAMED = 4

_X_FLOOR = "x floor"
_HEADINGS = (
    "cost USD",
    "cost p95",
    _X_FLOOR,
    "saved",
    "time h",
    "revoked",
    "refund USD",
    "steps lost",
    "missed",
)


@dataclass(frozen=True, kw_only=True)
class ComparisonRow:
    """The results of one policy.

    Attributes:
        policy: Name of the policy.
        cost_usd: Mean cost over the starts it finished from, USD; NaN: none.
        cost_std_usd: Sample standard deviation of the cost, USD.
        cost_p95_usd: 95th percentile of the cost, USD.
        over_floor: Mean cost as a multiple of the floor of the same starts; NaN: there are several jobs.
        saved: Saving against on-demand, as a fraction, on the starts both finished from.
        makespan_h: Mean time to finish, hours.
        revocations: Mean number of revocations.
        refund_usd: Mean refund of a start, USD.
        steps_lost: Mean number of steps that were lost before they were saved.
        misses: Number of starts not finished by the deadline, or not within the record.
        why_not: Why the policy cannot serve the work; empty: it can.
    """

    policy: str
    cost_usd: float = math.nan
    cost_std_usd: float = math.nan
    cost_p95_usd: float = math.nan
    over_floor: float = math.nan
    saved: float = math.nan
    makespan_h: float = math.nan
    revocations: float = math.nan
    refund_usd: float = math.nan
    steps_lost: float = math.nan
    misses: int = 0
    why_not: str = ""


@dataclass(frozen=True)
class Comparison:
    """The results of all policies.

    Attributes:
        rows: A row per policy and, for one job, one for the floor, the cheapest first; those that cannot serve
            the work last.
        result: The backtest of the policies that can serve.
        notes: Remarks for the reader, one per line.
    """

    rows: Sequence[ComparisonRow]
    result: BacktestResult
    notes: Sequence[str]

    def table(self) -> PolicyTable:
        """The rows as a table for the terminal; below it the policies that could not serve, and why."""
        able = [row for row in self.rows if not row.why_not]
        headings = [heading for heading in _HEADINGS if heading != _X_FLOOR or _has_floor(self.rows)]
        return PolicyTable(
            f"{self._work}: {len(self.result.starts_s)} starts, billing {self.result.scenario.billing.name}",
            headings,
            [(row.policy, [_cells(row)[heading] for heading in headings]) for row in able],
            [SPREAD_NOTE, *(f"{row.policy}: {row.why_not}" for row in self.rows if row.why_not)],
        )

    @property
    def _work(self) -> str:
        first, *others = (job.name for job in self.result.scenario.jobs)
        return f"{first} and {len(others)} more" if len(others) > _NAMED else ", ".join([first, *others])

    def __str__(self) -> str:
        return str(self.table())

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(row.policy for row in self.rows)}>"

    def _repr_html_(self) -> str:
        return self.table().to_html()

    def record(self) -> BacktestRecord:
        """The comparison and its backtest as tables, of which `ebbtide report` makes the same page again."""
        found = self.result.record()
        rows = [[(name, _kept(cell)) for name, cell in row.items()] for row in shown(self.rows)]
        return replace(found, about={**found.about, "comparison": rows, "notes": list(self.notes)})

    def report(self, path: str | Path) -> Path:
        """Write the report: one HTML page that needs no network, this table first. Atomic.

        Args:
            path: The file to write; missing folders are created.

        Returns:
            The path of the file.
        """
        from ebbtide.backtesting.report import write_report

        return write_report(self.record(), path)

    def write_json(self, path: str | Path) -> None:
        """Write the rows and each policy's statistics as JSON, atomically: the same bytes for the same inputs."""
        rows = {"rows": [asdict(row) for row in self.rows], "notes": list(self.notes)}
        write_text(path, json_text(rows | self.result.to_dict()))


def compare(
    job: Job | Sequence[Job],
    policies: Sequence[Policy],
    prices: PriceHistory,
    *,
    billing: str | Billing = "ec2-second",
    starts: int = 100,
    seed: int = 0,
    deadline_h: float | None = None,
    goals: Goals | None = None,
    availability: Availability | None = None,
    catalogue: Catalogue | None = None,
    models: ModelBundle | str | Path | None = None,
    workers: int = 1,
    on_progress: Callable[[int], None] | None = None,
) -> Comparison:
    """Replay every policy that can serve the work.

    Args:
        job: One job, or several that run together.
        policies: Policies to compare; names must differ.
        prices: Price history of the markets.
        billing: Billing of spot leases: name of a preset, or a rule.
        starts: Number of starts to draw.
        seed: Seed of the starts and of all random numbers.
        deadline_h: Hours from each start to the deadline; None: the end of the record.
        goals: Goals of the work, which policies see as `view.goals`; None: the deadline alone.
        availability: Recorded capacity of the markets; None: always available.
        catalogue: Instance types and their list prices; None: the built-in ones.
        models: The bundle of learnt models that the policies ask, the path of its folder, or `champion`; starts
            within the data that it was trained on are refused.
        workers: Number of processes for the replays, this one included; rows do not depend on it.
        on_progress: Called with the number of replays done so far.

    Raises:
        InputError: No policy or two of one name, none that can serve the work, a job that can never finish, or
            less than one worker.
        PolicyError: A policy has a bug: that does not count as work it cannot serve.
    """
    job, policies = job_first(job, policies)
    check_policies(policies)
    known = catalogue or default_catalogue()
    rule = billing_preset(billing) if isinstance(billing, str) else billing
    bundle = read_models(models)
    jobs = jobs_of(job)
    jobs = jobs if bundle is None else tuple(measured(each, bundle.speeds) for each in jobs)
    goals = goals or Goals(deadline_s=math.inf if deadline_h is None else deadline_h * HOUR_S)
    scenario = Scenario(jobs, prices, rule, availability, catalogue=known, seed=seed, goals=goals)
    starts_s = start_times(scenario, starts)
    if bundle is not None:
        bundle.check_unseen(starts_s)
    replays = replay_all(
        scenario,
        policies,
        starts_s,
        workers=workers,
        on_progress=on_progress,
        tolerates=(InputError,),
    )
    refused = {name: str(error) for name, error in replays.errors.items()}
    if not replays.outcomes:
        names = ", ".join(each.name for each in jobs[:_NAMED])
        raise InputError(f"no policy can serve {names}: {next(iter(replays.errors.values()))}")
    able = tuple(policy for policy in policies if policy.name in replays.outcomes)
    versions = {} if bundle is None else bundle.versions
    result = BacktestResult(able, scenario, starts_s, replays.outcomes, versions)
    floors = None
    if len(jobs) == 1:
        floors = _floors(jobs[0], cleared_prices(prices, rule), result, deadline_h, known)
    on_demand = _costs(result, "on-demand", deadline_h) if "on-demand" in result.outcomes else None
    rows = [_row(name, result, floors, on_demand, deadline_h) for name in result.outcomes]
    notes = []
    if floors is not None:
        bound = ComparisonRow(
            policy=FLOOR,
            cost_usd=float(floors.mean()),
            cost_std_usd=sample_std(floors),
            cost_p95_usd=float(np.quantile(floors, 0.95)),
            over_floor=1.0,
        )
        rows.append(bound)
        notes.append(
            f"{FLOOR}: each step at the lowest price of any machine within the time that the slowest policy took "
            "(or by the deadline), moved, started and saved for nothing. No schedule costs less."
        )
        if scenario.billing.refund is not Refund.NOTHING:
            notes.append("The bound ignores refunds: a policy with large refunds may cost less.")
    rows.sort(key=lambda row: (math.isnan(row.cost_usd), row.cost_usd))
    rows += [ComparisonRow(policy=name, why_not=why) for name, why in refused.items()]
    notes += [models_note(versions)] if versions else []
    return Comparison(tuple(rows), result, tuple(notes))


def floor_usd(job: Job, prices: PriceHistory, start_s: float, until_s: float, catalogue: Catalogue) -> float:
    """A lower bound of the cost of any schedule on one machine at a time, USD, without refunds.

    A relaxation: at each moment, steps at the rate of the fastest machine, each at the price of the cheapest.

    Raises:
        InputError: The time until `until_s` is too short for the job.
    """
    rates = {market: job.steps_per_s(market, catalogue) for market in prices}
    able = {market: rate * job.speedup_of(job.most_machines) for market, rate in rates.items() if rate > 0}
    changes = [prices[market].between(start_s, until_s)[0] for market in able]
    times_s = np.unique(np.clip(np.concatenate([np.array([start_s]), *changes]), start_s, until_s))
    lasting_s = np.diff(times_s, append=until_s)
    usd_per_step = np.full(len(times_s), np.inf)
    for market, rate in able.items():
        usd = np.nan_to_num(prices[market].at_each(times_s), nan=np.inf)
        listed = catalogue.on_demand_usd_per_hour(market, start_s)
        usd = usd if listed is None else np.minimum(usd, listed)
        usd_per_step = np.minimum(usd_per_step, usd * job.most_machines / HOUR_S / rate)
    order = np.argsort(usd_per_step, kind="stable")
    steps = np.minimum(np.cumsum(lasting_s[order]) * max(able.values()), job.steps)
    if steps[-1] < job.steps - 1e-6:
        raise InputError(f"job {job.name} does not fit between its start and its deadline on any machine")
    taken = np.diff(steps, prepend=0.0)
    return float(np.dot(taken[taken > 0], usd_per_step[order][taken > 0]))


def _floors(
    job: Job, prices: PriceHistory, result: BacktestResult, deadline_h: float | None, catalogue: Catalogue
) -> np.ndarray:
    floors = []
    for place, start_s in enumerate(result.starts_s):
        ends = [runs[place].end_s for runs in result.outcomes.values()]
        until_s = max(ends) if deadline_h is None else start_s + deadline_h * HOUR_S
        floors.append(floor_usd(job, prices, start_s, min(until_s, prices.end_s), catalogue))
    return np.array(floors)


def _costs(result: BacktestResult, name: str, deadline_h: float | None) -> np.ndarray:
    """Cost of each start, USD, shape (starts,); NaN: not finished in time."""
    most_s = math.inf if deadline_h is None else deadline_h * HOUR_S
    return np.array(
        [run.cost_usd if run.finished and run.makespan_s <= most_s else math.nan for run in result.outcomes[name]]
    )


def _row(
    name: str,
    result: BacktestResult,
    floors: np.ndarray | None,
    on_demand: np.ndarray | None,
    deadline_h: float | None,
) -> ComparisonRow:
    costs = _costs(result, name, deadline_h)
    done = ~np.isnan(costs)
    if not done.any():
        return ComparisonRow(policy=name, misses=len(costs), why_not="it never finished in time")
    runs = [run for run, finished in zip(result.outcomes[name], done, strict=True) if finished]
    saved = math.nan
    if on_demand is not None and (both := done & ~np.isnan(on_demand)).any():
        saved = float(1.0 - costs[both].mean() / on_demand[both].mean())
    return ComparisonRow(
        policy=name,
        cost_usd=float(costs[done].mean()),
        cost_std_usd=sample_std(costs[done]),
        cost_p95_usd=float(np.quantile(costs[done], 0.95)),
        over_floor=math.nan if floors is None else float(costs[done].mean() / floors[done].mean()),
        saved=saved,
        makespan_h=float(np.mean([run.makespan_s for run in runs]) / HOUR_S),
        revocations=float(np.mean([run.revocations for run in runs])),
        refund_usd=float(np.mean([run.refund_usd for run in runs])),
        steps_lost=float(np.mean([run.steps_lost for run in runs])),
        misses=int((~done).sum()),
    )


def shown(rows: Sequence[ComparisonRow]) -> list[Mapping[str, str | MeanAndDeviation]]:
    """Rows as formatted cells, for the tables of the terminal and the report."""
    found = [{"policy": row.policy} | _cells(row) | {"why not": row.why_not} for row in rows]
    left_out = () if _has_floor(rows) else (_X_FLOOR,)
    return [{name: cell for name, cell in row.items() if name not in left_out} for row in found]


def _kept(cell: str | MeanAndDeviation) -> str | list[float | None]:
    """Return a cell as plain values for JSON, which has no NaN."""
    if isinstance(cell, str):
        return cell
    return [None if math.isnan(value) else value for value in (cell.mean, cell.std, cell.digits)]


def _has_floor(rows: Sequence[ComparisonRow]) -> bool:
    return any(row.policy == FLOOR for row in rows)


def _cells(row: ComparisonRow) -> dict[str, str | MeanAndDeviation]:
    cells = (
        MeanAndDeviation(row.cost_usd, row.cost_std_usd, 3),
        _formatted(row.cost_p95_usd, ".3f"),
        _formatted(row.over_floor, ".2f"),
        _formatted(row.saved, ".0%"),
        _formatted(row.makespan_h, ".1f"),
        _formatted(row.revocations, ".2f"),
        _formatted(row.refund_usd, ".3f"),
        _formatted(row.steps_lost, ".1f"),
        "" if row.policy == FLOOR else str(row.misses),
    )
    return dict(zip(_HEADINGS, cells, strict=True))


def _formatted(value: float, form: str) -> str:
    return "" if math.isnan(value) else format(value, form)
