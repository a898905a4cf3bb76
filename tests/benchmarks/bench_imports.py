"""How soon Ebbtide is there: `import ebbtide` and `ebbtide --help`, beside a Python that does nothing."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from tests.benchmarks.floors import tell

WAYS = {
    "import ebbtide": ["-c", "import ebbtide"],
    "ebbtide --help": ["-m", "ebbtide.cli.main", "--help"],
    "eb.backtest": ["-c", "import ebbtide; ebbtide.backtest"],
    "eb.run": ["-c", "import ebbtide; ebbtide.run"],
}


def least_s(words: list[str]) -> float:
    """The least of five runs, seconds."""
    times = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - began)
    return min(times)


@pytest.mark.parametrize("what", WAYS)
def test_how_soon_it_is_there(benchmark, what: str) -> None:  # type: ignore[no-untyped-def]
    floor_s = least_s(["-c", "pass"])
    seconds = benchmark.pedantic(least_s, args=(WAYS[what],), rounds=1)
    tell(what, "least of five", seconds, floor_s)
