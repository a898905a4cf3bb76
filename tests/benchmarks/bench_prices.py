"""How fast prices are read and interpolated, beside one NumPy pass over the same data."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from tests.benchmarks.floors import tell

import ebbtide as eb


@pytest.mark.real_traces
def test_reading_and_interpolating(benchmark, traces: Path) -> None:
    path = traces / "ec2-auction-2015.parquet"
    benchmark.pedantic(lambda: eb.PriceHistory.read(path).resample(60), rounds=5, warmup_rounds=1)
    grid = eb.PriceHistory.read(path).resample(60)
    began = time.perf_counter()
    pyarrow.parquet.read_table(path)
    np.copy(grid.prices)
    floor_s = time.perf_counter() - began
    program = (
        "import ebbtide as eb, resource;"
        f"eb.PriceHistory.read({str(path)!r}).resample(60);"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
    )
    peak = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.strip()
    told = f"{grid.prices.size:,} rows, peak {peak} MiB; targets 3 s, 1 GiB"
    tell("read and interpolate 13 markets", told, benchmark.stats.stats.median, floor_s)
