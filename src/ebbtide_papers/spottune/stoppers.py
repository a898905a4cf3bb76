"""EarlyCurve and ASHA side by side: what each stopper costs, how long it takes, and how good a trial it ends with.

python -m ebbtide_papers.spottune.stoppers --prices prices.parquet

The default policy rents for the sweeps of SpotTune's Table II, whose curves were measured, under each stopper and
under none. The trial that a sweep ends with is the best of those that were trained to their end.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ebbtide.backtesting.backtest import backtest
from ebbtide.base.files import write_text
from ebbtide.base.utc import DAY_S, HOUR_S
from ebbtide.engine.outcome import Outcome
from ebbtide.forecasts.learning_curves.curves import Curve
from ebbtide.forecasts.learning_curves.methods import table_two_curves
from ebbtide.market.catalogue import default_catalogue
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.ebbtide.policy import Ebbtide
from ebbtide.policies.stopping import StopperName
from ebbtide_papers.spottune.sweeps import WorkloadTrials, sweeps_of

POLICIES = (
    Ebbtide(name="no stopper"),
    Ebbtide(selects=True, name="earlycurve"),
    Ebbtide(selects=True, stopper=StopperName.ASHA, name="asha"),
)


@dataclass(frozen=True)
class StopperRow:
    """Results of one stopper on one workload, means over starts.

    Attributes:
        workload: Name of the workload.
        stopper: Name of the stopper.
        trials: Number of trials of the sweep.
        usd: Cost, USD.
        hours: Time until the last trial had ended, hours.
        steps_share: Steps that were run, as a share of those of all trials.
        finds_best: Share of the starts in which the best trial of all was trained to its end.
        regret: Final metric of the trial it ends with, above that of the best, as a share of it; NaN: no trial was
            trained to its end.
    """

    workload: str
    stopper: str
    trials: int
    usd: float
    hours: float
    steps_share: float
    finds_best: float
    regret: float


def compared(
    prices: PriceHistory, curves: Sequence[Curve], *, starts: int = 10, seed: int = 1, billing: str = "ec2-second"
) -> list[StopperRow]:
    """Every stopper on every workload, from the same starts.

    Args:
        prices: Price history.
        curves: Measured learning curves of the workloads.
        starts: Number of start times.
        seed: Seed of starts and policies.
        billing: Billing preset.
    """
    rows = []
    for sweep in sweeps_of(curves, prices, default_catalogue()):
        last_s = prices.end_s - 4 * DAY_S
        drawn = np.random.default_rng([seed, starts]).uniform(prices.start_s + DAY_S, last_s, starts)
        result = backtest(
            sweep.jobs,
            POLICIES,
            prices,
            billing=billing,
            starts=[float(time_s) for time_s in np.floor(drawn)],
            seed=seed,
            curves=sweep.curves,
        )
        rows += [_row(sweep, name, outcomes) for name, outcomes in result.outcomes.items()]
    return rows


def _row(sweep: WorkloadTrials, name: str, outcomes: Sequence[Outcome]) -> StopperRow:
    finals = [float(curve.metric[-1]) for curve in sweep.curves]
    best = min(finals)
    ends = []
    for outcome in outcomes:
        trained = [final for job, final in zip(outcome.jobs, finals, strict=True) if not job.stopped]
        ends.append(min(trained, default=math.nan))
    whole = math.fsum(job.steps for job in sweep.jobs)
    run = [math.fsum(job.steps_run for job in outcome.jobs) / whole for outcome in outcomes]
    return StopperRow(
        sweep.name,
        name,
        len(sweep.jobs),
        float(np.mean([outcome.cost_usd for outcome in outcomes])),
        float(np.mean([outcome.makespan_s / HOUR_S for outcome in outcomes])),
        float(np.mean(run)),
        float(np.mean([end == best for end in ends])),
        float(np.mean([(end - best) / abs(best) for end in ends])),
    )


def main() -> None:
    """Compare, print and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prices", type=Path, required=True)
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("reports/stoppers.json"))
    options = parser.parse_args()
    rows = compared(
        PriceHistory.read(options.prices, default_catalogue()), table_two_curves(), starts=options.starts
    )
    for row in rows:
        print(
            f"{row.workload:19} {row.stopper:10} {row.usd:7.4f} USD {row.hours:5.1f} h, {row.steps_share:4.0%} of "
            f"the steps; trains the best in {row.finds_best:4.0%} of the starts, ends {row.regret:.2%} above it"
        )
    write_text(options.out, json.dumps([asdict(row) for row in rows], indent=2) + "\n")


if __name__ == "__main__":
    main()
