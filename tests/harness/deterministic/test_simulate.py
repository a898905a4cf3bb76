"""Live runs on a virtual clock: whatever goes wrong, nothing is lost, paid unseen or left running."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from tests.harness.deterministic.mutants import MUTANTS, broken, find
from tests.harness.deterministic.shrinking import shrunk
from tests.harness.deterministic.simulate import in_memory, main, simulate_all
from tests.harness.deterministic.world import simulate

# `make simulate` has ten thousand.
RUNS, LEAST_FAULTS_A_RUN = 40, 50
# Variants that are found within few runs, in seconds.
QUICK = (
    "forgeries are believed",
    "a torn message ends the controller",
    "of events told together the first is all",
    "every object has a number",
    "a full disk ends the run",
    "a name lacks the fingerprint",
)


@pytest.mark.long
def test_every_invariant_holds() -> None:
    report = simulate_all(0, RUNS, processes=1)
    assert report.runs == RUNS
    assert report.faults > RUNS * LEAST_FAULTS_A_RUN
    assert (report.violations, report.stuck, report.failing) == (0, 0, [])
    assert report.steps_counted_twice == report.steps_lost_beyond_checkpoint == report.machines_left_running == 0
    assert report.ledger_difference_usd == 0.0
    assert report.ended["finished"] > RUNS // 2


# With one of these seeds, another user has a run of the same id in the account.
@pytest.mark.parametrize("seed", [7, 16])
def test_a_seed_decides_everything(seed: int) -> None:
    with in_memory() as place:
        first, second = simulate(seed, place / "a"), simulate(seed, place / "b")
    assert first == second
    assert first.faults
    assert any("namesake" in fault.place for fault in first.faults) == (seed == 16)


def test_a_broken_run_is_shrunk_to_the_faults_that_break_it() -> None:
    name = "a torn message ends the controller"
    with in_memory() as place, broken(name):
        number = find(place, 200, name).runs_to_find
        assert number is not None
        run = simulate(number - 1, place)
        found = shrunk(run, place)
        assert found.what == run.violations[0].what
        assert 0 < len(found.trace) < len(run.faults) / 4
        # The remaining faults are enough, and all are needed.
        places = [line.split()[2].rstrip(":") for line in found.trace]
        assert len(places) == len(found.trace)
    assert f"of {len(run.faults)} faults are enough" in str(found)


@pytest.mark.long
@pytest.mark.parametrize("name", QUICK)
def test_a_defect_that_there_once_was_is_found(name: str) -> None:
    assert name in MUTANTS
    with in_memory() as place:
        assert find(place, 200, name).runs_to_find is not None


def test_the_command_writes_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "reports" / "simulation.json"
    assert main([str(report), "--seed", "3", "--runs", "4"]) == 0
    found = json.loads(report.read_text())
    assert (found["runs"], found["violations"]) == (4, 0)
    assert found.keys() == asdict(simulate_all(3, 1, processes=1)).keys()
    assert "4 runs with" in capsys.readouterr().out


def test_a_number_of_runs_below_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path / "x.json"), "--runs", "0"])
