"""Runs with faults: `python -m ebbtide.experiments.chaos.chaos --seeds 5 --faults 50`.

Training, agents and the controller are killed, storage refuses, falls silent and stores halves. In the end the
sweep is to be as if nothing had been: nothing lost but what no complete checkpoint had, nothing counted twice, no
machine left, and our ledger the provider's.
"""

from __future__ import annotations

import argparse
import contextlib
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

from ebbtide.checkpoints.store import CheckpointStore
from ebbtide.errors import InputError
from ebbtide.execution.cloud import CloudError
from ebbtide.execution.live.journal import Journal
from ebbtide.execution.live.local import begin_local, end_local
from ebbtide.execution.live.settings import RunFolder
from ebbtide.execution.live.stopping import controller_pid
from ebbtide.execution.local_cloud.client import LocalCloud
from ebbtide.experiments.chaos.storage import FaultyStorage, Seen, StorageFault
from ebbtide.files import write_text
from ebbtide.market.generator import generate_prices
from ebbtide.market.prices import PriceHistory
from ebbtide.object_storage import object_store
from ebbtide.workloads.sweep import Sweep

_BUCKET = "chaos"
_STEPS = 300
_STEP_S = 0.02
_TRIALS = 3
_BETWEEN_S = (0.03, 0.3)
# A controller that has taken the run over has so long to do something before it may be killed.
_CONTROLLER_LIVES_S = 1.0
# Shares of all faults at most: under load there may be nothing else to disturb for a while.
_MOST_CONTROLLERS, _MOST_STORAGE = 0.2, 0.4
# A run that has not ended so long after its last fault never will.
_LONGEST_S = 240.0
# Restoring begins some time before training does; checkpoints of that time need not be in it.
_RESTORING_S = 2.0

# A controller takes a while to begin again: the others are to have faults meanwhile.
_KINDS: dict[str, float] = {"training": 2.0, "agent": 2.0, "controller": 1.0} | dict.fromkeys(StorageFault, 1.5)

_CONTROLLER = """
import logging, sys
from pathlib import Path
from ebbtide.execution.live.local import run_local
from ebbtide.execution.live.settings import RunFolder
from ebbtide.experiments.planning import policy_of
from ebbtide.workloads.sweep import Sweep
logging.basicConfig(level=logging.WARNING)
folder = RunFolder(Path(sys.argv[1]))
run_local(folder, policy_of(Sweep.model_validate(folder.settings.sweep)))
"""


@dataclass(frozen=True)
class ChaosReport:
    """What one run with faults showed.

    Attributes:
        seed: Of all chance.
        faults: How many took place, by kind.
        finished: The sweep ended, all trials at their last step.
        steps_lost: Beyond what no complete checkpoint had.
        steps_counted_twice: Steps left out count, too.
        instances_left_running: Afterwards.
        ledger_difference_usd: To the provider's record.
        revocations: By the market, beside the faults.
        seconds: Real ones.
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

    @property
    def is_whole(self) -> bool:
        """Whether nothing was the worse for it."""
        wrong = (self.steps_lost, self.steps_counted_twice, self.instances_left_running)
        return self.finished and not any(wrong) and self.ledger_difference_usd < 1e-9


def chaos_run(seed: int, faults: int, place: Path) -> ChaosReport:
    """One sweep, with so many faults."""
    from moto.server import ThreadedMotoServer

    began = time.monotonic()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    storage = FaultyStorage(server.get_host_and_port()[1])
    environment = {
        "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": storage.url, "AWS_EC2_METADATA_DISABLED": "true",
    }  # fmt: skip
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        import boto3

        boto3.client("s3").create_bucket(Bucket=_BUCKET)
        notes = place / "notes"
        notes.mkdir()
        folder = begin_local(
            _sweep(notes), place, place / "runs", policy="spottune", prices=generate_prices(days=10, seed=seed),
            seed=seed, store=f"s3://{_BUCKET}/run-{seed}",
        )  # fmt: skip
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
    program = f"python -m ebbtide.experiments.chaos.program --step-s {_STEP_S} --notes '{notes}'"
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
    """Run it; let faults happen until there were enough, then let it end."""
    counts: Counter[str] = Counter()
    agents: set[int] = set()
    controller, took_over_s = _controller(folder), math.inf
    journal = Journal(folder.journal)
    prices = PriceHistory.read(folder.path / "prices.parquet")
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
            end_s = time.monotonic() + _LONGEST_S
            (kind,) = draws.choices(list(_KINDS), weights=list(_KINDS.values()))
            new = time.monotonic() - took_over_s < _CONTROLLER_LIVES_S
            if kind == "controller" and (new or counts[kind] >= _MOST_CONTROLLERS * faults):
                pass
            elif not isinstance(kind, StorageFault):
                counts[kind] += _kill(kind, agents_now, controller, draws)
            elif kind not in storage.armed and storage.done < _MOST_STORAGE * faults:
                # An upload to be cut short may be a while in coming: other faults must not wait behind it.
                storage.arm(kind)
            counts["storage"] = storage.done
        else:
            storage.armed.clear()
        time.sleep(draws.uniform(*_BETWEEN_S))
    if controller.poll() is None:
        controller.kill()
        controller.wait(10)
        raise InputError(f"the run in {folder.path} did not end within {_LONGEST_S:g} s")
    return counts, agents


def _controller(folder: RunFolder) -> subprocess.Popen[bytes]:
    with (folder.path / "controller.log").open("ab") as log:
        return subprocess.Popen([sys.executable, "-c", _CONTROLLER, str(folder.path)], stdout=log, stderr=log)


def _agents(folder: RunFolder, prices: PriceHistory) -> list[int]:
    """Process ids."""
    try:
        return sorted(LocalCloud(folder.path / "cloud", prices).processes().values())
    except CloudError:
        return []


def _kill(kind: str, agents: list[int], controller: subprocess.Popen[bytes], draws: random.Random) -> int:
    """Kill one of a kind; returns how many that were."""
    if kind == "controller":
        controller.send_signal(signal.SIGKILL)
        controller.wait(10)
        return 1
    victims = agents if kind == "agent" else [child for agent in agents for child in _children(agent)]
    if not victims:
        return 0
    with contextlib.suppress(ProcessLookupError):
        os.kill(draws.choice(victims), signal.SIGKILL)
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
    journal = Journal(folder.journal)
    outcome, kept = journal.state("outcome"), journal.state("run")
    bills = json.loads((folder.path / "cloud" / "bills.json").read_text(encoding="utf-8"))
    billed_usd = math.fsum(bill["usd"] for bill in bills)
    settings = folder.settings
    lost = twice = 0
    for number in range(_TRIALS):
        trial = f"{settings.run}-{number:03d}"
        lost += _lost(notes / f"{trial}.log", seen, trial)
        twice += _wrong(settings.store, trial, number + 1)
    ended = all(job["steps_done"] == _STEPS and not job["stopped"] for job in kept["engine"]["jobs"])
    return ChaosReport(
        seed, dict(counts), bool(outcome["finished"]) and ended, lost, twice,
        sum(Path(f"/proc/{pid}").exists() for pid in agents), abs(outcome["cost_usd"] - billed_usd),
        outcome["revocations"], seconds,
    )  # fmt: skip


def _lost(notes: Path, seen: Seen, trial: str) -> int:
    """Steps that were in a complete checkpoint, and that a life of the program began without."""
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
    """How many steps too many, or too few, are in what a trial ended with."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "newest"
        if CheckpointStore(object_store(store), trial).restore(folder) is None:
            return _STEPS
        found = json.loads(next(folder.glob("step-*/sum.json")).read_text())
    wanted = number * _STEPS * (_STEPS + 1) // 2
    return 0 if found == wanted else max(abs(found - wanted) // (number * _STEPS), 1)


def main() -> None:
    """Several runs, and a report of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--faults", type=int, default=50, help="of a run")
    parser.add_argument("--json", type=Path, default=Path("reports/chaos.json"))
    options = parser.parse_args()
    found = []
    for seed in range(options.seed, options.seed + options.seeds):
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
