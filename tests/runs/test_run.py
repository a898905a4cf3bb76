"""`eb.run` and what one does to the run that it gives."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.markets import C3, history, job
from tests.markets import START_S as OF_MARKETS_S
from tests.runs.sweeps import PROGRAM, START_S, flapping, sweep, total
from tests.waiting import LIMIT_S, eventually

import ebbtide as eb
from ebbtide.cli.live_table import state_line
from ebbtide.cli.runs import stop_command
from ebbtide.clouds.settings import RunFolder, known_runs
from ebbtide.controller.run_state import State
from ebbtide.jobs.asked_policy import AskedPolicy
from ebbtide.jobs.sweep import Sweep
from ebbtide.market.catalogue import InstanceType
from ebbtide.runs.handle import Run
from ebbtide.runs.run import RunOptions, begin
from ebbtide.runs.start_local import end_local

# A type that no catalogue but the user's has.
OWN = InstanceType("aws", "x9.own", 6, 12.0)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Path]:
    """Where runs are kept: whatever becomes of a test, no machine of theirs is left."""
    folder = tmp_path / "runs"
    yield folder
    for path in folder.glob("*/run.json"):
        end_local(RunFolder(path.parent))


def of_own_type() -> eb.PriceHistory:
    """The flapping market, with machines of the user's own type."""
    prices = flapping(0.3)
    series = {eb.Market(m.cloud, m.region, m.zone, OWN.name): series for m, series in prices.items()}
    return eb.PriceHistory(series, start_s=prices.start_s, end_s=prices.end_s)


@pytest.mark.usefixtures("processes")
def test_a_job_on_machines_of_the_user_s_own_type_is_stopped_and_resumed(tmp_path: Path, runs: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    work = eb.Job(command=[sys.executable, "program.py", "{checkpoint_dir}", "600", "0.1"], cpus=5, steps=600)
    catalogue = eb.default_catalogue() + [OWN]  # noqa: RUF005
    run = eb.run(
        work,
        eb.policies.CheapestSpot(),
        prices=of_own_type(),
        start=START_S,
        speed=120.0,
        catalogue=catalogue,
        folder=tmp_path,
        runs=runs,
    )
    assert run.id.startswith("program-")
    assert run.folder.parent == runs
    eventually(lambda: (run.status().trials or [None])[0] and (run.status().trials[0].steps_done or 0) >= 40)
    assert run.status().state is State.RUNNING
    assert not run.wait(0.1)
    with pytest.raises(TimeoutError):
        run.result(0.1)
    with pytest.raises(eb.InputError, match="has a controller already"):
        eb.resume(run.id, runs=runs)
    assert eb.stop(runs=runs).wait(LIMIT_S)
    assert run.result().gave_up == "stopped by its user"
    assert eb.status(run.id, runs=runs).state is State.STOPPED
    with pytest.raises(eb.InputError, match="no controller"):
        run.stop()
    with pytest.raises(eb.InputError, match="not started by this handle"):
        eb.types.Run(run.kept).result()
    # Its catalogue and its policy are kept with it.
    assert OWN in run.kept.catalogue.instance_types
    outcome = eb.resume(runs=runs).result(LIMIT_S)
    assert outcome.finished
    assert outcome.policy == "cheapest-spot"
    assert {lease.market.instance_type for lease in outcome.leases} == {OWN.name}
    assert outcome.jobs[0].steps_done == 600
    (said,) = [line for line in run.logs().splitlines() if line.startswith("total")]
    assert float(said.split()[1]) == pytest.approx(total(0.1, 600))
    assert run.fetch(into=tmp_path / "best").step == 600
    with pytest.raises(eb.InputError, match="has trials 0 to 0, not 1"):
        run.logs(1)


@pytest.mark.usefixtures("processes")
def test_a_program_that_fails_is_an_error_with_the_outcome(tmp_path: Path, runs: Path) -> None:
    command = [sys.executable, "-c", "print('no data'); raise SystemExit(3)"]
    run = eb.run(eb.Job(command=command), "reactive", prices=flapping(), start=START_S, folder=tmp_path, runs=runs)
    with pytest.raises(eb.errors.TrainingError, match="trial 0 failed: .* with exit code 3: no data") as failed:
        run.result(LIMIT_S)
    assert run.id in str(failed.value)
    assert failed.value.outcome.cost_usd > 0.0
    assert run.status().state is State.FAILED


def test_a_run_that_is_named_is_written_down_once_and_whole(tmp_path: Path, runs: Path) -> None:
    options: eb.types.RunOptions = {"prices": flapping(), "runs": runs, "name": "nightly-1"}
    # A process that was killed has left a folder, and no run in it.
    (runs / "nightly-1" / "logs").mkdir(parents=True)
    run = begin(sweep(tmp_path), tmp_path, "cheapest-spot", "local", options)
    assert (run.id, run.status().state) == ("nightly-1", State.NEW)
    with pytest.raises(eb.InputError, match="run nightly-1 exists; `ebbtide resume nightly-1` continues it"):
        begin(sweep(tmp_path), tmp_path, "cheapest-spot", "local", options)
    with pytest.raises(eb.InputError, match="'../x' is no name of a run"):
        begin(sweep(tmp_path), tmp_path, "cheapest-spot", "local", {**options, "name": "../x"})


def test_a_policy_that_no_name_leads_to_is_given_again(tmp_path: Path, runs: Path) -> None:
    begin(
        sweep(tmp_path),
        tmp_path,
        eb.policies.Deadline(deadline_s=7200.0),
        "local",
        {"prices": flapping(), "runs": runs},
    )
    with pytest.raises(eb.InputError, match="was given as an object: give it again"):
        eb.resume(runs=runs)


@pytest.mark.parametrize("name", ["own.py:Cheapest", "own.yaml"])
def test_a_policy_in_a_file_is_found_from_any_folder(
    tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "own.py").write_text(
        "import ebbtide as eb\n\nclass Cheapest(eb.policies.CheapestSpot):\n    pass\n"
    )
    (tmp_path / "own.yaml").write_text("policy: deepspotcloud-migrate\n")
    monkeypatch.chdir(tmp_path)
    run = begin(sweep(tmp_path), tmp_path, name, "local", {"prices": flapping(), "runs": runs})
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    # A file of parameters is read once: they are kept with the run.
    kept = str(tmp_path / name) if ".py" in name else "deepspotcloud-migrate"
    assert run.kept.settings.policy == kept
    assert eb.types.Run(run.kept).policy.name == run.policy.name


def test_two_runs_of_one_second_are_two(tmp_path: Path, runs: Path) -> None:
    for _ in range(2):
        begin(sweep(tmp_path), tmp_path, "default", "local", {"prices": flapping(), "runs": runs})
    assert len(known_runs(runs)) == 2


@pytest.mark.usefixtures("processes")
def test_what_the_controller_fails_with_is_the_result(tmp_path: Path, runs: Path) -> None:
    class Wrong(eb.policies.CheapestSpot):
        def decide(self, _view):
            raise RuntimeError("wrong")

    run = eb.run(sweep(tmp_path), Wrong(), prices=flapping(), folder=tmp_path, runs=runs)
    with pytest.raises(Exception, match="wrong"):
        run.result(LIMIT_S)
    assert run.status().state is State.BROKEN


@pytest.mark.parametrize(
    ("more", "policy", "told"),
    [
        ({"machines": 2}, "spottune", "policy spottune gives each job one machine"),
        ({"machines": 2}, eb.policy("deepspotcloud-migrate"), "gives each job one machine"),
        ({"markets": {"instance_types": ["c3.nope"]}}, "reactive", "allows none of the 2 markets"),
    ],
)
def test_what_a_policy_or_the_prices_do_not_fit_is_refused_before_anything_is_made(
    tmp_path: Path, runs: Path, more: dict[str, object], policy: str | eb.policies.Policy, told: str
) -> None:
    work = Sweep.parse({"name": "s", "command": "true"} | more)
    with pytest.raises(eb.InputError, match=told):
        begin(work, tmp_path, policy, "local", {"prices": flapping(), "runs": runs})
    assert not runs.exists()
    with pytest.raises(eb.InputError, match="is outside"):
        begin(sweep(tmp_path), tmp_path, "reactive", "local", {"prices": flapping(), "start": 0.0, "runs": runs})
    assert not runs.exists()


@pytest.mark.usefixtures("processes")
def test_what_a_policy_refuses_at_its_first_decision_is_not_to_be_resumed(tmp_path: Path, runs: Path) -> None:
    class Refuses(eb.policies.CheapestSpot):
        def decide(self, _view):
            raise eb.InputError("no such work")

    run = eb.run(sweep(tmp_path), Refuses(), prices=flapping(), folder=tmp_path, runs=runs)
    with pytest.raises(eb.InputError, match="no such work"):
        run.result(LIMIT_S)
    found = run.status()
    assert found.state is State.REFUSED
    assert state_line(found) == "refused, and nothing was rented: no such work"
    with pytest.raises(eb.InputError, match="was refused; there is nothing to stop"):
        stop_command(run.id, runs)


def test_in_replay_it_gives_what_came_of_it(tmp_path: Path) -> None:
    prices = history({C3: [(0, 0.36)]})
    outcome = eb.run(job(7200), eb.policies.CheapestSpot(), "replay", prices=prices, start=OF_MARKETS_S)
    assert outcome.finished
    assert str(outcome).startswith("cheapest-spot: finished after 2.0 h for 0.7")
    assert len(outcome.timeline) == 5
    several = eb.run([job(600), job(900)], "cheapest-spot", provider="replay", prices=prices, start=OF_MARKETS_S)
    assert [progress.steps_done for progress in several.jobs] == [600, 900]
    # Of a job with a command, speed and steps the policy is that of a live run.
    measured = eb.Job(command="python train.py", steps=7200, steps_per_hour={"c3.xlarge": 3600}, budget_usd=0.3)
    stopped = eb.run(measured, provider="replay", prices=prices, start=OF_MARKETS_S)
    assert (stopped.policy, stopped.finished) == ("ebbtide", False)
    assert stopped.cost_usd <= 0.3
    swept = eb.run(sweep(tmp_path), provider="replay", prices=flapping(), start=START_S)
    assert swept.finished


def test_what_cannot_be_run_is_told(tmp_path: Path, runs: Path) -> None:
    prices = history({C3: [(0, 0.36)]})
    unlisted = eb.Market("aws", "us-east-1", "us-east-1a", "m5.large")
    with pytest.raises(eb.InputError, match="unknown provider 'AWS': write ec2"):
        eb.run(job(), provider="AWS")  # type: ignore[call-overload]
    with pytest.raises(eb.InputError, match="unknown provider 'cloud'"):
        eb.run(job(), provider="cloud")  # type: ignore[call-overload]
    with pytest.raises(eb.InputError, match="the job comes first"):
        eb.run(eb.policies.CheapestSpot(), job())  # type: ignore[arg-type]
    with pytest.raises(eb.InputError, match="no rate for any instance type"):
        eb.run(job(), provider="replay", prices=history({unlisted: [(0, 0.05)]}))
    with pytest.raises(eb.InputError, match="no job to run"):
        eb.run([], provider="replay", prices=prices)
    with pytest.raises(eb.InputError, match="has nothing to run: give it a command"):
        eb.run(job(), prices=prices, runs=runs)
    with pytest.raises(eb.InputError, match="has nothing to run: give it a command"):
        eb.run([job(), job()], prices=prices, runs=runs)
    trained = eb.Job(command="python train.py")
    with pytest.raises(eb.InputError, match="two jobs are named 'train'"):
        eb.run([trained, trained], prices=prices, runs=runs)
    with pytest.raises(eb.InputError, match="budget_usd of job train would hold for all 2"):
        eb.run([eb.Job(command="python train.py", budget_usd=3), trained], prices=prices, runs=runs)
    with pytest.raises(eb.InputError, match="the speed of job train is not measured"):
        eb.run(eb.Job(command="python train.py", steps=100), provider="replay", prices=prices)
    with pytest.raises(eb.InputError, match="needs --machines"):
        eb.run(sweep(tmp_path), provider="ec2", folder=tmp_path, runs=runs)
    with pytest.raises(eb.errors.PolicyError, match="policy int: has no name"):
        eb.run(sweep(tmp_path), 3, folder=tmp_path, runs=runs)  # type: ignore[call-overload]
    with pytest.raises(eb.InputError, match="train.py is not in"):
        eb.run(eb.Job(command="python train.py"), folder=tmp_path, runs=runs)


def test_a_run_keeps_its_policy_s_parameters_whatever_becomes_of_their_file(tmp_path: Path, runs: Path) -> None:
    (tmp_path / "mine.yaml").write_text("policy: reactive\nmax_price_ratio: 0.5\n")
    asked = sweep(tmp_path, trials=1).model_copy(update={"policy": AskedPolicy(name=str(tmp_path / "mine.yaml"))})
    options: RunOptions = {"prices": flapping(), "start": START_S, "runs": runs}
    begun = begin(asked, tmp_path, "default", "local", options)
    (tmp_path / "mine.yaml").unlink()
    kept = begun.kept.settings
    assert (kept.policy, kept.parameters) == ("reactive", {"name": "mine", "max_price_ratio": 0.5})
    assert Run(begun.kept).policy == eb.policies.Reactive(max_price_ratio=0.5, name="mine") == begun.policy
    with pytest.raises(eb.InputError, match="parameters are for a policy that is named"):
        begin(asked, tmp_path, eb.policies.Reactive(), "local", {**options, "parameters": {"max_price_ratio": 2}})
