"""Rules on the shape of tests, held on the tree and shown on samples."""

from __future__ import annotations

from pathlib import Path

from tests.house import MAY_WAIT, ROOT, waits

SAMPLE = """
import time
from time import monotonic, perf_counter
from tests.waiting import eventually

def test_it():
    time.sleep(0.1)
    began_s = monotonic()
    eventually(lambda: perf_counter() - began_s > 1.0)
    assert time.time() > 0.0
    # time.sleep(1.0)
    program = "import time; time.sleep(1.0)"
"""


def test_tests_wait_for_conditions_and_not_for_times() -> None:
    assert waits(ROOT / "tests") == [], "use `eventually` of tests/waiting.py"


def test_what_may_wait_is_there() -> None:
    assert [place for place in MAY_WAIT if not (ROOT / "tests" / place).exists()] == []


def test_each_call_that_waits_is_found_and_no_other(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    (tmp_path / "benchmarks").mkdir()
    inner.mkdir()
    for place in (inner / "test_it.py", inner / "training_program.py", tmp_path / "benchmarks" / "bench_it.py"):
        place.write_text(SAMPLE)
    assert waits(tmp_path) == [
        "inner/test_it.py:7: sleep",
        "inner/test_it.py:8: monotonic",
        "inner/test_it.py:9: perf_counter",
    ]
