"""Following a live run: what is new in its journal goes to its MLflow runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from mlflow.tracking import MlflowClient

from ebbtide.clouds.settings import LiveSettings, RunFolder
from ebbtide.controller.journal.journal import journal_of
from ebbtide.controller.kinds.state import TrialRecord
from ebbtide.controller.run_state import phase_of
from ebbtide.controller.snapshots import RunSnapshot
from ebbtide.jobs.job_list import runnable
from ebbtide.storage.checkpoints.store import CheckpointStore
from ebbtide.storage.objects import object_store
from ebbtide.tracking.live_series import (
    Clock,
    MetricLog,
    Point,
    checkpoints_table,
    moves_table,
    run_points,
    trial_points,
)
from ebbtide.tracking.mlflow_names import allowed_name, untold

_LOGGER = logging.getLogger(__name__)

# Tag of runs whose metric we log: a program that logs to MLflow itself should not have it twice.
_OUR_METRIC = "ebbtide.logs_metric"


class Follower:
    """Logs what is new in a run's journal.

    Args:
        folder: Folder of the live run.
        kept: What the journal has of the tracking.
        log: Adds points to the MLflow runs.
        client: Client of the tracking server or database.
    """

    def __init__(self, folder: RunFolder, kept: Mapping[str, Any], log: MetricLog, client: MlflowClient) -> None:
        self._folder, self._settings = folder, folder.settings
        self._work = runnable(self._settings.sweep)
        self._runs, self._parent = kept["runs"], kept["parent"]
        self._log, self._client = log, client
        self._journal = journal_of(folder, read_only=True)
        self._stretches: dict[str, int] = {}
        self._has_metric: set[str] = set()
        # Trials of which the last look was refused.
        self._tried: set[int] = set()
        self._ours: dict[str, bool] = {}

    def look(self, *, is_last: bool = False) -> RunSnapshot | None:
        """Log what is new; returns the state that it was read from, None if nothing is kept yet.

        Args:
            is_last: Whether the run has ended, so that nothing is put off.
        """
        state, figures = self._journal.run(decisions=False), self._journal.figures()
        if state is None:
            return None
        if is_last:
            figures = None
        clock = self._clock()
        self._log.add(self._parent, run_points(state, figures), clock)
        now_ms = int(time.time() * 1000)
        for number, trial in enumerate(state["provider"]["trials"]):
            run = self._runs[str(number)]
            # Each look would be refused again: it is said once.
            is_said = number in self._tried and not is_last
            self._tried.add(number)
            with untold(self._settings.run, f"of trial {number}", goes_on=True, is_said=is_said):
                self._log.add(run, trial_points(state, figures, number), clock)
                self._log_metric(run, number, trial, now_ms, is_last=is_last)
                self._log_tables(run, state, number, is_last=is_last)
                self._tried.discard(number)
        return state

    def _clock(self) -> Clock:
        """Clock from the market's seconds to real time, as if the run's controllers had never paused."""
        phase = phase_of(self._journal)
        began_s = phase.first_began_epoch_s if phase is not None else time.time()
        return Clock(began_s, float(self._settings.options.get("speed", 1.0)))

    def _log_metric(self, run: str, number: int, trial: TrialRecord, now_ms: int, *, is_last: bool) -> None:
        reported = self._work.part_of(number)[0].metric
        if not reported or not trial["metrics"]:
            return
        metric = allowed_name(reported)
        if run not in self._has_metric and not is_last:
            # A program that logs to MLflow itself does so at the same moment; by the next look it has.
            self._has_metric.add(run)
            return
        if run not in self._ours:
            data = self._client.get_run(run).data
            self._ours[run] = metric not in data.metrics or _OUR_METRIC in data.tags
        if self._ours[run]:
            points = [Point(metric, int(step), float(value)) for step, value in sorted(trial["metrics"])]
            if self._log.add_missing(run, points, now_ms):
                self._client.set_tag(run, _OUR_METRIC, "true")

    def _log_tables(self, run: str, state: RunSnapshot, number: int, *, is_last: bool) -> None:
        """Write the tables of moves and checkpoints, when a machine was left and at the end."""
        stretches = len(state["provider"]["trials"][number].get("stretches", ()))
        if stretches == self._stretches.get(run, 0) and not is_last:
            return
        self._stretches[run] = stretches
        if moves := moves_table(state, number):
            self._client.log_text(run, moves, "moves.csv")
        trial_id = trial_id_of(self._settings, number)
        try:
            store = CheckpointStore(object_store(self._settings.store), trial_id)
            table = checkpoints_table(store.manifests(), f"{self._settings.store}/trials/{trial_id}")
        except OSError as error:
            _LOGGER.warning("the checkpoints of trial %s are not in MLflow: %s", trial_id, error)
        else:
            if table:
                self._client.log_text(run, table, "checkpoints.csv")


def trial_id_of(settings: LiveSettings, number: int) -> str:
    """Id of a trial in storage, by its number in the sweep."""
    return f"{settings.run}-{number:03d}"
