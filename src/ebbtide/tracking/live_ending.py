"""The end of a live run in MLflow: what each trial and the whole came to, the best trial, and its model."""

from __future__ import annotations

import logging
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from mlflow.entities import RunTag
from mlflow.tracking import MlflowClient

from ebbtide.agent.inputs import fetch_checkpoint
from ebbtide.base.utc import HOUR_S
from ebbtide.clouds.settings import LiveSettings, RunFolder
from ebbtide.controller.kinds.state import TrialRecord
from ebbtide.controller.snapshots import RunSnapshot
from ebbtide.errors import DamagedCheckpointError
from ebbtide.jobs.common_fields import Direction
from ebbtide.jobs.job_list import runnable
from ebbtide.runs.cost_summary import money_of
from ebbtide.storage.checkpoints.manifest import Manifest
from ebbtide.storage.checkpoints.store import CheckpointStore
from ebbtide.storage.checkpoints.whole import best_whole, newest_whole
from ebbtide.storage.objects import ObjectStore, object_store
from ebbtide.tracking.live_following import Follower, trial_id_of
from ebbtide.tracking.live_series import MetricLog, Point, trial_costs
from ebbtide.tracking.mlflow_names import allowed_name, untold

_LOGGER = logging.getLogger(__name__)

# A larger checkpoint of the best trial is not copied.
_MOST_MODEL_BYTES = 200_000_000
_MOST_TEXT = 5000


class RunEnd:
    """Tells MLflow how a run ended, each part for itself: what it refuses of one loses none of the others.

    Args:
        folder: Folder of the live run.
        kept: What the journal has of the tracking.
        outcome: How the run ended, as the journal has it.
        client: Client of the tracking server or database.
    """

    def __init__(
        self, folder: RunFolder, kept: Mapping[str, Any], outcome: Mapping[str, Any], client: MlflowClient
    ) -> None:
        self._folder, self._kept, self._outcome, self._client = folder, kept, outcome, client
        self._settings = folder.settings
        self._work = runnable(self._settings.sweep)
        self._log, self._now_ms = MetricLog(client), int(time.time() * 1000)
        self._end_step = max(int(outcome["end_s"] - outcome["start_s"]), 0)

    def tell(self) -> None:
        """Log final values, name the best trial, and close the runs; may be called again."""
        state = Follower(self._folder, self._kept, self._log, self._client).look(is_last=True)
        if state is None:
            return
        trials = state["provider"]["trials"]
        best = None if self._work.is_list else best_trial(self._work.direction, trials)
        winner = best[0] if best is not None else _only_one(trials)
        costs = trial_costs(state, self._outcome["cost_usd"])
        for number, (job, trial, cost_usd) in enumerate(zip(state["engine"]["jobs"], trials, costs, strict=True)):
            run = self._kept["runs"][str(number)]
            values = {
                "steps_done": job["steps_done"],
                "steps_lost": job["steps_lost"],
                "checkpoints": job["checkpoints"],
                "moves": max(len({stretch["attempt"] for stretch in trial.get("stretches", ())}) - 1, 0),
                "cost_usd": cost_usd,
            }
            with self._part(f"of trial {number}"):
                self._values(run, {f"ebbtide.{name}": float(value) for name, value in values.items()})
                self._client.set_tag(run, "ebbtide.winner", str(number == winner).lower())
            self._client.set_terminated(run, _status(not math.isnan(job["finished_s"]), bool(trial["problem"])))
        parent = self._kept["parent"]
        with self._part("of costs and refunds"):
            self._values(parent, self._whole(state))
        with self._part("of the best trial"):
            self._tags(parent, {"ebbtide.ended": self._ended()} | self._best(best) | self._winner(winner))
        has_failed = any(trial["problem"] for trial in trials)
        self._client.set_terminated(parent, _status(self._outcome["finished"], has_failed))

    def _part(self, what: str) -> AbstractContextManager[None]:
        return untold(self._settings.run, what, goes_on=True)

    def _values(self, run: str, values: Mapping[str, float]) -> None:
        points = [Point(name, self._end_step, value) for name, value in values.items()]
        self._log.end(run, points, self._now_ms)

    def _tags(self, run: str, tags: Mapping[str, str]) -> None:
        self._client.log_batch(run, tags=[RunTag(key, text) for key, text in tags.items()])

    def _whole(self, state: RunSnapshot) -> dict[str, float]:
        outcome, money = self._outcome, money_of(state, self._folder.catalogue)
        whole = {
            "cost_usd": outcome["cost_usd"],
            "on_demand_usd": money.on_demand_usd,
            "lost_usd": money.lost_usd,
            "refund_usd": outcome["refund_usd"],
            "revocations": outcome["revocations"],
            "steps_lost": outcome["steps_lost"],
            "makespan_h": (outcome["end_s"] - outcome["start_s"]) / HOUR_S,
        }
        if money.saved_share is not None:
            whole["saved_share"] = money.saved_share
        return {name: float(value) for name, value in whole.items()}

    def _ended(self) -> str:
        outcome = self._outcome
        return outcome["gave_up"] or ("finished" if outcome["finished"] else "the prices are over")

    def _best(self, best: tuple[int, int, float] | None) -> dict[str, str]:
        if best is None:
            return {}
        self._values(self._kept["parent"], {allowed_name(f"best_{self._work.metric}"): best[2]})
        return {"ebbtide.best_step": str(best[1])}

    def _winner(self, winner: int | None) -> dict[str, str]:
        if winner is None:
            return {}
        tags = {
            "ebbtide.winner": trial_id_of(self._settings, winner),
            "ebbtide.winner_run": self._kept["runs"][str(winner)],
            "ebbtide.winner_setting": self._work.setting_names[winner][:_MOST_TEXT],
        }
        parent, is_over = self._kept["parent"], self._outcome["finished"]
        return tags | _log_model(self._client, parent, self._settings, winner, is_over)


def best_trial(direction: Direction, trials: Sequence[TrialRecord]) -> tuple[int, int, float] | None:
    """The trial that reported the best value, without failed trials: its number, and the step and the value.

    Args:
        direction: Whether a lower or a higher metric is better.
        trials: The controller's state of each trial: `metrics` by step, and its `problem`.

    Returns:
        None if no trial reported a value.
    """
    sign = -1.0 if direction is Direction.MAXIMIZE else 1.0
    found = [
        (sign * float(value), number, int(step))
        for number, trial in enumerate(trials)
        for step, value in trial["metrics"]
        if not trial["problem"] and not math.isnan(value)
    ]
    if not found:
        return None
    value, number, step = min(found)
    return number, step, sign * value


def _only_one(trials: Sequence[TrialRecord]) -> int | None:
    """The number of the only trial, which is the best without a metric; None: there are several, or it failed."""
    return 0 if len(trials) == 1 and not trials[0]["problem"] else None


def _log_model(
    client: MlflowClient, parent: str, settings: LiveSettings, number: int, is_over: bool
) -> dict[str, str]:
    """Tags with the place of the best trial's best checkpoint; at the end, a small one is copied to MLflow."""
    trial_id = trial_id_of(settings, number)
    tags = {"ebbtide.winner_checkpoint": f"{settings.store}/trials/{trial_id}"}
    try:
        objects, sweep = object_store(settings.store), runnable(settings.sweep).part_of(number)[0]
        trial_ids = [trial_id, *(f"{trial_id}-r{rank}" for rank in range(1, sweep.ranks))]
        best = str(sweep.direction) if sweep.metric else ""
        parts = _checkpoint_parts(objects, trial_ids, best)
        if not parts:
            return {}
        size_bytes = sum(part.size_bytes for part in parts)
        tags |= {"ebbtide.winner_step": str(parts[0].step), "ebbtide.winner_bytes": str(size_bytes)}
        if is_over and size_bytes <= _MOST_MODEL_BYTES:
            with tempfile.TemporaryDirectory(prefix="ebbtide-") as temporary:
                fetch_checkpoint(objects, trial_ids, Path(temporary) / "winner", best=best)
                client.log_artifacts(parent, str(Path(temporary) / "winner"), "winner")
    except (OSError, DamagedCheckpointError) as error:
        _LOGGER.warning("the checkpoint of the best trial is not in MLflow: %s", error)
    return tags


def _checkpoint_parts(objects: ObjectStore, trial_ids: Sequence[str], best: str) -> Sequence[Manifest]:
    """Manifests of a trial's best whole checkpoint, or else its newest, one for each part."""
    if len(trial_ids) == 1:
        store = CheckpointStore(objects, trial_ids[0])
        found = (store.best(best) if best else None) or next(store.manifests(), None)
        return [] if found is None else [found]
    whole = best_whole(objects, trial_ids, best) or newest_whole(objects, trial_ids)
    return [] if whole is None else [whole.parts[rank] for rank in sorted(whole.parts)]


def _status(is_done: bool, has_failed: bool) -> str:
    if not is_done:
        return "KILLED"
    return "FAILED" if has_failed else "FINISHED"
