"""Rules on the shape of tests, held on the tree and shown on samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.house import MAY_WAIT, ROOT, SHARED_NAMES, check, depth, shared_class_names, waits

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


def test_the_rules_on_docstrings_names_and_words_hold() -> None:
    assert check(ROOT) == []


def test_each_breach_of_a_rule_is_found(tmp_path: Path) -> None:
    (tmp_path / "src" / "one").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("No machine is to be had.\nIt is given back.\n")
    (tmp_path / "src" / "one" / "a.py").write_text('"""Which it is."""\n\n\nclass Cell:\n    """One of them."""\n')
    (tmp_path / "src" / "one" / "b.py").write_text('"""Cells."""\n\n\nclass Cell:\n    """A cell."""\n')
    assert check(tmp_path) == [
        "one.a.: Which: a docstring begins with a noun or a verb",
        "one.a.Cell: One: a docstring begins with a noun or a verb",
        "Cell: classes of one.a, one.b share this name",
        f"{tmp_path}/docs/page.md:1: to be had: available",
        f"{tmp_path}/docs/page.md:2: given back: release",
    ]


def test_names_that_may_be_shared_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.house.SHARED_NAMES", {})
    assert SHARED_NAMES.keys() <= shared_class_names(ROOT / "src").keys()


def test_the_longest_chain_of_imports() -> None:
    assert depth({"a": {"b", "c"}, "b": {"c"}, "c": set(), "d": {"a"}}) == ["d", "a", "b", "c"]
