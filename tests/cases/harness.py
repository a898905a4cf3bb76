"""Programs that know nothing of Ebbtide, alone and on machines that are taken: what each ended with."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import ebbtide as eb
from ebbtide.base.files import write_text
from ebbtide.clouds.local.client import LocalCloud
from ebbtide.clouds.settings import NewRun, RunFolder
from ebbtide.controller.agent_provider import AgentProvider
from ebbtide.controller.run_state import StopRequest, request_stop
from ebbtide.engine.engine import Engine
from ebbtide.errors import CloudError
from ebbtide.jobs.one_training import SingleTraining
from ebbtide.market.price_series import PriceSeries
from ebbtide.policies.baselines import Reactive
from ebbtide.runs.start_local import LocalMarket, begin_local, cloud_place, end_local, prices_of, run_local

PROGRAMS = Path(__file__).parent / "programs"
EBBTIDE = (sys.executable, "-c", "from ebbtide.cli.main import main; main()")
# A folder into which each test writes its row, for the table of `tests.cases.run`.
ROWS_VARIABLE = "EBBTIDE_CASE_ROWS"

# A market in which nothing but a test takes a machine; real seconds.
_START_S, _DAY_S, _USD = 1_433_160_000.0, 86_400.0, 0.03
_NOTICE_S, _BOOTS_S = 20.0, (0.1, 0.1)
# A run whose program is at fault may never end.
_LIMIT_S, _MOST_STEPS = 600.0, 1_000
# Steps that a program may do while its machine is about to be taken: with more, on a busy machine, it would end first.
_AHEAD = 4
_WEIGHTS = re.compile(r"^weights ([0-9a-f]{64})", re.MULTILINE)


@dataclass(frozen=True)
class Case:
    """A program, and how it is run.

    Attributes:
        name: Name of the case.
        program: Name of the program's file, which Python runs; empty: `command` has all.
        command: The whole command line where it is another one.
        checkpoints: Folder that the program saves into and resumes from.
        every: Steps between two saves.
        after: Steps on each machine after which it is taken; one number a machine, the number of revocations.
        repeats: Most steps that are done again after each revocation; None: those of two saves.
        step_s: Seconds that a step takes.
        needs: Module without which the program cannot run; empty: none.
    """

    name: str
    program: str = ""
    command: tuple[str, ...] = ()
    checkpoints: str = "ckpt"
    every: int = 6
    after: tuple[int, ...] = (8, 6, 7, 6, 5)
    repeats: int | None = None
    step_s: float = 0.25
    needs: str = ""

    @property
    def words(self) -> tuple[str, ...]:
        """Its command line."""
        return self.command or ("python", f"{self.program or self.name}.py")

    @property
    def most_repeated(self) -> int:
        """Steps that may be done again after one revocation."""
        return 2 * self.every if self.repeats is None else self.repeats

    def prepared(self, folder: Path) -> Path:
        """Copy the programs into a folder, as a project that has them."""
        shutil.copytree(PROGRAMS, folder, ignore=shutil.ignore_patterns("__pycache__"))
        return folder


@dataclass(frozen=True)
class Row:
    """What came of one program on machines that were taken.

    Attributes:
        case: Name of the case.
        revocations: Number of machines that were taken from it, each with a notice.
        steps: Steps of the training.
        steps_lost: Steps that were lost by the run's own account.
        steps_repeated: Steps that the program did more than once.
        most_repeated: The most of them after one revocation.
        same_result: Whether its weights equal those of the undisturbed program.
        seconds: Duration of the run, real seconds.
        problem: How it failed; empty: it did not.
    """

    case: str
    revocations: int
    steps: int
    steps_lost: float
    steps_repeated: int
    most_repeated: int
    same_result: bool
    seconds: float
    problem: str = ""


@dataclass
class _Taker:
    """Takes the machine of a run after so many steps on it, as often as it is told to."""

    run: RunFolder
    after: Sequence[int]
    noted: Path
    began_s: float = field(default_factory=time.monotonic)
    taken: int = 0
    attempt: int = 0
    asked: int = 0
    done: int = 0
    is_late: bool = False

    def allow(self, most: int) -> None:
        """Let the program do this many steps in all, those that it repeats included."""
        write_text(limit_of(self.noted), str(most))

    def looked(self, _engine: Engine, provider: AgentProvider) -> None:
        (trial,) = provider.trials
        if time.monotonic() - self.began_s > _LIMIT_S and not self.is_late:
            self.is_late = True
            request_stop(self.run.path, StopRequest.DOWN)
        done = len(self.noted.read_text().split()) if self.noted.exists() else 0
        if trial.attempt != self.attempt:
            # A machine may be taken though the answer to the request for it was lost, so attempts are counted.
            self.attempt, self.done, self.taken = trial.attempt, done, max(trial.attempt - 1, 0)
            is_last = self.taken >= len(self.after)
            self.allow(done + (_MOST_STEPS if is_last else self.after[self.taken] + _AHEAD))
        is_due = self.taken < len(self.after) and done - self.done >= self.after[self.taken]
        if not is_due or self.asked == trial.attempt or trial.resumed != trial.attempt or trial.ended:
            return
        cloud = LocalCloud(cloud_place(self.run), prices_of(self.run))
        # A machine that is going already says no.
        with suppress(CloudError):
            if max(map(cloud.interrupt, cloud.processes()), default=False):
                self.asked = trial.attempt


def limit_of(noted: Path) -> Path:
    """The file that says how many steps a program may do that notes its steps in another."""
    return noted.with_name(f"{noted.name}-limit")


def calm() -> eb.PriceHistory:
    """Two zones in which machines cost the same all the time."""
    times_s, usd = np.array([_START_S - 3600.0, _START_S + _DAY_S]), np.array([_USD, 1.1 * _USD])
    zones = [eb.Market("aws", "us-east-1", f"us-east-1{letter}", "c3.xlarge") for letter in "ab"]
    series = {zone: PriceSeries(times_s, usd) for zone in zones}
    return eb.PriceHistory(series, start_s=times_s[0], end_s=times_s[1] + 3600.0)


def alone(case: Case, folder: Path) -> str:
    """The weights that a program ends with if nothing disturbs it."""
    environment = _environment(0.0)
    done = subprocess.run(
        case.words, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=_LIMIT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return _weights(done.stdout)


def taken(case: Case, folder: Path, runs: Path, weights: str) -> Row:
    """Run a program on machines that are taken.

    Args:
        case: The program.
        folder: Folder that it is in.
        runs: Folder in which the run is kept.
        weights: What the undisturbed program ends with.
    """
    job = SingleTraining.parse({"command": list(case.words), "checkpoints": case.checkpoints}).work()
    job = job.model_copy(update={"billing": "per-second"})
    market = LocalMarket(calm(), _START_S, 1.0, notice_s=_NOTICE_S, boots_s=_BOOTS_S)
    began_s = time.monotonic()
    run = begin_local(job, folder, NewRun(runs), market, policy="reactive")
    # Which steps are done is noted beside the log: what programs print is as different as they are.
    noted, before = folder.parent / f"{case.name}-steps", dict(os.environ)
    taker = _Taker(run, case.after, noted)
    taker.allow(case.after[0])
    os.environ.update({**_environment(case.step_s), "CASE_STEPS": str(noted)})
    try:
        outcome = run_local(run, Reactive(), taker.looked).outcome
    finally:
        os.environ.clear()
        os.environ.update(before)
        end_local(run)
    log = run.log_of(f"{run.path.name}-000").read_text(errors="replace")
    steps = [int(step) for step in noted.read_text().split()] if noted.exists() else []
    repeated = repeats(steps)
    (trained,) = outcome.jobs
    is_whole = outcome.finished and not trained.stopped
    return Row(
        case.name,
        taker.taken,
        len(set(steps)),
        outcome.steps_lost,
        sum(repeated),
        max(repeated, default=0),
        is_whole and _weights(log) == weights,
        round(time.monotonic() - began_s, 1),
        "" if is_whole else log[-3000:],
    )


def repeats(steps: Sequence[int]) -> list[int]:
    """How many steps were done again each time that a program went back."""
    return [before + 1 - after for before, after in pairwise(steps) if after <= before]


def ebbtide(folder: Path, *words: str, step_s: float = 0.25) -> subprocess.CompletedProcess[str]:
    """Run a command of Ebbtide in a folder, as its user does."""
    return subprocess.run(
        [*EBBTIDE, *words],
        cwd=folder,
        env={**_environment(step_s), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=_LIMIT_S,
    )


def rehearsed(
    case: Case, folder: Path, *options: str
) -> tuple[subprocess.CompletedProcess[str], Mapping[str, Any]]:
    """Rehearse an interruption of a program; the figures are empty if there are none."""
    words = ("--checkpoints", case.checkpoints, "--after-s", "4", "--json", "found.json", *options)
    # A framework that is imported beside other work takes a minute to begin.
    done = ebbtide(folder, "rehearse", "--patience-s", "300", *words, "--", *case.words, step_s=case.step_s)
    found = folder / "found.json"
    return done, json.loads(found.read_text()) if found.exists() else {}


def note(row: Row, **more: Any) -> None:
    """Write a row for the table, if one is being made."""
    if folder := os.environ.get(ROWS_VARIABLE):
        (Path(folder) / f"{row.case}.json").write_text(json.dumps({**asdict(row), **more}))


def _weights(output: str) -> str:
    found = _WEIGHTS.findall(output)
    return found[-1] if found else ""


def _environment(step_s: float) -> dict[str, str]:
    path = f"{sys.prefix}/bin{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "CASE_STEP_S": str(step_s), "PATH": path, "OMP_NUM_THREADS": "1"}
