"""Live runs with random faults: `python -m tests.harness.chaos.chaos --seeds 5 --faults 50`.

Trainings, agents and the controller are killed; storage refuses, stops answering and truncates uploads. In the end
nothing may be lost that was in a complete checkpoint, nothing counted twice, no machine may be left running, and
our ledger must equal the provider's.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import logging
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.harness.chaos.storage import FaultyStorage, Seen, StorageFault

from ebbtide.base.files import write_text
from ebbtide.clouds.local.client import LocalCloud
from ebbtide.clouds.settings import NewRun, RunFolder
from ebbtide.controller.journal.journal import journal_of
from ebbtide.controller.run_state import controller_pid
from ebbtide.errors import CloudError, InputError
from ebbtide.jobs.sweep import Sweep
from ebbtide.market.generator import generate_auction_prices
from ebbtide.market.prices import PriceHistory
from ebbtide.runs.start_local import LocalMarket, begin_local, end_local
from ebbtide.runs.status import standing_of
from ebbtide.storage.checkpoints.store import CheckpointStore
from ebbtide.storage.objects import object_store
from ebbtide.trial import TRIAL_ID

_PROGRAM = Path(__file__).with_name("program.py")
_BUCKET = "chaos"
_STEPS = 300
_STEP_S = 0.02
_TRIALS = 3
_BETWEEN_S = (0.03, 0.3)
# Seconds that a controller works after taking over the run before it may be killed.
_CONTROLLER_LIVES_S = 1.0
# Maximum shares of all faults, so that no kind is left out if other processes are rare under load.
_MOST = {"controller": 0.2, "agent": 0.3, "training": 0.3, "storage": 0.25}
# A run is stuck if it takes longer than this after its last fault, or with faults still to come.
_LONGEST_S = 240.0
_LONGEST_WITH_FAULTS_S = 900.0
# Timeout of the whole study: if it hangs, all stacks are printed, and the study fails.
_HUNG_S = 1500.0
# A restore begins some time before training, so it may miss checkpoints written within that time.
_RESTORING_S = 2.0
# Ten kills without a checkpoint in between count as a failed program, as if out of memory: stay below.
_KILLS_BETWEEN_CHECKPOINTS = 8

# Weights of faults. A controller takes a while to restart, so it gets fewer faults.
_KINDS: dict[str, float] = {"training": 2.0, "agent": 2.0, "controller": 1.0} | dict.fromkeys(StorageFault, 1.5)

_CONTROLLER = """
import faulthandler, logging, sys
from pathlib import Path
from ebbtide.runs.start_local import run_local
from ebbtide.clouds.settings import NewRun, RunFolder
from ebbtide.policies.for_job import policy_for
from ebbtide.policies.registry import DEFAULT_NAME
from ebbtide.jobs.sweep import Sweep
logging.basicConfig(level=logging.WARNING)
faulthandler.enable()
folder = RunFolder(Path(sys.argv[1]))
run_local(folder, policy_for(Sweep.model_validate(folder.settings.sweep), DEFAULT_NAME))
"""


@dataclass(frozen=True)
class ChaosReport:
    """The results of one run with faults.

    Attributes:
        seed: Seed of all random numbers.
        faults: Number of faults, by kind.
        finished: Whether all trials reached their last step.
        steps_lost: Lost steps that were in a complete checkpoint.
        steps_counted_twice: Steps counted twice or left out.
        instances_left_running: Machines still running after the run.
        ledger_difference_usd: Difference of our ledger from the provider's record, USD.
        revocations: Number of revocations by the market.
        seconds: Duration of the run, real seconds.
        problems: Why trials failed, for those that did.
    """

    seed: int
    faults: dict[str, int]
    finished: bool
    steps_lost: int
    steps_counted_twice: int
    instances_left_running: int
    ledger_difference_usd: float
    revocations: int
    seconds: float
    problems: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """True if the run finished without any damage."""
        wrong = (self.steps_lost, self.steps_counted_twice, self.instances_left_running)
        return self.finished and not any(wrong) and self.ledger_difference_usd < 1e-9


def chaos_run(seed: int, faults: int, place: Path) -> ChaosReport:
    """Run one sweep with a number of faults, in folder `place`."""
    from moto.server import ThreadedMotoServer

    began = time.monotonic()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    storage = FaultyStorage(server.get_host_and_port()[1])
    environment = {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": storage.url,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        import boto3

        boto3.client("s3").create_bucket(Bucket=_BUCKET)
        notes = place / "notes"
        notes.mkdir()
        folder = begin_local(
            _sweep(notes),
            place,
            NewRun(place / "runs"),
            LocalMarket(generate_auction_prices(days=10, seed=seed)),
            policy="spottune",
            seed=seed,
            store=f"s3://{_BUCKET}/run-{seed}",
        )
        try:
            counts, agents = _disturb(folder, storage, random.Random(seed), faults)
        finally:
            end_local(folder)
        return _report(folder, storage.seen, notes, seed, counts, agents, time.monotonic() - began)
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        storage.close()
        server.stop()


def _sweep(notes: Path) -> Sweep:
    program = f"python '{_PROGRAM}' --step-s {_STEP_S} --notes '{notes}'"
    return Sweep.model_validate(
        {
            "name": "chaos",
            "command": program + " --number {number}",
            "grid": {"number": [n + 1 for n in range(_TRIALS)]},
            "metric": "loss",
            "max_trial_steps": _STEPS,
            "theta": 1.0,
            "other_steps_per_hour_per_vcpu": 1_000,
            "checkpoint": {"save_s": 5, "restore_s": 60},
        }
    )


def _disturb(
    folder: RunFolder, storage: FaultyStorage, draws: random.Random, faults: int
) -> tuple[Counter[str], set[int]]:
    """Run the sweep with a number of faults, then let it end."""
    counts: Counter[str] = Counter()
    agents: set[int] = set()
    controller, took_over_s = _controller(folder), math.inf
    journal, spared = journal_of(folder), _Spared(storage.seen)
    prices = PriceHistory.read(folder.path / "prices.parquet")
    last_s = time.monotonic() + _LONGEST_WITH_FAULTS_S
    end_s = time.monotonic() + _LONGEST_S
    while time.monotonic() < end_s:
        code = controller.poll()
        if code is not None:
            if journal.state("outcome") is not None:
                break
            controller, took_over_s = _controller(folder), math.inf
        if took_over_s == math.inf and controller_pid(folder.path) == controller.pid:
            took_over_s = time.monotonic()
        agents_now = _agents(folder, prices)
        agents |= set(agents_now)
        if sum(counts.values()) < faults:
            end_s = min(time.monotonic() + _LONGEST_S, last_s)
            (kind,) = draws.choices(list(_KINDS), weights=list(_KINDS.values()))
            group = "storage" if isinstance(kind, StorageFault) else kind
            new = time.monotonic() - took_over_s < _CONTROLLER_LIVES_S
            if counts[group] >= _MOST[group] * faults or (kind == "controller" and new):
                pass
            elif not isinstance(kind, StorageFault):
                counts[kind] += _kill(kind, agents_now, controller, draws, spared)
            elif kind not in storage.armed:
                # The next upload to truncate may take a while to come, so other faults must not wait for it.
                storage.arm(kind)
            counts["storage"] = storage.done
        else:
            storage.armed.clear()
        time.sleep(draws.uniform(*_BETWEEN_S))
    if journal.state("outcome") is None:
        raise InputError(_why_stuck(folder, controller, counts, storage))
    return counts, agents


def _why_stuck(
    folder: RunFolder, controller: subprocess.Popen[bytes], counts: Counter[str], storage: FaultyStorage
) -> str:
    """Describe a run that did not end; its controller is killed, with its stack in the log."""
    if controller.poll() is None:
        controller.send_signal(signal.SIGABRT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            controller.wait(10)
        controller.kill()
        controller.wait(10)
    log = (folder.path / "controller.log").read_text(encoding="utf-8", errors="replace").splitlines()
    standing = standing_of(folder, folder.catalogue)
    return "\n".join(
        [
            f"the run in {folder.path} did not end within {_LONGEST_S:g} s of its last fault, or "
            f"{_LONGEST_WITH_FAULTS_S:g} s in all",
            f"faults {dict(counts)}; armed {sorted(storage.armed)}",
            f"standing {standing}",
            *log[-200:],
        ]
    )


def _controller(folder: RunFolder) -> subprocess.Popen[bytes]:
    with (folder.path / "controller.log").open("ab") as log:
        return subprocess.Popen([sys.executable, "-c", _CONTROLLER, str(folder.path)], stdout=log, stderr=log)


def _agents(folder: RunFolder, prices: PriceHistory) -> list[int]:
    """Return the process ids of the agents."""
    try:
        return sorted(LocalCloud(folder.path / "cloud", prices).processes().values())
    except CloudError:
        return []


class _Spared:
    """Protects programs that were killed often enough since their trial's newest checkpoint."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._kills: Counter[tuple[str, int]] = Counter()

    def _stretch(self, trial: str) -> tuple[str, int]:
        return trial, len(self._seen.complete.get(trial, ()))

    def others(self, programs: list[int]) -> list[int]:
        """Return the programs that may be killed."""
        return [pid for pid in programs if self._kills[self._stretch(_trial(pid))] < _KILLS_BETWEEN_CHECKPOINTS]

    def killed(self, trial: str) -> None:
        """Record that a trial's program was killed."""
        self._kills[self._stretch(trial)] += 1


def _trial(pid: int) -> str:
    """Return the trial of a program; empty if not known."""
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if entry.startswith(f"{TRIAL_ID}=".encode()):
                return entry.decode().partition("=")[2]
    return ""


def _kill(
    kind: str, agents: list[int], controller: subprocess.Popen[bytes], draws: random.Random, spared: _Spared
) -> int:
    """Kill one process of a kind; returns the number killed."""
    if kind == "controller":
        controller.send_signal(signal.SIGKILL)
        controller.wait(10)
        return 1
    if kind == "agent":
        victims = agents
    else:
        victims = spared.others([child for agent in agents for child in _children(agent)])
    if not victims:
        return 0
    victim = draws.choice(victims)
    if kind == "training":
        spared.killed(_trial(victim))
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim, signal.SIGKILL)
    return 1


def _children(pid: int) -> list[int]:
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    except OSError:
        return []


def _report(
    folder: RunFolder, seen: Seen, notes: Path, seed: int, counts: Counter[str], agents: set[int], seconds: float
) -> ChaosReport:
    journal = journal_of(folder)
    outcome, kept = journal.state("outcome"), journal.run()
    bills = json.loads((folder.path / "cloud" / "bills.json").read_text(encoding="utf-8"))
    billed_usd = math.fsum(bill["usd"] for bill in bills)
    settings = folder.settings
    lost = twice = 0
    for number in range(_TRIALS):
        trial = f"{settings.run}-{number:03d}"
        lost += _lost(notes / f"{trial}.log", seen, trial)
        twice += _wrong(settings.store, trial, number + 1)
    jobs = kept["engine"]["jobs"] if kept else []
    ended = bool(jobs) and all(job["steps_done"] == _STEPS and not job["stopped"] for job in jobs)
    return ChaosReport(
        seed,
        dict(counts),
        bool(outcome["finished"]) and ended,
        lost,
        twice,
        sum(Path(f"/proc/{pid}").exists() for pid in agents),
        abs(outcome["cost_usd"] - billed_usd),
        outcome["revocations"],
        seconds,
        tuple(trial.failure for trial in standing_of(folder, folder.catalogue).failed),
    )


def _lost(notes: Path, seen: Seen, trial: str) -> int:
    """Count steps that were in a complete checkpoint but missing at a later start of the program."""
    lost = 0
    for line in notes.read_text().splitlines():
        time_text, begins = line.split()
        stored = [
            step
            for written_s, number, step in seen.complete.get(trial, ())
            if written_s < float(time_text) - _RESTORING_S and (trial, number) not in seen.damaged
        ]
        lost += max(max(stored, default=0) - int(begins), 0)
    return lost


def _wrong(store: str, trial: str, number: int) -> int:
    """Count steps too many or too few in a trial's final state."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "newest"
        if CheckpointStore(object_store(store), trial).restore(folder) is None:
            return _STEPS
        found = json.loads(next(folder.glob("step-*/sum.json")).read_text())
    wanted = number * _STEPS * (_STEPS + 1) // 2
    return 0 if found == wanted else max(abs(found - wanted) // (number * _STEPS), 1)


def main() -> None:
    """Run several seeds and write a report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--faults", type=int, default=50, help="of a run")
    parser.add_argument("--json", type=Path, default=Path("reports/chaos.json"))
    options = parser.parse_args()
    found = []
    for seed in range(options.seed, options.seed + options.seeds):
        faulthandler.dump_traceback_later(_HUNG_S, exit=True)
        with tempfile.TemporaryDirectory(prefix="ebbtide-chaos-") as place:
            found.append(chaos_run(seed, options.faults, Path(place)))
        sys.stdout.write(f"{found[-1]}\n")
        sys.stdout.flush()
    content = {
        "faults": sum(sum(run.faults.values()) for run in found),
        "seeds": [run.seed for run in found],
        "finished": all(run.finished for run in found),
        "steps_lost": sum(run.steps_lost for run in found),
        "steps_counted_twice": sum(run.steps_counted_twice for run in found),
        "instances_left_running": sum(run.instances_left_running for run in found),
        "ledger_difference_usd": max(run.ledger_difference_usd for run in found),
        "runs": [asdict(run) for run in found],
    }
    write_text(options.json, json.dumps(content, indent=2) + "\n")
    sys.stdout.write(f"wrote {options.json}\n")
    sys.exit(0 if all(run.is_whole for run in found) else 1)


if __name__ == "__main__":
    main()
