"""Memory of agent and controller while a program prints 30,000 lines a second: it must stay as it was.

Machine, agent and controller are real, on the local cloud; their memory is read from the operating system every
half second. Set EBBTIDE_BENCH_S to look for longer than a minute.
"""

from __future__ import annotations

import os
import re
import statistics
import threading
from collections import defaultdict
from pathlib import Path

import pytest
from tests.runs.sweeps import START_S, steady, sweep

from ebbtide.clouds.settings import NewRun
from ebbtide.policies.registry import policy
from ebbtide.runs.start_local import LocalMarket, begin_local, end_local, run_local

LINES_PER_S = 30_000
SECONDS = float(os.environ.get("EBBTIDE_BENCH_S", "60"))
# What garbage collectors and caches may take and give.
MOST_GROWTH_MIB = 32.0

# As much as fits into each tenth of a second; where the machine is busy, the rest is printed later.
PROGRAM = f"""
import sys, time
began_s, printed = time.monotonic(), 0
while (now_s := time.monotonic() - began_s) < {SECONDS}:
    due = int(now_s * {LINES_PER_S})
    lines = [f"sample {{n}} of shard {{n % 97}} is kept, {{'ab' * (n % 30)}}" for n in range(printed, due)]
    lines.append(f'{{{{"step": {{int(now_s) + 1}}, "loss": {{1.0 / (now_s + 1.0)}}}}}}')
    sys.stdout.write("\\n".join(lines) + "\\n")
    sys.stdout.flush()
    printed = due
    time.sleep(0.1)
print(f"printed {{printed}} lines")
"""


def memory_mib(pid: int) -> float:
    """What a process has in memory; 0: it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def agents_in(folder: Path) -> list[int]:
    """Processes of agents that work in a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if entry.name.isdecimal() and "ebbtide.agent" in words and str(folder) in words:
            found.append(int(entry.name))
    return found


@pytest.mark.usefixtures("processes")
def test_memory_stays_as_it_was(tmp_path: Path) -> None:
    wanted = sweep(tmp_path, trials=1, steps=int(SECONDS) + 1, program=PROGRAM)
    folder = begin_local(
        wanted, tmp_path, NewRun(tmp_path / "runs"), LocalMarket(steady(), START_S, 1.0), policy="cheapest-spot"
    )
    seen: dict[str, list[float]] = defaultdict(list)
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.5):
            agents = agents_in(tmp_path)
            if agents:
                seen["agent"].append(max(map(memory_mib, agents)))
                seen["controller"].append(memory_mib(os.getpid()))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        ended = run_local(folder, policy("cheapest-spot"))
    finally:
        over.set()
        looking.join()
        end_local(folder)
    assert ended.outcome.finished
    logs = [path.read_text(encoding="utf-8") for path in (folder.path / "logs").iterdir()]
    (printed,) = (int(found) for log in logs for found in re.findall(r"printed (\d+) lines", log))
    assert printed > 0.9 * LINES_PER_S * SECONDS
    logs_mib = sum(map(len, logs)) / (1 << 20)
    for who, mib in seen.items():
        third = max(len(mib) // 3, 1)
        early, late = statistics.median(mib[third : 2 * third]), statistics.median(mib[2 * third :])
        print(
            f"\n{who}, {printed:,} lines in {SECONDS:.0f} s: {late:.0f} MiB in the last third, "
            f"{early:.0f} MiB in the one before, {max(mib):.0f} MiB at most; logs {logs_mib:.1f} MiB"
        )
        assert late - early < MOST_GROWTH_MIB
    assert set(seen) == {"agent", "controller"}
