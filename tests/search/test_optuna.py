"""Studies of Optuna on the local cloud: told of what was trained, pruned, failed, and of nothing that was left."""

from __future__ import annotations

import socket
import subprocess
import sys
import textwrap
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ebbtide.errors import InputError

optuna = pytest.importorskip("optuna", reason="Optuna is not installed")

from optuna.trial import TrialState  # noqa: E402
from tests.harness.spiking_market import OneAZone, SpikingMarket  # noqa: E402
from tests.waiting import eventually  # noqa: E402

from ebbtide.controller.run_state import State  # noqa: E402
from ebbtide.runs.handle import Run  # noqa: E402
from ebbtide.search.optuna import (  # noqa: E402
    ASKED_BY,
    COST_USD,
    GAVE_UP,
    REVOCATIONS,
    RUN,
    SpotTrials,
    _asked,
    _Running,
)

PROGRAM = """
import sys, time
from ebbtide.trial import Trial

class Nothing:
    ends_at = None
    def save(self, folder, *, within_step): (folder / "x").write_text("x")
    def restore(self, folder): pass

x, pause_s = float(sys.argv[1]), float(sys.argv[2])
trial = Trial.current()
trial.keep(Nothing())
for step in trial.steps(8):
    time.sleep(pause_s)
    if x > 9:
        raise RuntimeError("too far")
    trial.report(loss=float("nan") if x < -8.5 and step > 4 else (x - 3) ** 2 + 8 - step)
"""


@pytest.fixture(autouse=True)
def _quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def trials(folder: Path, xs: dict[int, float] | None = None, pause_s: float = 0.05) -> SpotTrials:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(textwrap.dedent(PROGRAM))

    def space(trial: Any) -> dict[str, Any]:
        x = trial.suggest_float("x", -10.0, 10.0)
        return {"x": (xs or {}).get(trial.number, x)}

    work = {"command": f"python train.py {{x}} {pause_s}", "metric": "loss", "max_trial_steps": 8}
    return SpotTrials(work, space, options={"folder": folder, "runs": folder / "runs"})


def study_in(folder: Path, **options: Any) -> Any:
    return optuna.create_study(
        storage=f"sqlite:///{folder}/study.db",
        study_name="s",
        load_if_exists=True,
        sampler=optuna.samplers.RandomSampler(seed=0),
        **options,
    )


@pytest.mark.long
@pytest.mark.usefixtures("processes")
def test_trials_are_trained_and_told(tmp_path: Path) -> None:
    trained = trials(tmp_path / "code", {0: 3.0, 1: 1.0, 2: 9.5})
    study = study_in(tmp_path, pruner=optuna.pruners.NopPruner())
    trained.optimize(study, 3, parallel=2)
    assert [one.state for one in study.trials] == [TrialState.COMPLETE, TrialState.COMPLETE, TrialState.FAIL]
    assert [one.value for one in study.trials[:2]] == [0.0, 4.0]
    assert study.trials[0].intermediate_values == {step: 8.0 - step for step in range(1, 9)}
    assert all(one.user_attrs[COST_USD] > 0 for one in study.trials[:2])
    # There are as many as asked for: nothing more begins.
    trained.optimize(study, 3)
    assert len(study.trials) == 3


class Broken(Exception):
    pass


class After:
    """Ends the program when a trial has reported a step."""

    def __init__(self, step: int) -> None:
        self.step, self.seen = step, {}

    def prune(self, _study: Any, trial: Any) -> bool:
        if max(trial.intermediate_values) >= self.step:
            self.seen = dict(trial.intermediate_values)
            raise Broken
        return False


@pytest.mark.long
@pytest.mark.usefixtures("processes")
def test_a_trial_that_is_left_is_gone_on_with(tmp_path: Path) -> None:
    trained = trials(tmp_path / "code", {0: 4.0}, pause_s=0.6)
    pruner = After(2)
    with pytest.raises(Broken):
        trained.optimize(study_in(tmp_path, pruner=pruner), 1)
    (left,) = study_in(tmp_path).trials
    assert left.state is TrialState.RUNNING
    assert left.intermediate_values == pruner.seen
    run = Run(trained_run(tmp_path, left))
    assert run.status().state == "stopped"
    study = study_in(tmp_path, pruner=optuna.pruners.NopPruner())
    trained.optimize(study, 1)
    (done,) = study.trials
    assert (done.state, done.value) == (TrialState.COMPLETE, 1.0)
    assert done.user_attrs[RUN] == left.user_attrs[RUN]
    assert done.intermediate_values == {step: 9.0 - step for step in range(1, 9)}


def trained_run(folder: Path, left: Any) -> Any:
    from ebbtide.clouds.settings import RunFolder

    return RunFolder(folder / "code" / "runs" / left.user_attrs[RUN])


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(("times", "pause_s"), [(1, 1.5), pytest.param(5, 7.0, marks=pytest.mark.long)])
def test_a_machine_that_is_taken_ends_no_trial(times: int, pause_s: float, tmp_path: Path) -> None:
    """Its price rises while the trial is trained: it goes on when the price has fallen, and is told once."""
    market = SpikingMarket(zones=1, first_s=8.0, between_s=8.0, high_s=2.0).local((1,) * times)
    plain = trials(tmp_path / "code", {0: 4.0}, pause_s=pause_s)
    options = {**plain.options, "prices": market.prices, "start": market.start_s, "speed": market.speed}
    study = study_in(tmp_path, pruner=optuna.pruners.NopPruner())
    SpotTrials(plain.work, plain.space, OneAZone(), options=options).optimize(study, 1)
    (done,) = study.trials
    assert (done.state, done.value) == (TrialState.COMPLETE, 1.0)
    assert done.user_attrs[REVOCATIONS] == times
    assert done.intermediate_values == {step: 9.0 - step for step in range(1, 9)}


class Always:
    def prune(self, _study: Any, _trial: Any) -> bool:
        return True


@pytest.mark.long
@pytest.mark.usefixtures("processes")
def test_a_trial_that_is_pruned_gives_its_machine_back(tmp_path: Path) -> None:
    trained = trials(tmp_path / "code", {0: 4.0}, pause_s=0.6)
    study = study_in(tmp_path, pruner=Always())
    trained.optimize(study, 1)
    (pruned,) = study.trials
    assert pruned.state is TrialState.PRUNED
    assert max(pruned.intermediate_values) < 8
    assert Run(trained_run(tmp_path, pruned)).status().rented == 0


def test_a_trial_that_cannot_begin_is_told_so(tmp_path: Path) -> None:
    right = trials(tmp_path / "code")
    study = study_in(tmp_path)
    wrong = SpotTrials({**right.work, "colour": "red"}, right.space, options=right.options)
    with pytest.raises(InputError, match="colour"):
        wrong.optimize(study, 1)
    assert [one.state for one in study.trials] == [TrialState.FAIL]


@pytest.mark.usefixtures("processes")
def test_no_trial_begins_beyond_the_budget(tmp_path: Path) -> None:
    trained = trials(tmp_path / "code", {0: 4.0})
    study = study_in(tmp_path, pruner=optuna.pruners.NopPruner())
    trained.optimize(study, 3, budget_usd=1e-9)
    assert len(study.trials) == 1


def test_what_trials_have_paid_that_still_train_counts_in_the_budget(tmp_path: Path) -> None:
    trained, study = trials(tmp_path / "code"), study_in(tmp_path)
    study.add_trial(optuna.trial.create_trial(value=1.0, user_attrs={COST_USD: 0.5}))
    own = study.ask()
    # What the study has of it is older.
    own.set_user_attr(COST_USD, 0.1)
    running: Any = [SimpleNamespace(paid_usd=0.2, trial=own)]
    # Another program's call of `optimize` writes what its trial has paid while it trains.
    study.ask().set_user_attr(COST_USD, 0.2)
    assert trained._is_due(study, 5, 1.0, running)
    assert not trained._is_due(study, 5, 0.9, running)
    assert trained._is_due(study, 5, None, running)


def test_the_cost_of_a_trial_that_trains_is_in_the_study(tmp_path: Path) -> None:
    """Before, it was told at its end alone, so that programs on other hosts went on beyond the budget."""
    study = study_in(tmp_path)
    trial, paid_usd = study.ask(), [0.0, 0.5, 0.505, 0.6]
    told = []
    for usd in paid_usd:
        run: Any = SimpleNamespace(
            wait=lambda _: False,
            kept=None,
            status=lambda usd=usd: SimpleNamespace(money=SimpleNamespace(paid_usd=usd)),
        )
        running = _Running(trial, run, told_usd=told[-1] if told else 0.0)
        running._metrics = dict  # type: ignore[method-assign]
        assert not running.is_over(study)
        told.append(study.trials[0].user_attrs.get(COST_USD, 0.0))
    assert told == [0.0, 0.5, 0.5, 0.6]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"grid": {"x": [1]}}, "leave `grid` out"),
        ({"metric": None}, "needs a metric"),
        ({"direction": "maximize"}, "is to minimize the metric, the work to maximize"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_rented(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    right = trials(tmp_path / "code")
    wrong = SpotTrials({**right.work, **change}, right.space, options=right.options)
    with pytest.raises(InputError, match=said):
        wrong.optimize(optuna.create_study(), 1)
    with pytest.raises(InputError, match="n_trials is 0"):
        right.optimize(optuna.create_study(), 0)
    with pytest.raises(InputError, match="several objectives"):
        right.optimize(optuna.create_study(directions=["minimize", "minimize"]), 1)
    assert not (tmp_path / "code" / "runs").exists()


@pytest.mark.long
@pytest.mark.usefixtures("processes")
def test_a_trial_whose_budget_is_too_small_holds_up_no_study(tmp_path: Path) -> None:
    plain = trials(tmp_path / "code", {0: 4.0})
    trained = SpotTrials({**plain.work, "budget_usd": 1e-6}, plain.space, options=plain.options)
    study = study_in(tmp_path, pruner=optuna.pruners.NopPruner())
    trained.optimize(study, 2)
    assert [one.state for one in study.trials] == [TrialState.FAIL] * 2
    assert all(one.user_attrs[GAVE_UP] and one.user_attrs[COST_USD] <= 1e-6 for one in study.trials)


@pytest.mark.usefixtures("processes")
def test_a_trial_that_diverges_fails(tmp_path: Path) -> None:
    """Before, it was complete with its value from before it diverged, and was the best of its study."""
    trained = trials(tmp_path / "code", {0: -9.0})
    study = study_in(tmp_path, pruner=optuna.pruners.NopPruner())
    trained.optimize(study, 1)
    (diverged,) = study.trials
    assert (diverged.state, diverged.value) == (TrialState.FAIL, None)
    assert max(diverged.intermediate_values) == 4
    (found,) = Run(trained_run(tmp_path, diverged)).status().trials
    assert found.diverged_at == 8
    assert any("is no finite number at step 8" in warning for warning in found.warnings)


def test_trials_of_others_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, a plain trial of Optuna was failed after two minutes, and another host's trained a second time."""
    monkeypatch.setattr("ebbtide.search.optuna._BEGINS_WITHIN_S", 0.0)
    trained, study = trials(tmp_path / "code"), study_in(tmp_path)
    plain = study.ask()
    plain.report(1.0, 1)
    slow = study.ask()
    elsewhere = study.ask()
    elsewhere.set_user_attr(ASKED_BY, "another-host")
    elsewhere.set_user_attr(RUN, "trial-2-elsewhere")
    trained.optimize(study, 3)
    assert [one.state for one in study.trials] == [TrialState.RUNNING] * 3
    assert not (tmp_path / "code" / "runs").exists()
    assert [study.tell(one, 1.0).state for one in (plain, slow, elsewhere)] == [TrialState.COMPLETE] * 3


@pytest.mark.long
@pytest.mark.usefixtures("processes")
def test_two_programs_on_a_host_train_one_study(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Before, the second failed, as the first one's run had a controller already."""
    one, other = (trials(tmp_path / "code", pause_s=pause_s) for pause_s in (1.0, 0.05))
    trial = (study := study_in(tmp_path, pruner=optuna.pruners.NopPruner())).ask()
    running = one._begun(study, trial)
    try:
        eventually(lambda: running.run.status().state is State.RUNNING, limit_s=60)
        other.optimize(study, 2)
    finally:
        running.stop()
    assert [one.state for one in study.trials] == [TrialState.RUNNING, TrialState.COMPLETE]
    assert "trial 0 is left to a program on host" in caplog.text


@pytest.mark.long
@pytest.mark.usefixtures("processes")
def test_a_grid_is_searched_whole(tmp_path: Path) -> None:
    plain = trials(tmp_path / "code")
    sampler = optuna.samplers.GridSampler({"x": [1.0, 4.0]}, seed=0)
    study = optuna.create_study(sampler=sampler, pruner=optuna.pruners.NopPruner())
    plain.optimize(study, 3)
    assert sorted(one.params["x"] for one in study.trials) == [1.0, 4.0]
    assert all(one.state is TrialState.COMPLETE for one in study.trials)


@pytest.mark.usefixtures("processes")
def test_a_trial_whose_run_another_process_is_about_to_begin_is_left_to_it(tmp_path: Path) -> None:
    """Before, it was begun twice under one name: one failed, and the other could not tell its value."""
    trained, study = trials(tmp_path / "code"), study_in(tmp_path)
    begins = study.ask()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        begins.set_user_attr(ASKED_BY, f"{socket.gethostname()} {other.pid}")
        begins.set_user_attr(RUN, "trial-0-soon")
        trained.optimize(study, 1)
        assert [one.state for one in study.trials] == [TrialState.RUNNING]
        assert not (tmp_path / "code" / "runs").exists()
        other.communicate(b"")


def test_a_trial_is_ours_from_its_first_moment_on(tmp_path: Path) -> None:
    study = study_in(tmp_path)
    study.enqueue_trial({"x": 2.0})
    assert [_asked(study).number, _asked(study).number] == [0, 1]
    assert all(ASKED_BY in one.user_attrs for one in study.trials)
    assert study.trials[0].system_attrs["fixed_params"] == {"x": 2.0}


class Ended:
    """A run that its policy has ended."""

    id, error = "trial-0", None

    def __init__(self, why: str = "budget of 1 USD reached") -> None:
        self.why = why

    def wait(self, _seconds: float) -> bool:
        return True

    def status(self) -> Any:
        money = SimpleNamespace(paid_usd=1.5)
        return SimpleNamespace(state=State.GAVE_UP, why=self.why, money=money, revoked=2, trials=())


@pytest.mark.parametrize(("direction", "best"), [("minimize", 3.0), ("maximize", 5.0)])
def test_a_trial_that_reaches_its_budget_is_told_with_its_best(
    direction: str, best: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Running, "_metrics", lambda _self: {1: 5.0, 2: 3.0, 3: 4.0})
    study = optuna.create_study(direction=direction)
    assert _Running(study.ask(), Ended()).is_over(study)  # type: ignore[arg-type]
    (done,) = study.trials
    assert (done.state, done.value) == (TrialState.COMPLETE, best)
    assert (done.user_attrs[COST_USD], done.user_attrs[GAVE_UP]) == (1.5, True)


@pytest.mark.parametrize(
    "why",
    [
        "the team's budget of 5 USD for 2026-11 reached: this run has spent 2 USD",
        "ann's budget of 5 USD for 2026-11 reached: this run has spent 2 USD",
        "the grace of 900 s without the team's accounts in accounts reached",
    ],
)
def test_a_trial_that_its_team_ends_is_not_complete(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, its best value so far was told as its result, and nobody ever trained it on."""
    monkeypatch.setattr(_Running, "_metrics", lambda _self: {1: 5.0, 2: 3.0, 3: 4.0})
    study = optuna.create_study()
    running = _Running(study.ask(), Ended(why))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="gave up: .* a later call of `optimize` continues it"):
        running.is_over(study)
    assert study.trials[0].state is TrialState.RUNNING


def test_a_study_that_cannot_be_written_begins_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained, study = trials(tmp_path / "code", {0: 4.0}), study_in(tmp_path)

    def locked(*_: Any) -> None:
        raise Broken

    monkeypatch.setattr(optuna.trial.Trial, "set_user_attr", locked)
    with pytest.raises(Broken):
        trained.optimize(study, 1)
    assert not (tmp_path / "code" / "runs").exists()


@pytest.mark.parametrize("hours", [-9, 0, 9])
def test_what_another_host_has_just_asked_for_is_left_to_it(hours: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Optuna writes the time of day of whoever asks, and says of no time zone."""
    now_s = [1_000.0]
    monkeypatch.setattr("ebbtide.search.optuna.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    study, seen_s = asked_for(timedelta(hours=hours)), dict[int, float]()
    trained = SpotTrials({}, lambda _: {})
    assert trained._asked_only(study, seen_s)
    now_s[0] += 119.0
    assert trained._asked_only(study, seen_s)
    now_s[0] += 2.0
    assert not trained._asked_only(study, seen_s)
    assert [one.state for one in study.trials] == [TrialState.FAIL]


def test_what_was_left_days_ago_is_not_waited_for() -> None:
    study = asked_for(timedelta(days=-2))
    trained = SpotTrials({}, lambda _: {})
    assert not trained._asked_only(study, {})
    assert [one.state for one in study.trials] == [TrialState.FAIL]


def test_what_somebody_else_tells_at_the_same_time_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    study = asked_for(timedelta(days=-2))
    left = study.get_trials(deepcopy=True)
    study.tell(0, state=TrialState.FAIL)
    monkeypatch.setattr(study, "get_trials", lambda **_: left)
    assert not SpotTrials({}, lambda _: {})._asked_only(study, {})


def asked_for(after: timedelta) -> Any:
    """A study with a trial that another host asked for so long after now."""
    study = optuna.create_study()
    distant = optuna.trial.create_trial(state=TrialState.RUNNING, user_attrs={ASKED_BY: "another-host"})
    distant.datetime_start = datetime.now() + after
    study.add_trial(distant)
    return study


@pytest.mark.usefixtures("processes")
def test_what_killed_processes_left_is_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One was killed after it had asked for a trial, and one when the study had the name of its run."""
    monkeypatch.setattr("ebbtide.search.optuna._BEGINS_WITHIN_S", -1.0)
    trained, study = trials(tmp_path / "code", {1: 4.0}), study_in(tmp_path, pruner=optuna.pruners.NopPruner())
    _asked(study)
    named = _asked(study)
    named.set_user_attr(RUN, "trial-1-named")
    trained.optimize(study, 1)
    states = [one.state for one in study.trials]
    assert states == [TrialState.FAIL, TrialState.COMPLETE]
    assert study.trials[1].user_attrs[RUN] == "trial-1-named"
    assert study.trials[1].value == 1.0
