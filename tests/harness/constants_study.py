"""Choice of the default policy's constants on other records: `python -m tests.harness.constants_study`.

Each constant is tried at half and at twice its value, one at a time: on the records of `ebbtide benchmark`, on the
auctions of each instance type and of each zone of them alone, and on generated auctions of random harshness. Then each
file, type and zone is left out in turn. Every constant gets the value that does best without it, and the policy with
all these values is judged on what was left out. Written to reports/constants.json, a row for each part left out.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
from tests.conftest import TRACES
from tests.harness.auction_study import RULES, runs_of, write_auction
from tests.harness.study import failed, run_study

from ebbtide.backtesting.benchmark_records import BenchmarkRecord, read_benchmark_records
from ebbtide.backtesting.benchmark_work import KINDS, works_of
from ebbtide.base.cores import in_processes
from ebbtide.policies.registry import DEFAULT_NAME

_POLICY = "ebbtide.policies.ebbtide"
_GENERATED = "generated"
# Mean and worst regret that the policy may have where its constants were not chosen.
_MEAN, _WORST = 0.02, 0.15
# Where nothing was paid, regret is a share of this, USD.
_LEAST_USD = 1e-3


def _times(value: float, factor: float) -> float:
    return value * factor


def _of_odds(share: float, factor: float) -> float:
    odds = factor * share / (1.0 - share)
    return odds / (1.0 + odds)


def _of_excess(ratio: float, factor: float) -> float:
    return 1.0 + (ratio - 1.0) * factor


# A factor changes an amount, the odds of a share, or the excess of a ratio over one.
_CONSTANTS: Mapping[str, Callable[[float, float], float]] = {
    "moves._MARGIN": _times,
    "moves._RENEWAL_MARGIN": _of_odds,
    "moves._HORIZON_H": _times,
    "options._DEAR": _of_excess,
    "options._PRIOR_H": _times,
    "options._STEADY": _of_odds,
    "options._USUAL_QUANTILE": _of_odds,
    "policy._CHEAPER": _of_odds,
    "policy._REFUNDED_HALF_S": _times,
    "slack._LOOKS": _times,
    "slack._WORKING_SHARE": _of_odds,
}
_FACTORS = (0.5, 2.0)

# Constants that are changed, with their factors; none: the policy as it is.
Changes = tuple[tuple[str, float], ...]
AS_IS: Changes = ()


@dataclass(frozen=True)
class Part:
    """A record, or its markets of one type or zone alone.

    Attributes:
        record: The record.
        of: File, type or zone that is left out when the policy is judged by this part.
        holds: The file, types and zones in it; nothing is chosen by a part that holds what is left out.
    """

    record: BenchmarkRecord
    of: str
    holds: frozenset[str]


@dataclass(frozen=True)
class CellCosts:
    """Costs of one kind of work in one part.

    Attributes:
        rule_usd: Least mean cost of the simple rules that are late least often, USD.
        usd: Mean cost of the default policy by its changes, USD.
        missed: Starts in which the default policy was late or did not finish, by its changes.
    """

    rule_usd: float
    usd: Mapping[Changes, float]
    missed: Mapping[Changes, int]

    def regret(self, changes: Changes) -> float:
        """Cost above that of the cheapest simple rule and of the policy as it is, as a share; negative: below."""
        return self.usd[changes] / max(min(self.rule_usd, self.usd[AS_IS]), _LEAST_USD) - 1.0


@dataclass(frozen=True)
class LeftOut:
    """The default policy on records without which its constants were chosen.

    Attributes:
        name: File, type or zone that was left out.
        cells: Number of parts and kinds of work by which it is judged.
        chosen: Factors of the constants that were chosen, where they are not one.
        mean_regret: Mean regret with the chosen constants.
        worst_regret: The largest regret with them.
        missed: Starts in which the policy was late or did not finish.
        mean_regret_as_is: Mean regret of the policy as it is.
        worst_regret_as_is: Its largest regret.
        missed_as_is: Starts in which it was late or did not finish.
    """

    name: str
    cells: int
    chosen: dict[str, float]
    mean_regret: float
    worst_regret: float
    missed: int
    mean_regret_as_is: float
    worst_regret_as_is: float
    missed_as_is: int

    @property
    def problems(self) -> list[str]:
        """Failed checks, in words; empty if all hold."""
        return failed(
            {
                f"mean regret {self.mean_regret:.4f}": self.mean_regret <= _MEAN,
                f"worst regret {self.worst_regret:.4f}": self.worst_regret <= _WORST,
                f"missed in {self.missed} starts": self.missed <= self.missed_as_is,
            }
        )


def studied(place: Path, starts: int, auctions: int, records: int, seed: int) -> Sequence[LeftOut]:
    """Choose the constants without each file, type and zone, and judge them there.

    Args:
        place: Folder for generated prices.
        starts: Starts of each kind of work.
        auctions: Number of generated auctions.
        records: Most records of a file, for a short study.
        seed: Seed of the first auction, and of the starts.
    """
    for number in range(seed, seed + auctions):
        write_auction(place / f"{_GENERATED}-{number}.parquet", number)
    found = [*read_benchmark_records(TRACES)[0], *(read_benchmark_records(place)[0] if auctions else ())]
    parts = list(parts_of(found, records))
    replay = partial(_costs, starts=starts, seed=seed)
    tried = in_processes(replay, [(part.record, alternatives()) for part in parts])
    names = sorted({part.of for part in parts})
    chosen = {
        name: choose(
            [cell for part, cells in zip(parts, tried, strict=True) if name not in part.holds for cell in cells]
        )
        for name in names
    }
    judged = in_processes(replay, [(part.record, (AS_IS, chosen[part.of])) for part in parts])
    return [
        _left_out(
            name,
            chosen[name],
            [cell for part, cells in zip(parts, judged, strict=True) if part.of == name for cell in cells],
        )
        for name in names
    ]


def parts_of(records: Sequence[BenchmarkRecord], most: int) -> Iterator[Part]:
    """Take some records of each file, and of auctions the markets of each type and of each zone alone."""
    taken: dict[str, int] = {}
    for record in records:
        stem = record.name.split()[0]
        file = _GENERATED if stem.startswith(_GENERATED) else stem
        taken[file] = taken.get(file, 0) + 1
        if taken[file] > most:
            continue
        places = {place for market in record.prices for place in (market.instance_type, market.zone)}
        yield Part(record, file, frozenset({file, *places}))
        if file == _GENERATED or not record.is_auction:
            continue
        for place in sorted(places):
            alone = [market for market in record.prices if place in (market.instance_type, market.zone)]
            if 1 < len(alone) < len(record.prices):
                types = {market.instance_type for market in alone}
                speeds = {name: speed for name, speed in record.steps_per_hour.items() if name in types}
                part = replace(record, prices=record.prices.select(alone), steps_per_hour=speeds)
                yield Part(part, place, frozenset({file, *types, *(market.zone for market in alone)}))


def alternatives() -> tuple[Changes, ...]:
    """The policy as it is, and each constant changed alone."""
    return AS_IS, *(((name, factor),) for name in _CONSTANTS for factor in _FACTORS)


def choose(cells: Sequence[CellCosts]) -> Changes:
    """Choose each constant by the fewest starts that are late, then by the least mean regret.

    Args:
        cells: Costs of all alternatives.
    """

    def loss(changes: Changes) -> tuple[int, float]:
        return sum(cell.missed[changes] for cell in cells), float(
            np.mean([cell.regret(changes) for cell in cells])
        )

    best = [min((AS_IS, *(((name, factor),) for factor in _FACTORS)), key=loss) for name in _CONSTANTS]
    return tuple(change for changes in best for change in changes)


@contextmanager
def changed(changes: Changes) -> Iterator[None]:
    """Change constants of the default policy in this process."""
    with ExitStack() as stack:
        for name, factor in changes:
            module, constant = name.split(".")
            owner = importlib.import_module(f"{_POLICY}.{module}")
            value = _CONSTANTS[name](getattr(owner, constant), factor)
            stack.enter_context(patch.object(owner, constant, value))
        yield


def _costs(item: tuple[BenchmarkRecord, Sequence[Changes]], starts: int, seed: int) -> list[CellCosts]:
    record, settings = item
    found = []
    for work in works_of(record, KINDS, starts, seed):
        rules = [runs_of(record, work, name) for name in RULES]
        least = min(runs.misses for runs in rules)
        ours = {}
        for changes in settings:
            with changed(changes):
                ours[changes] = runs_of(record, work, DEFAULT_NAME)
        found.append(
            CellCosts(
                rule_usd=min(float(np.mean(runs.costs_usd)) for runs in rules if runs.misses == least),
                usd={changes: float(np.mean(runs.costs_usd)) for changes, runs in ours.items()},
                missed={changes: runs.misses for changes, runs in ours.items()},
            )
        )
    return found


def _left_out(name: str, chosen: Changes, cells: Sequence[CellCosts]) -> LeftOut:
    regrets = {changes: [max(cell.regret(changes), 0.0) for cell in cells] for changes in (chosen, AS_IS)}
    missed = {changes: sum(cell.missed[changes] for cell in cells) for changes in (chosen, AS_IS)}
    return LeftOut(
        name=name,
        cells=len(cells),
        chosen=dict(chosen),
        mean_regret=float(np.mean(regrets[chosen])),
        worst_regret=max(regrets[chosen]),
        missed=missed[chosen],
        mean_regret_as_is=float(np.mean(regrets[AS_IS])),
        worst_regret_as_is=max(regrets[AS_IS]),
        missed_as_is=missed[AS_IS],
    )


if __name__ == "__main__":
    run_study(__doc__, "reports/constants.json", studied, starts=4, auctions=20, records=100, seed=0)
