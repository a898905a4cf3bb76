"""Replays by several processes: the same bytes, errors by name, and no process left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from tests.waiting import LIMIT_S, eventually

import ebbtide as eb
from ebbtide.backtesting import replays
from ebbtide.backtesting.backtest import start_times
from ebbtide.backtesting.comparison import compare
from ebbtide.backtesting.replay_worker import read_scenario, received_policy, sent_policy, write_scenario
from ebbtide.backtesting.replays import _Run, replay_all
from ebbtide.errors import InputError
from ebbtide.market.billing import billing_preset
from ebbtide.policies.api.actions import Action
from ebbtide.policies.api.view import View
from ebbtide.policies.baselines import Reactive
from ebbtide.policies.registry import policies
from ebbtide.replay.scenario import Scenario

pytestmark = pytest.mark.usefixtures("processes")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def prices() -> eb.PriceHistory:
    return eb.generate_prices(days=20, seed=5, kind="auction")


@pytest.fixture(autouse=True)
def own_search_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of policy files are searched for what they import: in these tests alone."""
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers begin with the first replay, however little there is to do."""
    monkeypatch.setattr(replays, "_ALONE_S", 0.0)


@pytest.mark.long
@pytest.mark.usefixtures("at_once")
def test_the_bytes_are_the_same_however_many_workers(prices: eb.PriceHistory, one_day: eb.Job) -> None:
    told: list[int] = []
    before = set(psutil.Process().children())
    texts = [
        eb.backtest(
            one_day,
            policies("on-demand,reactive,deepspotcloud-migrate,dynamic-pricing-cost"),
            prices,
            starts=6,
            seed=2,
            workers=workers,
            on_progress=told.append,
        )
        for workers in (1, 3)
    ]
    assert texts[0].to_json() == texts[1].to_json()
    for name, runs in texts[0].outcomes.items():
        ledgers = [run.ledger.to_frame() for run in texts[1].outcomes[name]]
        assert all(run.ledger.to_frame().equals(other) for run, other in zip(runs, ledgers, strict=True))
    assert told == [*range(1, 25), *range(1, 25)]
    assert set(psutil.Process().children()) <= before


OWN = """
from ebbtide.policies.baselines import Reactive

class Mine(Reactive):
    def decide(self, view):
        if view.now_s > LATEST_S:
            raise ValueError(f"too late at {view.now_s}")
        yield from super().decide(view)

def mine():
    return Mine(name="mine")
"""


@pytest.mark.usefixtures("at_once")
def test_policies_from_files_and_from_here_are_replayed_too(
    prices: eb.PriceHistory, one_day: eb.Job, tmp_path: Path
) -> None:
    @dataclass(frozen=True)
    class Local(Reactive):
        """Known to this function alone: no other process can make it."""

        name: str = "local"

        def decide(self, view: View) -> Iterable[Action]:
            yield from super().decide(view)

    assert sent_policy(Local()) is None
    (tmp_path / "own.py").write_text(OWN.replace("LATEST_S", "float('inf')"))
    chosen = [*policies(f"{tmp_path}/own.py:mine,reactive"), Local()]
    assert received_policy(sent_policy(chosen[0])) == chosen[0]
    result = eb.backtest(one_day, chosen, prices, starts=4, workers=2)
    costs = [[run.cost_usd for run in result.outcomes[name]] for name in ("mine", "reactive", "local")]
    assert costs[0] == costs[1] == costs[2]


@pytest.mark.usefixtures("at_once")
def test_a_file_that_is_gone_or_changed_since_hinders_no_worker(
    prices: eb.PriceHistory, one_day: eb.Job, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A policy of a file that reads otherwise by now is replayed where it was made, as it was made."""
    gone, changed = tmp_path / "gone.py", tmp_path / "changed.py"
    for file in (gone, changed):
        file.write_text(OWN.replace("LATEST_S", "float('inf')"))
    found = [policies(text)[0] for text in (f"{gone}:mine", "reactive", f"{changed}:mine")]
    chosen = [replace(policy, name=f"{place}") for place, policy in enumerate(found)]
    gone.unlink()
    changed.write_text(OWN.replace("LATEST_S", "0.0"))
    before = set(psutil.Process().children())
    seen: set[psutil.Process] = set()
    result = eb.backtest(
        one_day,
        chosen,
        prices,
        starts=6,
        workers=2,
        on_progress=lambda _done: seen.update(
            c for c in set(psutil.Process().children()) - before if c.is_running()
        ),
    )
    costs = [[run.cost_usd for run in result.outcomes[name]] for name in ("0", "1", "2")]
    assert costs[0] == costs[1] == costs[2]
    assert len(seen) == 1
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("workers", [1, 3])
def test_the_error_of_the_first_start_is_told_whoever_meets_it(
    prices: eb.PriceHistory, one_day: eb.Job, tmp_path: Path, workers: int
) -> None:
    scenario = Scenario((one_day,), prices, billing_preset("ec2-second"), seed=1)
    starts_s = start_times(scenario, 8)
    bound = float(np.median(starts_s))
    first = next(start_s for start_s in starts_s if start_s > bound)
    (tmp_path / f"own{workers}.py").write_text(OWN.replace("LATEST_S", repr(bound)))
    chosen = policies(f"reactive,{tmp_path}/own{workers}.py:mine,on-demand")
    # A policy also fails that is asked late in a run; what counts is the first start, not who is faster.
    with pytest.raises(Exception, match="too late at") as caught:
        replay_all(scenario, chosen, starts_s, workers=workers)
    found = replay_all(scenario, chosen, starts_s, workers=workers, tolerates=(Exception,))
    assert list(found.outcomes) == ["reactive", "on-demand"]
    assert str(found.errors["mine"]) == str(caught.value)
    assert first > bound


def test_less_than_one_worker_is_refused(prices: eb.PriceHistory, one_day: eb.Job) -> None:
    with pytest.raises(InputError, match="workers is 0; at least 1"):
        eb.backtest(one_day, policies("reactive"), prices, starts=1, workers=0)


@pytest.mark.long
@pytest.mark.usefixtures("at_once")
def test_a_comparison_is_the_same_with_workers(prices: eb.PriceHistory, one_day: eb.Job) -> None:
    rows = [
        compare(
            one_day.model_copy(update={"checkpoint": None}),
            policies("on-demand,reactive,exosphere"),
            prices,
            billing=billing_preset("ec2-second"),
            starts=3,
            workers=workers,
        ).rows
        for workers in (1, 2)
    ]
    assert list(map(str, rows[0])) == list(map(str, rows[1]))


def test_a_scenario_arrives_as_it_was_sent(prices: eb.PriceHistory, one_day: eb.Job, tmp_path: Path) -> None:
    scenario = Scenario((one_day,), prices, billing_preset("ec2-second"))
    assert write_scenario(scenario, tmp_path)
    came = read_scenario(tmp_path)
    assert came.prices.equals(prices)
    assert (came.jobs, came.billing, came.seed) == (scenario.jobs, scenario.billing, scenario.seed)


LONG = """
import sys
import ebbtide as eb
from ebbtide.policies.registry import policies
from ebbtide.replay.scenario import Scenario
prices = eb.generate_prices(days=60, seed=0, kind="auction")
print("begun", flush=True)
eb.backtest(policies("spottune"), eb.Job.read("examples/one-day.yaml"), prices, starts=500, workers=3)
"""


@pytest.mark.long
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_the_process_that_began_them(ending: signal.Signals) -> None:
    # A program without a guard for its own import: nothing imports it again.
    program = subprocess.Popen(
        [sys.executable, "-c", LONG], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert program.stdout is not None
        program.stdout.readline()
        own = psutil.Process(program.pid)
        workers = eventually(lambda: found if len(found := own.children()) >= 2 else None, poll_s=0.05)
        assert len(workers) == 2
        # They have read the market, and replay.
        eventually(lambda: all(one.cpu_times().user > 1.0 for one in workers), poll_s=0.05)
        os.kill(program.pid, ending)
        program.wait(LIMIT_S)
        # Killed, it cannot tell them; they look for themselves.
        gone, alive = psutil.wait_procs(workers, timeout=LIMIT_S)
        assert not alive
        assert len(gone) == 2
    finally:
        program.kill()
        program.communicate()
    assert program.returncode != 0


@pytest.mark.long
@pytest.mark.usefixtures("at_once")
def test_what_a_killed_worker_had_is_done_by_others(prices: eb.PriceHistory, one_day: eb.Job) -> None:
    killed: list[int] = []
    before = set(psutil.Process().children())

    def kill(done: int) -> None:
        if done >= 4 and not killed:
            killed.extend(child.pid for child in set(psutil.Process().children()) - before)
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    chosen = policies("deepspotcloud-best-price,reactive")
    result = eb.backtest(one_day, chosen, prices, starts=10, workers=3, on_progress=kill)
    assert len(killed) == 2
    assert result.to_json() == eb.backtest(one_day, chosen, prices, starts=10).to_json()


def test_earlier_starts_of_a_policy_that_failed_are_still_replayed(
    prices: eb.PriceHistory, one_day: eb.Job
) -> None:
    """They may fail, too, and the first of all is told, whichever process came to one of them first."""
    scenario = Scenario((one_day,), prices, billing_preset("ec2-second"), seed=1)
    starts_s = start_times(scenario, 5)
    run = _Run(scenario, policies("reactive,on-demand"), starts_s, (ValueError,), lambda _done: None)
    run._keep((0, 3), ValueError("the fourth"))
    assert list(run._still_wanted(deque([(0, 1), (0, 4), (1, 4)]))) == [(0, 1), (1, 4)]
    run._keep((0, 1), ValueError("the second"))
    run._keep((0, 2), ValueError("the third"))
    assert str(run._errors[0][1]) == "the second"
