"""Trials of Ray Tune on the local cloud: ended by ASHA, failed, and gone on with where machines are taken."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ebbtide.errors import InputError

ray = pytest.importorskip("ray", reason="Ray is not installed")

from ray import tune  # noqa: E402
from ray.tune.schedulers import ASHAScheduler  # noqa: E402
from tests.harness.spiking_market import OneAZone, SpikingMarket  # noqa: E402
from tests.search.test_optuna import PROGRAM  # noqa: E402

from ebbtide.clouds.settings import NewRun, RunFolder  # noqa: E402
from ebbtide.controller.run_state import State  # noqa: E402
from ebbtide.controller.team.team import Team  # noqa: E402
from ebbtide.jobs.parsing import validated  # noqa: E402
from ebbtide.jobs.sweep import Sweep  # noqa: E402
from ebbtide.runs.handle import Run  # noqa: E402
from ebbtide.runs.start_local import begin_local  # noqa: E402
from ebbtide.search.ray_tune import spot_trainable  # noqa: E402

pytestmark = [pytest.mark.usefixtures("processes"), pytest.mark.long]


@pytest.fixture(scope="module", autouse=True)
def _ray() -> Iterator[None]:
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield
    ray.shutdown()


def tuned(folder: Path, xs: list[float], pause_s: float = 0.05, **more: Any) -> Any:
    (folder / "train.py").write_text(textwrap.dedent(PROGRAM))
    policy = more.pop("policy", "default")
    work = {"name": "ray", "command": f"python train.py {{x}} {pause_s}", "metric": "loss", "max_trial_steps": 8}
    options = {"folder": folder, "runs": folder / "runs", **more.pop("options", {})}
    return tune.Tuner(
        tune.with_resources(spot_trainable(work, policy, options=options), {"cpu": 1}),
        param_space={"x": tune.grid_search(xs)},
        tune_config=tune.TuneConfig(metric="loss", mode="min", **more),
        run_config=tune.RunConfig(storage_path=str(folder / "ray"), verbose=0),
    ).fit()


@pytest.mark.exhaustive
def test_trials_are_trained_and_told(tmp_path: Path) -> None:
    results = tuned(tmp_path, [3.0, 1.0, 9.5])
    by_x = {one.config["x"]: one for one in results if one.config}
    assert (by_x[3.0].metrics["loss"], by_x[1.0].metrics["loss"]) == (0.0, 4.0)
    assert (by_x[3.0].metrics["step"], by_x[3.0].error) == (8, None)
    assert by_x[3.0].metrics["cost_usd"] > 0
    assert len(by_x[1.0].metrics_dataframe) >= 8
    assert by_x[9.5].error is not None
    assert results.get_best_result().config == {"x": 3.0}


@pytest.mark.exhaustive
def test_what_asha_ends_gives_its_machines_back(tmp_path: Path) -> None:
    scheduler = ASHAScheduler(time_attr="step", max_t=8, grace_period=2, reduction_factor=2)
    results = tuned(tmp_path, [3.0, -8.0, -9.0, -7.0], pause_s=0.5, scheduler=scheduler)
    steps = {one.config["x"]: one.metrics["step"] for one in results}
    assert steps[3.0] == 8
    assert min(steps.values()) < 8
    for folder in (tmp_path / "runs").iterdir():
        standing = Run(RunFolder(folder)).status()
        assert standing.rented == 0
        assert standing.state in (State.FINISHED, State.STOPPED)


@pytest.mark.exhaustive
def test_a_machine_that_is_taken_five_times_is_no_failure(tmp_path: Path) -> None:
    market = SpikingMarket(zones=1, first_s=8.0, between_s=8.0, high_s=2.0).local((1,) * 5)
    options = {"prices": market.prices, "start": market.start_s, "speed": market.speed}
    results = tuned(tmp_path, [3.0], pause_s=7.0, options=options, policy=OneAZone())
    (result,) = results
    assert (result.error, result.metrics["loss"], result.metrics["step"]) == (None, 0.0, 8)
    (folder,) = (tmp_path / "runs").iterdir()
    assert Run(RunFolder(folder)).status().revoked == 5


def test_work_that_does_not_suit_is_refused() -> None:
    with pytest.raises(InputError, match="leave `grid` out"):
        spot_trainable({"command": "a {x}", "metric": "loss", "grid": {"x": [1]}})
    with pytest.raises(InputError, match="needs a metric"):
        spot_trainable({"command": "a {x}"})


@pytest.mark.parametrize(("direction", "best"), [("minimize", 0.2), ("maximize", 0.9)])
def test_the_best_value_of_a_run_that_was_given_up_is_a_number(direction: str, best: float) -> None:
    work = {"command": "python x.py", "metric": "loss", "max_trial_steps": 9, "direction": direction}
    trial: Any = object.__new__(spot_trainable(work))
    status = SimpleNamespace(state=State.GAVE_UP, money=SimpleNamespace(paid_usd=0.1), revoked=0, why="")
    trial._run, trial._work, trial._reported = SimpleNamespace(error=None, status=lambda: status), work, 4
    # A program that diverged before it was given up; NaN is neither the least nor the most of anything.
    assert trial._ended({1: math.nan, 2: 0.9, 3: 0.2, 4: math.inf})["loss"] == best
    assert math.isnan(trial._ended({1: math.nan})["loss"])


@pytest.mark.parametrize("told", [2, 3])
def test_a_run_that_was_given_up_is_never_told_as_complete(told: int) -> None:
    """Whether or not its last metric had been told when it ended: metrics come in batches."""
    work = {"command": "python x.py", "metric": "loss", "max_trial_steps": 9, "direction": "minimize"}

    def steps(why: str) -> dict[str, Any]:
        trial: Any = object.__new__(spot_trainable(work))
        status = SimpleNamespace(
            state=State.GAVE_UP,
            money=SimpleNamespace(paid_usd=0.1),
            revoked=0,
            why=why,
            trials=[SimpleNamespace(diverged_at=0, problem="")],
        )
        trial._work, trial._reported, trial._metrics = work, told, lambda: {1: 0.9, 2: 0.2, 3: 0.7}
        trial._run = SimpleNamespace(
            id="r", error=None, status=lambda: status, wait=lambda _limit_s: True, stop=lambda: None
        )
        found: dict[str, Any] = trial.step()
        return found if found[tune.result.DONE] or trial._reported < 3 else trial.step()

    found = steps("budget of 1 USD reached")
    assert (found["loss"], found[tune.result.DONE]) == (0.2, True)
    with pytest.raises(InputError, match="restored later, it is continued"):
        steps("the team's budget of 1 USD for 2026-12 reached")


def test_a_run_is_not_taken_for_one_of_other_values(tmp_path: Path) -> None:
    """Before, population based training was told the loss of a configuration that was never trained."""
    name = "trial-a"
    work = {"command": "python x.py {x}", "metric": "loss", "max_trial_steps": 9}
    trial: Any = object.__new__(spot_trainable(work, options={"runs": tmp_path}))
    trial._trial_info = SimpleNamespace(trial_id="a")
    sweep = validated(Sweep, {**work, "name": name, "grid": {"x": [9.0]}, "theta": 1.0, "mcnt": 1})
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "x.py").write_text("")
    market = SpikingMarket(zones=1, first_s=8.0, between_s=8.0, high_s=2.0).local((1,))
    begin_local(sweep, tmp_path / "train", NewRun(tmp_path, name), market, policy="reactive")
    with pytest.raises(InputError, match=r"trains other values than Ray's trial a: \{'x': \[9.0\]\}"):
        trial.setup({"x": 4.2})


def test_without_a_direction_the_last_value_is_told() -> None:
    work = {"command": "python x.py", "metric": "loss", "max_trial_steps": 9}
    trial: Any = object.__new__(spot_trainable(work))
    status = SimpleNamespace(state=State.GAVE_UP, money=SimpleNamespace(paid_usd=0.1), revoked=0, why="")
    trial._run, trial._work, trial._reported = SimpleNamespace(error=None, status=lambda: status), work, 3
    assert trial._ended({1: 0.1, 2: 0.7, 3: 0.9})["loss"] == 0.9


def test_who_pays_is_settled_where_the_search_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, each of Ray's workers had accounts of its own, or knew of no team."""
    work = {"command": "python x.py {x}", "metric": "loss", "max_trial_steps": 9}
    monkeypatch.chdir(tmp_path)
    own = spot_trainable(work, options={"team": Team(accounts="accounts"), "store": "checkpoints"})
    (tmp_path / "team.yaml").write_text("accounts: accounts\n")
    monkeypatch.setenv("EBBTIDE_TEAM", "team.yaml")
    named = spot_trainable(work, options={"owner": "ann"})
    monkeypatch.delenv("EBBTIDE_TEAM")
    for each in (own, named):
        assert each._options["team"].accounts == str(tmp_path / "accounts")
    assert own._options["store"] == str(tmp_path / "checkpoints")
    assert named._options["owner"] == "ann"
    assert spot_trainable(work)._options["team"] is None
