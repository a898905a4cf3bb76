"""Two people's runs of one name in one store, at once, on machines of the local cloud: nothing is shared."""

from __future__ import annotations

import contextlib
import json
from functools import partial
from pathlib import Path

import pytest
from tests.runs.commands import User, user
from tests.runs.sweeps import START_S, held_program, total
from tests.waiting import LIMIT_S

from ebbtide.clouds.local.server import bills_of
from ebbtide.controller.journal.journal import journal_of
from ebbtide.jobs.sweep import Sweep
from ebbtide.market.prices import PriceHistory
from ebbtide.runs.run import RunOptions, begin

pytestmark = pytest.mark.usefixtures("processes")

STEPS = 60


def has_trained(one: User) -> bool:
    return one.trains() and one.steps() >= STEPS - 5


@pytest.mark.long
def test_runs_of_one_name_share_no_machine_no_checkpoint_and_no_end(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        users: list[User] = []
        for place, who in enumerate(("ann", "bob")):
            (tmp_path / who).mkdir()
            users.append(one := stack.enter_context(user(tmp_path / who)))
            one.write(trials=1, steps=STEPS, program=held_program(tmp_path / "go"), grid={"lr": [0.1 + place]})
        ann, bob = users
        for one in users:
            options = RunOptions(
                runs=one.runs,
                name="nightly",
                store=str(tmp_path / "store"),
                prices=PriceHistory.read(one.folder / "prices.parquet"),
                start=START_S,
            )
            begin(Sweep.read(one.folder / "sweep.yaml"), one.folder, "reactive", "local", options)
            one.start("resume", "nightly")
        for one in users:
            one.wait(partial(has_trained, one))
        code, out, errors = bob.do("down", "nightly")
        assert (code, "none left" in out) == (0, True), errors
        assert not bob.machines()
        bob.started[-1].communicate(timeout=LIMIT_S)
        # The other's goes on, and ends as it would have.
        assert ann.machines()
        (tmp_path / "go").touch()
        _, errors = ann.started[-1].communicate(timeout=LIMIT_S)
        assert ann.started[-1].returncode == 0, errors
        # And so does this one, from its own checkpoint.
        resumed = bob.start("resume", "nightly")
        _, errors = resumed.communicate(timeout=LIMIT_S)
        assert resumed.returncode == 0, errors
        for place, one in enumerate(users):
            log = next((one.run.path / "logs").iterdir()).read_text().splitlines()
            (said,) = (line.removeprefix("total ") for line in log if line.startswith("total "))
            assert float(said) == pytest.approx(total(0.1 + place, STEPS))
            outcome = journal_of(one.run).state("outcome")
            assert outcome["cost_usd"] == pytest.approx(
                sum(bill["usd"] for bill in bills_of(one.run.path / "cloud"))
            )
            code, _, errors = one.do("fetch", "nightly", "0", "--into", one.folder / "fetched")
            assert code == 0, errors
            (state,) = (one.folder / "fetched").rglob("state.json")
            assert json.loads(state.read_text()) == [STEPS, pytest.approx(total(0.1 + place, STEPS))]
