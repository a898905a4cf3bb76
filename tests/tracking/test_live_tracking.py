"""What MLflow is told of a live run: parameters, money, the winner and its model, and how it ended."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from mlflow.entities import Run
from mlflow.tracking import MlflowClient
from tests.mlflow_database import empty_database
from tests.runs.records import ENGINE, JOB, OLD_TRIAL
from tests.runs.sweeps import START_S, A, sweep
from tests.waiting import eventually

from ebbtide.clouds.settings import LiveSettings, RunFolder
from ebbtide.controller.journal.journal import Journal
from ebbtide.controller.kinds.state import Stretch
from ebbtide.controller.snapshots import RunSnapshot
from ebbtide.engine.snapshot import lease_values
from ebbtide.errors import InputError
from ebbtide.jobs.common_fields import Direction
from ebbtide.jobs.sweep import Sweep
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.storage.checkpoints.store import CheckpointStore
from ebbtide.storage.objects import object_store
from ebbtide.tracking import live_ending, live_tracking
from ebbtide.tracking.live_ending import best_trial
from ebbtide.tracking.live_series import trial_costs
from ebbtide.tracking.live_tracking import (
    abandon_tracking,
    begin_tracking,
    end_tracking,
    followed,
    resume_tracking,
)
from ebbtide.tracking.tracking import PARENT


def lease(number: int, hours: float) -> Lease:
    ended_s = START_S + hours * 3600
    return Lease(number, A, math.inf, False, START_S, LeaseState.RELEASED, START_S, START_S, math.inf, ended_s)


def charge(end_s: float, usd: float) -> dict[str, float]:
    return {"start_s": START_S, "end_s": end_s, "price_usd_per_hour": usd / 2, "usd": usd}


@dataclass
class Live:
    """A live run as its controller leaves it, without one."""

    path: Path
    wanted: Sweep
    trials: list[dict[str, Any]] = field(default_factory=list)
    spent: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder = RunFolder(self.path / "run-1")
        settings = LiveSettings(
            "run-1",
            "local",
            "spottune",
            self.wanted.model_dump(mode="json"),
            ".",
            str(self.path / "objects"),
            {},
            7,
        )
        self.folder.begin(settings)
        self.uri = empty_database(self.path / "mlflow.db")
        self.client = MlflowClient(self.uri)
        self.trials = [OLD_TRIAL | {"metrics": []} for _ in self.wanted.trials()]

    def begin(self) -> None:
        begin_tracking(self.folder, self.uri, self.path / "artifacts")

    def keep(self, *, done: int = 0, figures: dict[str, Any] | None = None) -> float:
        """Write the journal as a controller does; returns what machines cost."""
        jobs = [
            JOB
            | {
                "steps_run": 10.0 * (number + 1),
                "steps_done": 10.0 * (number + 1),
                "finished_s": START_S if number < done else math.nan,
            }
            for number in range(len(self.trials))
        ]
        leases = [lease(number, 2.0) for number in range(len(self.spent))]
        bills = [
            [one.lease_id, {"charges": [charge(one.ended_s, usd)], "refund_usd": 0.0}]
            for one, usd in zip(leases, self.spent, strict=True)
        ]
        engine = ENGINE | {
            "started_s": START_S,
            "leases": [lease_values(one) for one in leases],
            "bills": bills,
            "jobs": jobs,
        }
        provider = {"trials": self.trials, "leases": [], "posts": [], "launching": [], "out": []}
        Journal(self.folder.journal).keep({"run": {"provider": provider, "engine": engine}, "figures": figures})
        return math.fsum(self.spent)

    def end(self, *, done: int = 0, gave_up: str = "") -> None:
        cost_usd = self.keep(done=done)
        outcome = {
            "finished": done == len(self.trials),
            "gave_up": gave_up,
            "start_s": START_S,
            "end_s": START_S + 7200,
            "cost_usd": cost_usd,
            "refund_usd": 0.0,
            "revocations": 0,
            "steps_lost": 0.0,
        }
        Journal(self.folder.journal).keep({"outcome": outcome})
        end_tracking(self.folder)

    def runs(self) -> tuple[Run, list[Run]]:
        (experiment,) = self.client.search_experiments(filter_string="name = 'live runs'")
        found = self.client.search_runs([experiment.experiment_id])
        (parent,) = (run for run in found if run.data.tags["ebbtide.kind"] == "live")
        return parent, sorted(
            (run for run in found if run is not parent), key=lambda run: str(run.data.tags["ebbtide.trial"])
        )

    def series(self, trial: int | None, name: str) -> list[tuple[int, float]]:
        """What MLflow has of a metric, of a trial or of the whole run."""
        parent, trials = self.runs()
        run = parent if trial is None else trials[trial]
        found = self.client.get_metric_history(run.info.run_id, name)
        return sorted((point.step, point.value) for point in found)

    def statuses(self) -> list[str]:
        parent, trials = self.runs()
        return [run.info.status for run in (parent, *trials)]


@pytest.fixture
def live(tmp_path: Path) -> Live:
    return Live(tmp_path, sweep(tmp_path, trials=3, steps=30, budget_usd=4.0, mcnt=2))


def test_a_run_that_is_stopped_is_killed_runs_again_when_resumed_and_has_each_value_once(live: Live) -> None:
    live.begin()
    parent, _ = live.runs()
    wanted = {
        "budget_usd": "4.0",
        "mcnt": "2",
        "seed": "7",
        "policy": "spottune",
        "trials": "3",
        "decides": "price",
    }
    assert wanted.items() <= parent.data.params.items()
    live.trials[0]["metrics"] = [[5, 0.5], [10, 0.25]]
    live.spent = [1.0]
    live.end(done=1, gave_up="stopped by its user")
    assert live.statuses() == ["KILLED", "FINISHED", "KILLED", "KILLED"]
    assert live.runs()[0].data.tags["ebbtide.ended"] == "stopped by its user"
    resume_tracking(live.folder)
    assert live.statuses() == ["RUNNING", "FINISHED", "RUNNING", "RUNNING"]
    # The winner is another now.
    live.trials[0]["metrics"] += [[30, 0.3]]
    live.trials[2]["metrics"] = [[5, 0.2], [10, 0.4]]
    live.spent = [1.0, 2.0]
    # Of two hours on each of two machines, all were kept but one.
    live.trials[0]["stretches"] = [asdict(Stretch(0, 7200.0, 0, 0.0, 20.0, 10.0, True))]
    live.trials[2]["stretches"] = [asdict(Stretch(1, 7200.0, 0, 0.0, 30.0, 30.0, True, True))]
    live.end(done=3)
    assert live.statuses() == ["FINISHED"] * 4
    parent, trials = live.runs()
    history = live.client.get_metric_history(trials[0].info.run_id, "loss")
    assert [(point.step, point.value) for point in history] == [(5, 0.5), (10, 0.25), (30, 0.3)]
    assert [run.data.tags["ebbtide.winner"] for run in trials] == ["false", "false", "true"]
    assert parent.data.tags["ebbtide.winner"] == "run-1-002"
    assert (parent.data.metrics["best_loss"], parent.data.tags["ebbtide.best_step"]) == (0.2, "5")
    assert parent.data.metrics["cost_usd"] == pytest.approx(3.0)
    # c3.xlarge; what was thrown away is no saving.
    assert parent.data.metrics["on_demand_usd"] == pytest.approx(3 * 0.21)
    assert parent.data.metrics["saved_share"] == pytest.approx(1 - 3 / 0.63)
    assert parent.data.metrics["lost_usd"] == pytest.approx(0.5)
    assert [run.data.metrics["ebbtide.cost_usd"] for run in trials] == pytest.approx([1.0, 0.0, 2.0])


def test_what_failed_is_failed_and_wins_nothing(live: Live) -> None:
    live.begin()
    live.trials[1] |= {"metrics": [[5, 0.001]], "problem": "failed 5 times"}
    live.trials[2]["metrics"] = [[5, 0.5]]
    live.end(done=3)
    assert live.statuses() == ["FAILED", "FINISHED", "FAILED", "FINISHED"]
    assert live.runs()[0].data.tags["ebbtide.winner"] == "run-1-002"


def test_a_program_that_logs_by_itself_does_not_have_its_metric_twice(live: Live) -> None:
    live.begin()
    _, trials = live.runs()
    live.client.log_metric(trials[0].info.run_id, "loss", 9.0, step=1)
    live.trials[0]["metrics"] = [[5, 0.5]]
    for _ in range(2):
        live.end(done=3)
    assert [point.value for point in live.client.get_metric_history(trials[0].info.run_id, "loss")] == [9.0]


def test_the_winner_s_model_is_an_artifact_if_it_is_small_and_named_if_not(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.begin()
    model = live.path / "here"
    model.mkdir()
    (model / "model.pt").write_bytes(b"w" * 1000)
    writer = CheckpointStore(object_store(live.path / "objects"), "run-1-001").begin_writing("m")
    writer.save(model, 20)
    live.trials[1]["metrics"] = [[5, 0.5]]
    monkeypatch.setattr(live_ending, "_MOST_MODEL_BYTES", 999)
    live.end(done=3)
    parent, _ = live.runs()
    told = {name: text for name, text in parent.data.tags.items() if name.startswith("ebbtide.winner_")}
    assert told["ebbtide.winner_checkpoint"] == str(live.path / "objects" / "trials" / "run-1-001")
    assert (told["ebbtide.winner_step"], told["ebbtide.winner_bytes"]) == ("20", "1000")
    assert live.client.list_artifacts(parent.info.run_id) == []
    monkeypatch.setattr(live_ending, "_MOST_MODEL_BYTES", 1000)
    live.end(done=3)
    assert [file.path for file in live.client.list_artifacts(parent.info.run_id, "winner")] == ["winner/model.pt"]
    loaded = live.client.download_artifacts(parent.info.run_id, "winner/model.pt", str(live.path))
    assert Path(loaded).read_bytes() == b"w" * 1000


@pytest.mark.long
def test_storage_that_is_gone_does_not_lose_the_rest(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    live.begin()
    writer = CheckpointStore(object_store(live.path / "objects"), "run-1-001").begin_writing("m")
    (live.path / "here").mkdir()
    (live.path / "here" / "model.pt").write_text("w")
    manifest = writer.save(live.path / "here", 20)
    assert manifest is not None
    (
        live.path / "objects" / CheckpointStore(object_store(live.path / "objects"), "run-1-001").data_key(1, 1, 0)
    ).unlink()
    live.trials[1]["metrics"] = [[5, 0.5]]
    live.end(done=3)
    assert "the checkpoint of the best trial is not in MLflow: model.pt of checkpoint" in caplog.text
    assert live.statuses() == ["FINISHED"] * 4


def test_one_training_without_a_metric_is_its_own_winner(tmp_path: Path) -> None:
    live = Live(tmp_path, sweep(tmp_path, trials=1, steps=30).model_copy(update={"metric": None}))
    live.begin()
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "model.pt").write_text("w")
    CheckpointStore(object_store(tmp_path / "objects"), "run-1-000").begin_writing("m").save(tmp_path / "here", 30)
    live.end(done=1)
    parent, (only,) = live.runs()
    assert parent.data.tags["ebbtide.winner"] == "run-1-000"
    assert "best_None" not in parent.data.metrics
    assert not {name for name in only.data.metrics if not name.startswith("ebbtide.")}
    assert [file.path for file in live.client.list_artifacts(parent.info.run_id, "winner")] == ["winner/model.pt"]


def test_the_winner_of_machines_that_train_as_one_is_a_whole_checkpoint(tmp_path: Path) -> None:
    """Before, MLflow got the first machine's part of a newer one, whose other part was never stored."""
    work = sweep(tmp_path, trials=1, steps=30).model_copy(update={"machines": 2})
    live = Live(tmp_path, work)
    live.begin()
    objects = object_store(tmp_path / "objects")
    for rank, steps in ((0, (10, 20)), (1, (10,))):
        name = "run-1-000" if rank == 0 else f"run-1-000-r{rank}"
        for attempt, step in enumerate(steps, start=1):
            part = tmp_path / f"part-{rank}-{step}"
            part.mkdir()
            (part / f"shard-{rank}.pt").write_text(f"{rank} at {step}")
            writer = CheckpointStore(objects, name).begin_writing("m", attempt=attempt, machines=2)
            writer.save(part, step, keep=9, metric=1.0 / step)
    live.trials[0]["metrics"] = [[20, 0.05]]
    live.end(done=1)
    parent, _ = live.runs()
    assert parent.data.tags["ebbtide.winner_step"] == "10"
    kept = {file.path for file in live.client.list_artifacts(parent.info.run_id, "winner")}
    assert kept == {"winner/shard-0.pt", "winner/shard-1.pt"}


def test_without_tracking_nothing_is_told(live: Live) -> None:
    live.end(done=3)
    resume_tracking(live.folder)
    assert live.client.search_experiments(filter_string="name = 'live runs'") == []


def test_the_best_is_the_best_ever_reported() -> None:
    trials = [
        {"metrics": [[1, 0.2], [2, 0.9]], "problem": ""},
        {"metrics": [[1, math.nan], [2, 0.5]], "problem": ""},
        {"metrics": [], "problem": ""},
        {"metrics": [[1, 99.0], [2, -99.0]], "problem": "failed"},
    ]
    assert best_trial(Direction.MINIMIZE, trials) == (0, 1, 0.2)
    assert best_trial(Direction.MAXIMIZE, trials) == (0, 2, 0.9)
    assert best_trial(Direction.MINIMIZE, trials[2:]) is None


def kept(spent: list[float], steps: list[float], trials: list[dict[str, Any]]) -> dict[str, Any]:
    bills = [
        [number, {"charges": [charge(START_S + 1, usd)], "refund_usd": 0.0}] for number, usd in enumerate(spent)
    ]
    return {
        "engine": {"bills": bills, "jobs": [{"steps_run": run} for run in steps]},
        "provider": {"trials": trials},
    }


def test_a_machine_s_cost_is_shared_by_the_time_trained_on_it() -> None:
    def stretch(lease_id: int, duration_s: float) -> dict[str, Any]:
        return {"lease_id": lease_id, "duration_s": duration_s}

    trials = [
        {"stretches": [stretch(0, 300.0), stretch(0, 600.0)], "members": [], "workers": []},
        {"stretches": [stretch(0, 100.0), stretch(1, 1000.0)], "members": [], "workers": []},
        {"stretches": [], "members": [], "workers": []},
    ]
    # The third machine trained nothing: shared by all training time, 900 to 1,100 seconds.
    costs = trial_costs(kept([1.0, 2.0, 4.0], [0.0, 0.0, 0.0], trials), 7.0)
    assert costs == pytest.approx([0.9 + 4.0 * 0.45, 0.1 + 2.0 + 4.0 * 0.55, 0.0])


def test_without_times_steps_share_the_cost_and_without_steps_all_have_the_same() -> None:
    trials: list[dict[str, Any]] = [
        {"stretches": [], "members": [], "workers": []},
        {"stretches": [], "members": [], "workers": []},
    ]
    assert trial_costs(kept([3.0], [10.0, 20.0], trials), 3.0) == pytest.approx([1.0, 2.0])
    assert trial_costs(kept([3.0], [0.0, 0.0], trials), 3.0) == pytest.approx([1.5, 1.5])
    assert trial_costs(kept([], [0.0], trials[:1]), 0.0) == [0.0]


def test_costs_refunds_and_moves_are_told_over_time_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(tmp_path, sweep(tmp_path, trials=1, steps=30))
    live.begin()
    stretch = asdict(Stretch(0, 3600.0, 0, 0.0, 20.0, 10.0, True))
    live.spent = [1.0]
    live.trials[0] |= {
        "stretches": [stretch],
        "on": 1,
        "attempt": 2,
        "began_s": START_S + 7200.0,
        "metrics": [[5, 0.5]],
    }
    figures = {
        "time_s": START_S + 9000.0,
        "at_epoch_s": START_S + 9000.0,
        "spent_usd": 1.25,
        "usd_per_hour": 0.5,
        "speed": 1.0,
        "open_usd": [[1, 0.25]],
    }
    # A machine is rented still.
    live.spent = [1.0]
    live.keep(figures=figures)
    with followed(live.folder, 0.05):
        eventually(lambda: live.series(0, "ebbtide.moves"), poll_s=0.05)
    again = {name: live.series(0, name) for name in ("ebbtide.cost_usd", "ebbtide.moves")}
    assert again == {
        "ebbtide.cost_usd": [(0, 0.0), (7200, 1.0), (9000, 1.25)],
        "ebbtide.moves": [(7200, 1.0)],
    }
    # Another process that follows the same run tells nothing twice.
    looks = 0

    class Counted(live_tracking.Follower):
        def look(self, *, is_last: bool = False) -> RunSnapshot | None:
            nonlocal looks
            found = super().look(is_last=is_last)
            looks += 1
            return found

    with monkeypatch.context() as patched:
        patched.setattr(live_tracking, "Follower", Counted)
        with followed(live.folder, 0.05):
            eventually(lambda: looks >= 3)
    assert {name: live.series(0, name) for name in again} == again
    live.trials[0] |= {"stretches": [stretch, stretch | {"lease_id": 1}], "on": None}
    live.spent = [1.0, 0.5]
    for _ in range(2):
        live.end(done=1)
    assert live.series(0, "ebbtide.cost_usd") == [(0, 0.0), (7200, 1.0), (9000, 1.25), (9001, 1.5)]
    assert live.series(None, "cost_usd")[-1][1] == 1.5
    (run,) = live.runs()[1]
    moves = Path(live.client.download_artifacts(run.info.run_id, "moves.csv")).read_text().splitlines()
    assert [line.split(",")[1] for line in moves[1:]] == [str(A)] * 2


def test_mlflow_runs_of_a_process_that_was_killed_are_found_again(live: Live) -> None:
    live.begin()
    before = live.runs()
    # Killed before the journal had them.
    Journal(live.folder.journal).keep({"tracking": None})
    live.begin()
    assert [run.info.run_id for run in live.runs()[1]] == [run.info.run_id for run in before[1]]


def test_two_people_s_runs_of_one_name_are_two_in_mlflow(tmp_path: Path) -> None:
    lives = []
    for who in ("ann", "bob"):
        (tmp_path / who).mkdir()
        lives.append(live := Live(tmp_path / who, sweep(tmp_path / who)))
        live.uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
        live.folder.begin(replace(live.folder.settings, fingerprint=f"{who}00000"))
        live.begin()
    ann, bob = (Journal(live.folder.journal).state("tracking") for live in lives)
    assert not {ann["parent"], *ann["runs"].values()} & {bob["parent"], *bob["runs"].values()}
    # One that is begun again, since it was killed before its journal had them, finds its own.
    Journal(lives[0].folder.journal).keep({"tracking": None})
    lives[0].begin()
    assert Journal(lives[0].folder.journal).state("tracking") == ann


def test_the_run_is_below_the_pipeline_s_and_says_for_which_job_it_is(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PARENT, "0123")
    begin_tracking(live.folder, live.uri, live.path / "artifacts", {"ebbtide.job": "digits"})
    parent, trials = live.runs()
    assert parent.data.tags["mlflow.parentRunId"] == "0123"
    assert {run.data.tags["ebbtide.job"] for run in (parent, *trials)} == {"digits"}
    assert {run.data.tags["mlflow.parentRunId"] for run in trials} == {parent.info.run_id}


def test_a_run_whose_controller_broke_is_killed_until_it_goes_on(tmp_path: Path) -> None:
    live = Live(tmp_path, sweep(tmp_path))
    live.begin()
    abandon_tracking(live.folder, "the disk is full")
    parent, trials = live.runs()
    assert {run.info.status for run in (parent, *trials)} == {"KILLED"}
    assert parent.data.tags["ebbtide.ended"] == "the disk is full"
    resume_tracking(live.folder)
    parent, trials = live.runs()
    assert {run.info.status for run in (parent, *trials)} == {"RUNNING"}


@pytest.mark.parametrize("uri", ["http://user:secret@host:5000", "https://token@host", "postgresql://a:b@host/x"])
def test_a_password_is_not_kept_with_the_run(tmp_path: Path, uri: str) -> None:
    with pytest.raises(InputError, match="set MLFLOW_TRACKING_USERNAME and") as told:
        begin_tracking(RunFolder(tmp_path), uri, tmp_path / "artifacts")
    assert "secret" not in str(told.value)
    assert list(tmp_path.iterdir()) == []
