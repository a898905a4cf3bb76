"""Our own probes: what the machines that a run asked for and held tell about availability."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from ebbtide.errors import InputError
from ebbtide.market.leases import Lease, LeaseState

COLUMNS = ("timestamp", "cloud", "region", "zone", "instance_type", "available")


def probes_of(leases: Sequence[Lease], until_s: float, every_s: float = 600.0) -> pd.DataFrame:
    """What a run's spot machines tell: a request that was granted or refused, a machine that lived or was taken.

    A market that was not asked for a while leaves a hole, across which `fit_market_spells` counts no spell.

    Args:
        leases: Of a run, as in its outcome.
        until_s: When it ended.
        every_s: A machine that is held tells so often that there is one.

    Returns:
        A row a probe, by market and time: timestamp, cloud, region, zone, instance_type, available (0 or 1).

    Raises:
        InputError: Not a positive interval.
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
    # Of two at one time in one market a refusal tells of the next machine, a machine held of the last.
    table = table.sort_values([*keys, "available"], kind="stable")
    return table.drop_duplicates(keys, keep="last", ignore_index=True)
