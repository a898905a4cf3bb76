"""Variation of prices of GPU machines (Dynamic Pricing 3.2.2, Fig. 1, 3 and 4; Tables 1 and 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ebbtide.market.catalogue import Catalogue
from ebbtide.market.prices import PriceHistory
from ebbtide_papers.dynamic_pricing.study import MODEL_GB, GpuMarkets, Rates, egress_share
from ebbtide_papers.reproduction import ratio

# Dataset sizes of Table 2.
DATASET_GB = {"resnet50": 150.0, "bert_base": 17.0}

# Instance types whose list prices normalise throughputs: Azure's, the only cloud here with all three GPUs.
_LISTED = {"k80": ("azure", "NC6"), "p100": ("azure", "NC6s v2"), "v100": ("azure", "NC6s v3")}


def list_price_per_gpu(histories: Sequence[PriceHistory], catalogue: Catalogue) -> dict[str, float]:
    """USD per GPU-hour on demand, of machines with one GPU.

    Azure's where its prices are given (the only cloud here with all three), else the first that is known.
    """
    found: dict[str, float] = {}
    for history in histories:
        for market in history:
            machine = catalogue.instance_type(market.cloud, market.instance_type)
            gpu = (machine.accelerator or "").removeprefix("NVIDIA ").lower()
            listed = catalogue.on_demand_usd_per_hour(market, history.start_s)
            preferred = _LISTED.get(gpu) == (market.cloud, market.instance_type)
            if listed is not None and machine.accelerator_count == 1 and (preferred or gpu not in found):
                found[gpu] = listed
    return found


def dollar_normalised(rates: Rates, listed: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Table 1: throughput per dollar at list prices, over a K80's, by model and GPU."""
    return {
        model: {
            gpu: (rate / listed[gpu]) / (own["k80"] / listed["k80"]) for gpu, rate in own.items() if gpu in listed
        }
        for model, own in rates.items()
        if "k80" in own and "k80" in listed
    }


def transfer_costs(known: GpuMarkets) -> dict[str, dict[str, float]]:
    """Table 2: egress of one dataset and one checkpoint over the cost of 160 V100-hours."""
    return {
        model: {
            "dataset": egress_share(known, DATASET_GB[model]),
            "model": egress_share(known, size_gb),
        }
        for model, size_gb in MODEL_GB.items()
    }


def variation(known: GpuMarkets) -> dict[str, dict[str, float]]:
    """Fig. 1 and 4: price statistics by cloud, GPU and number of GPUs, over markets and hours.

    Returns:
        Mean price of a GPU-hour; mean over markets of the standard deviation in time over the mean; share of
        markets that never change; number of markets.
    """
    table: dict[str, dict[str, float]] = {}
    for key, rows in _groups(known).items():
        prices = [own[np.isfinite(own)] for own in known.usd_per_gpu_hour[rows]]
        prices = [own for own in prices if len(own)]
        if prices:
            table[key] = {
                "usd_per_gpu_hour": float(np.mean([own.mean() for own in prices])),
                "deviation_over_mean": float(np.mean([ratio(own.std(), own.mean()) for own in prices])),
                "share_that_never_change": float(np.mean([own.min() == own.max() for own in prices])),
                "markets": len(prices),
            }
    return table


def extremes(known: GpuMarkets) -> dict[str, dict[str, float]]:
    """Fig. 3: lowest and highest price of a GPU-hour over all zones at a time, means over time, by machine.

    Also the share of the hours in which the cloud is the cheapest of those with the machine. Machines without a
    price in these hours are left out.
    """
    groups = _groups(known)
    least = {key: known.usd_per_gpu_hour[rows].min(axis=0) for key, rows in groups.items()}
    table: dict[str, dict[str, float]] = {}
    for key, rows in groups.items():
        prices = known.usd_per_gpu_hour[rows]
        most = np.where(np.isfinite(prices), prices, -np.inf).max(axis=0)
        seen = np.isfinite(least[key])
        if not seen.any():
            continue
        machine = key.split(" ", 1)[1]
        rivals = np.min([own for name, own in least.items() if name.split(" ", 1)[1] == machine], axis=0)
        table[key] = {
            "least_usd_per_gpu_hour": float(least[key][seen].mean()),
            "most_usd_per_gpu_hour": float(most[seen].mean()),
            "share_of_hours_cheapest": float((least[key] == rivals)[seen].mean()),
        }
    return table


def _groups(known: GpuMarkets) -> dict[str, np.ndarray]:
    keys = [
        f"{market.cloud} {count} x {gpu}"
        for market, gpu, count in zip(known.markets, known.gpus, known.counts.tolist(), strict=True)
    ]
    return {key: np.flatnonzero([own == key for own in keys]) for key in sorted(set(keys))}
