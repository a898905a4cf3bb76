"""The controller of a live run: the engine over agents, kept so that it can be killed and go on."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ebbtide.agent.config import AgentConfig, Assignment
from ebbtide.execution.agents import AgentProvider
from ebbtide.execution.cloud import Cloud
from ebbtide.execution.engine import Engine
from ebbtide.execution.engine_snapshot import snapshot, take_on
from ebbtide.execution.live.journal import Journal, Moment
from ebbtide.execution.live.settings import RunFolder
from ebbtide.execution.outcome import Outcome
from ebbtide.files import only_one
from ebbtide.market.billing import Billing
from ebbtide.market.catalogue import Catalogue
from ebbtide.object_storage import object_store
from ebbtide.policies.protocol import Policy
from ebbtide.workloads.progress import JobProgress
from ebbtide.workloads.sweep import Sweep

_LOGGER = logging.getLogger(__name__)

Looked = Callable[[Engine, AgentProvider], None]


class Controller:
    """Runs a sweep on a cloud, or goes on with it.

    Args:
        folder: The run's.
        policy: Decides.
        cloud: Rents machines out.
        billing: What they cost.
        catalogue: List prices.
        agent: What all agents are told.
        mttr_s: Real seconds that machines live in the mean: how often training saves follows from it.
        poll_s: Real seconds between looks.
        python: On the machines: `python` in a command is this one.
        code: Key in the store of the user's code; empty: machines find it where this one does.
    """

    def __init__(
        self,
        folder: RunFolder,
        policy: Policy,
        cloud: Cloud,
        billing: Billing,
        catalogue: Catalogue,
        agent: AgentConfig,
        *,
        mttr_s: float,
        poll_s: float = 0.1,
        python: str = sys.executable,
        code: str = "",
    ) -> None:
        self._folder, self._settings = folder, folder.settings
        self._sweep = Sweep.model_validate(self._settings.sweep)
        self._mttr_s, self._python, self._code = mttr_s, python, code
        self._journal = Journal(folder.journal)
        # Of a trial's program, by the trial's number.
        self._environment: Mapping[str, Mapping[str, str]] = self._journal.state("environment") or {}
        self._provider = AgentProvider(
            cloud, object_store(self._settings.store), self._settings.run, self._assignment, agent,
            poll_s=poll_s, log=self._log,
        )  # fmt: skip
        self._looked: Looked | None = None
        self._told = 0
        self._engine = Engine(
            policy, self._sweep.live_jobs(catalogue), self._provider, billing, catalogue=catalogue,
            seed=self._settings.seed, record=True, keep=self._keep,
        )  # fmt: skip

    def run(self, looked: Looked | None = None) -> Outcome:
        """To the end, or until it is told to stop.

        Args:
            looked: Called whenever something has happened.

        Raises:
            InputError: Another controller has the run.
        """
        self._looked = looked
        with only_one(self._folder.path / "controller.lock", "controller"):
            kept = self._journal.state("run")
            if kept is not None:
                take_on(self._engine, kept["engine"])
                self._provider.go_on_from(kept["provider"], self._engine.all_leases)
                self._engine.go_on()
            self._journal.keep({"wish": None})
            outcome = self._engine.run()
            self._journal.keep({"run": self._state(), "outcome": _summary(outcome)}, self._moments())
            return outcome

    def _keep(self, engine: Engine) -> None:
        """Before anything is waited for."""
        self._journal.keep({"run": self._state()}, self._moments())
        if self._journal.state("wish") == "stop" and not engine.gave_up:
            engine.give_up("stopped by its user")
        if self._looked is not None:
            self._looked(engine, self._provider)

    def _state(self) -> dict[str, Any]:
        return {"engine": snapshot(self._engine), "provider": self._provider.snapshot()}

    def _moments(self) -> list[Moment]:
        new = list(self._engine.timeline)[self._told :]
        self._told += len(new)
        return [(moment.time_s, moment.what, moment.lease_id, moment.job_id, moment.detail) for moment in new]

    def _assignment(self, progress: JobProgress) -> Assignment:
        trial = self._sweep.trials()[progress.job_id]
        return Assignment(
            "", command_of(self._sweep, trial.number, self._python), self._sweep.max_trial_steps or 0,
            self._sweep.metric or "", environment=self._environment.get(str(trial.number), {}),
            mttr_s=self._mttr_s, cwd="" if self._code else self._settings.sweep_folder, code=self._code,
            checkpoints=self._sweep.checkpoints or "", reads_log=not self._sweep.has_choice,
        )  # fmt: skip

    def _log(self, trial_id: str, line: str) -> None:
        with self._folder.log_of(trial_id).open("a", encoding="utf-8") as log:
            log.write(line + "\n")


def metrics_of(folder: RunFolder) -> list[dict[int, float]]:
    """What a run's trials reported, by step."""
    kept = Journal(folder.journal).state("run")
    return [dict(trial["metrics"]) for trial in kept["provider"]["trials"]] if kept else []


def command_of(sweep: Sweep, number: int, python: str = sys.executable) -> tuple[str, ...]:
    """What a trial's machine runs; `python` in it is the one given."""
    arguments = sweep.command_line(sweep.trials()[number])
    return (python, *arguments[1:]) if arguments[0] in ("python", "python3") else arguments


def _summary(outcome: Outcome) -> dict[str, Any]:
    return {
        "finished": outcome.finished,
        "gave_up": outcome.gave_up,
        "start_s": outcome.start_s,
        "end_s": outcome.end_s,
        "cost_usd": outcome.cost_usd,
        "refund_usd": outcome.refund_usd,
        "revocations": outcome.revocations,
        "checkpoints": outcome.checkpoints,
        "steps_lost": outcome.steps_lost,
    }

