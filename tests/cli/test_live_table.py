"""Tables of runs say whose machines they rent, and that the money of a replayed market is none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console, RenderableType
from tests.runs.sweeps import START_S, A
from tests.runs.test_status import HOUR_S, job, stands, trial

from ebbtide.cli.live_table import run_table, runs_table
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.runs.results import results_html
from ebbtide.runs.status import RunStanding
from ebbtide.ui.prometheus import exposition


def ended(provider: str) -> RunStanding:
    """A run that paid 0.05 USD for an hour."""
    lease = Lease(0, A, 0.1, False, START_S, LeaseState.RELEASED, START_S, START_S, ended_s=START_S + HOUR_S)
    charge = {"start_s": START_S, "end_s": START_S + HOUR_S, "price_usd_per_hour": 0.05, "usd": 0.05}
    bills = [[0, {"charges": [charge], "refund_usd": 0.0}]]
    return replace(stands([job()], [trial({1: 0.5})], leases=[lease], bills=bills), provider=provider)


def printed(shown: RenderableType) -> str:
    console = Console(width=200, record=True)
    with console.capture() as capture:
        console.print(shown)
    return capture.get()


@pytest.mark.parametrize(("provider", "is_simulated"), [("local", True), ("ec2", False), ("several", False)])
def test_simulated_money_is_called_so_wherever_it_is_told(provider: str, is_simulated: bool) -> None:
    one = ended(provider)
    words = f"{provider} (simulated)" if is_simulated else provider
    for shown in (printed(run_table(one)), printed(runs_table([one]))):
        assert words in shown
        assert ("simulated" in shown) == is_simulated
    assert ("paid 0.0500 USD (simulated)" in printed(run_table(one))) == is_simulated
    assert ("0.0500 USD (simulated)" in results_html(one)) == is_simulated
    plain = one.as_plain()
    assert (plain["provider"], plain["is_simulated"]) == (provider, is_simulated)
    told = f'ebbtide_run_info{{provider="{provider}",run="run",simulated="{str(is_simulated).lower()}"}} 1.0'
    assert told in exposition([one]).decode()


def test_of_very_many_trials_the_first_are_shown_and_the_others_counted() -> None:
    one = stands([job() for _ in range(60)], [trial({1: number / 100}) for number in range(60)])
    shown = printed(run_table(one))
    assert shown.count(" done") == 50 + 1
    assert "and 10 more trials: 10 done; `ebbtide status run --all` shows them" in shown
    assert printed(run_table(one, None)).count(" done") == 60
    assert "more trials" not in printed(run_table(one, 60))
