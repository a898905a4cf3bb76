"""Dynamic Pricing's claims (3), each with the paper's figure and ours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np

from ebbtide.errors import InputError
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.lifetimes import Life, by_machine
from ebbtide.market.prices import PriceHistory
from ebbtide_papers.dynamic_pricing.price_variation import (
    DATASET_GB,
    dollar_normalised,
    extremes,
    list_price_per_gpu,
    transfer_costs,
    variation,
)
from ebbtide_papers.dynamic_pricing.study import (
    DURATION_DAYS,
    DURATIONS_DAYS,
    MODEL_GB,
    STRATEGIES,
    GpuMarkets,
    Rates,
    StrategyCosts,
    egress_share,
    follow,
    gpu_markets,
    spot_reductions,
)
from ebbtide_papers.reproduction import (
    ClaimRow,
    PaperClaim,
    Reproduction,
    around,
    at_most,
    half_to_twice_the_effect,
)

# Cost reductions of Table 3; AWS has no P100.
_REDUCTIONS = {
    ("aws", "k80"): 2.7,
    ("aws", "v100"): 3.3,
    ("azure", "k80"): 7.3,
    ("azure", "p100"): 8.0,
    ("azure", "v100"): 5.1,
}

_NO_PRICE = "from no start had both a price all the time"

_Key = TypeVar("_Key")

# Egress shares of Table 2, as fractions.
_EGRESS = {"resnet50": 0.00006, "bert_base": 0.00025}


def reproduce_dynamic_pricing(
    histories: Sequence[PriceHistory],
    rates: Rates,
    catalogue: Catalogue,
    lives: Sequence[Life] = (),
    *,
    inputs: dict[str, str],
) -> Reproduction:
    """The claims of section 3; nothing in them is random.

    Args:
        histories: Price histories of AWS and Azure.
        rates: Steps per second by model and GPU.
        catalogue: Instance types and their list prices.
        lives: Lifetimes of machines that were kept running, from a log; may be empty.
        inputs: SHA-256 of the input files, by name.
    """
    found: dict[float, dict[str, StrategyCosts]] = {}
    known, why = None, ""
    try:
        known = gpu_markets(histories, catalogue)
        hours = known.usd_per_gpu_hour.shape[1]
        fitting = [d for d in DURATIONS_DAYS if d * 24 < hours]
        found = {d: {model: follow(known, own, d) for model, own in rates.items()} for d in fitting}
        why = f"the prices have {hours} h in common; jobs of {DURATION_DAYS:g} days need more"
    except InputError as error:
        why = str(error)
    rows = [_total(found.get(DURATION_DAYS, {}), why), _dynamic(found, why), _switches(found, why)]
    for model, size_gb in MODEL_GB.items():
        share, paper = math.nan if known is None else egress_share(known, size_gb), _EGRESS[model]
        rows.append(
            ClaimRow(
                f"model_egress_share_{model}",
                f"egress of one checkpoint of {model} over the cost of training it",
                paper,
                share,
                "fraction",
                half_to_twice_the_effect(paper),
                "",
                why if known is None else "AWS's us-east-1 has no machine with one V100 in these prices",
            )
        )
    reductions = spot_reductions(histories, catalogue)
    for (cloud, gpu), paper_reduction in _REDUCTIONS.items():
        ours = reductions.get((cloud, gpu))
        rows.append(
            ClaimRow(
                f"spot_reduction_{cloud}_{gpu}",
                f"list price / least spot price, one {gpu} on {cloud}, US East",
                paper_reduction,
                ours,
                "factor",
                around(paper_reduction, 0.1),
                "",
                f"no machine of {cloud} with one {gpu} and a list price in US East in these prices",
            )
        )
    listed = list_price_per_gpu(histories, catalogue)
    tables = _tables(found, rates, known) | {
        "with_dataset_moved": _with_datasets(known, rates) if known and DURATION_DAYS in found else {},
        "dollar_normalised_throughput_over_k80": dollar_normalised(rates, listed),
        "list_price_per_gpu_hour": listed,
        "transfer_over_training_cost": transfer_costs(known) if known else {},
        "variation": _variation(histories, catalogue),
        "extremes": extremes(known) if known else {},
        "lives": by_machine(lives),
    }
    return Reproduction("dynamic-pricing", inputs, 0, tuple(rows), tables)


def _variation(histories: Sequence[PriceHistory], catalogue: Catalogue) -> dict[str, dict[str, float]]:
    """Price variation over all the time that each cloud's prices cover."""
    table: dict[str, dict[str, float]] = {}
    for history in histories:
        # A cloud without such machines, or a file of hours, has none.
        with suppress(InputError):
            table |= variation(gpu_markets([history], catalogue))
    return table


def _with_datasets(known: GpuMarkets, rates: Rates) -> dict[str, dict[str, float]]:
    """The gain of the dynamic strategy if each job must copy its dataset, by dataset size."""
    return {
        dataset: {
            model: follow(known, own, DURATION_DAYS, size_gb).reduction("dynamic", "1xV100")
            for model, own in rates.items()
        }
        for dataset, size_gb in DATASET_GB.items()
    }


_TOTAL = PaperClaim(
    "cost of the cheapest 1xV100 / of dynamic, most over models",
    3.5,
    "factor",
    half_to_twice_the_effect(3.5, none=1.0),
    f"jobs are followed for {DURATION_DAYS:g} days wherever they run, since on a K80 four V100-days would outlast "
    "the prices; every region of the files may be chosen",
)
_DYNAMIC = PaperClaim(
    "cost of multi-cloud / of dynamic, most over models and durations",
    1.4,
    "factor",
    half_to_twice_the_effect(1.4, none=1.0),
    "the two clouds' prices have only days in common here",
)
_SWITCHES = PaperClaim(
    "moves of one job, most over models, starts and durations",
    3.0,
    "moves",
    at_most(6.0, "twice the paper's"),
)


def _total(table: Mapping[str, StrategyCosts], why: str) -> ClaimRow:
    by_model = _finite({model: costs.reduction("dynamic", "1xV100") for model, costs in table.items()})
    if not by_model:
        return _TOTAL.row("total_cost_reduction_max", None, missing=why if not table else _NO_PRICE)
    best = max(by_model, key=lambda model: by_model[model])
    note = f"{best}, least {min(by_model.values()):.2f}"
    return _TOTAL.row("total_cost_reduction_max", by_model[best], note=note)


def _dynamic(found: Mapping[float, Mapping[str, StrategyCosts]], why: str) -> ClaimRow:
    cases = _finite(
        {
            (d, model): costs.reduction("dynamic", "multi-cloud")
            for d, table in found.items()
            for model, costs in table.items()
        }
    )
    if not cases:
        return _DYNAMIC.row("dynamic_cost_reduction_max", None, missing=why if not found else _NO_PRICE)
    (days, model), most = max(cases.items(), key=lambda case: case[1])
    return _DYNAMIC.row("dynamic_cost_reduction_max", most, note=f"{model}, {days:g} days")


def _switches(found: Mapping[float, Mapping[str, StrategyCosts]], why: str) -> ClaimRow:
    counts = {d: [costs.switches for costs in table.values()] for d, table in found.items() if table}
    if not counts:
        return _SWITCHES.row("switches_max", None, missing=why)
    most = max(int(moves.max()) for own in counts.values() for moves in own)
    longest = max(counts)
    mean = float(np.mean([moves.mean() for moves in counts[longest]]))
    return _SWITCHES.row("switches_max", float(most), note=f"mean {mean:.2f} in {longest:g} days")


def _finite(figures: Mapping[_Key, float]) -> dict[_Key, float]:
    return {key: figure for key, figure in figures.items() if math.isfinite(figure)}


def _tables(
    found: Mapping[float, Mapping[str, StrategyCosts]], rates: Rates, known: GpuMarkets | None
) -> dict[str, Any]:
    table = found.get(DURATION_DAYS, {})
    hours = 0 if known is None else known.usd_per_gpu_hour.shape[1]
    return {
        "hours_in_common": hours,
        "cost_reduction_over_1xV100": {
            model: {name: costs.reduction(name, "1xV100") for name in STRATEGIES} for model, costs in table.items()
        },
        "dynamic_over_multi_cloud_by_days": {
            f"{d:g}": {model: costs.reduction("dynamic", "multi-cloud") for model, costs in own.items()}
            for d, own in found.items()
        },
        "throughput_over_k80": {
            model: {gpu: rate / own["k80"] for gpu, rate in own.items()}
            for model, own in rates.items()
            if "k80" in own
        },
    }
