"""Probes from one's own runs: availability as shown by the machines that a run requested and held."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from ebbtide.errors import InputError
from ebbtide.market.leases import Lease, LeaseState

COLUMNS = ("timestamp", "cloud", "region", "zone", "instance_type", "available")


def probes_of(leases: Sequence[Lease], until_s: float, every_s: float = 600.0) -> pd.DataFrame:
    """Probes from a run's spot leases: requests granted or refused, machines held or revoked.

    A market without a request for a while has a gap, across which `fit_market_spells` counts no spell.

    Args:
        leases: Leases of a run, as in its outcome.
        until_s: When the run ended, seconds since 1970.
        every_s: Seconds between two probes while a machine is held.

    Returns:
        One row per probe, sorted by market and time: timestamp, cloud, region, zone, instance_type, available (0
        or 1).

    Raises:
        InputError: `every_s` is not positive.
    """
    if not every_s > 0:
        raise InputError(f"every_s is {every_s}; it must be positive")
    rows = []
    for lease in leases:
        if lease.on_demand:
            continue
        market = lease.market
        if lease.state is LeaseState.FAILED:
            seen = [(lease.requested_s, 0)]
        elif not lease.is_charged:
            continue
        else:
            end_s = until_s if math.isnan(lease.ended_s) else lease.ended_s
            seen = [(float(time_s), 1) for time_s in np.arange(lease.started_s, end_s, every_s)]
            if lease.state is LeaseState.REVOKED:
                seen.append((end_s, 0))
        where = (market.cloud, market.region, market.zone, market.instance_type)
        rows += [(pd.Timestamp(time_s, unit="s", tz="UTC"), *where, up) for time_s, up in seen]
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    keys = ["cloud", "region", "zone", "instance_type", "timestamp"]
    # With a machine held and a refusal at one time in one market, the market counts as available.
    table = table.sort_values([*keys, "available"], kind="stable")
    return table.drop_duplicates(keys, keep="last", ignore_index=True)
