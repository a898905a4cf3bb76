"""Small live sweeps for tests: a program that needs nothing, a market that takes machines away."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import ebbtide as eb
from ebbtide.base.utc import HOUR_S, iso, to_epoch_s
from ebbtide.jobs.sweep import Sweep
from ebbtide.market.price_series import PriceSeries

PROGRAM = """
import json, pathlib, signal, sys, time
folder, last, lr = pathlib.Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
state = folder / "state.json"
step, total = json.loads(state.read_text()) if state.exists() else (0, 0.0)
def save():
    part = folder / ".state.part"
    part.write_text(json.dumps([step, total])); part.rename(state)
    print(json.dumps({"saved": step}), flush=True)
def stop(*_):
    save(); sys.exit(0)
signal.signal(signal.SIGTERM, stop)
while step < last:
    time.sleep(0.02)
    step, total = step + 1, total + lr * step
    if step % 5 == 0: print(json.dumps({"step": step, "loss": lr + 1 / step}), flush=True)
    if step % 20 == 0: save()
save()
print("total", total, flush=True)
"""


def held_program(go: Path) -> str:
    """The program, which trains all its steps, and ends once there is such a file."""
    last = 'save()\nprint("total"'
    assert PROGRAM.count(last) == 1
    return PROGRAM.replace(last, f"while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.05)\n{last}")


BEGAN_S = to_epoch_s("2015-06-01T00:00:00Z")
START_S = BEGAN_S + 24 * HOUR_S
A, B = (eb.Market("aws", "us-east-1", f"us-east-1{zone}", "c3.xlarge") for zone in "ab")
G, H = (eb.Market("gcp", "us-central1", f"us-central1-{zone}", "n1-standard-4") for zone in "ab")


def flapping(every_h: float = 0.12, hours: float = 24.0) -> eb.PriceHistory:
    """Two markets that in turn go above the list price for a moment."""
    series = {}
    for place, market in enumerate((A, B)):
        times_s, usd = [BEGAN_S], [0.03]
        spike_s = START_S + (0.5 + place) * every_h * HOUR_S
        while spike_s < START_S + hours * HOUR_S:
            times_s += [spike_s, spike_s + 0.3 * every_h * HOUR_S]
            usd += [1.0, 0.03]
            spike_s += 2 * every_h * HOUR_S
        series[market] = PriceSeries(np.array(times_s), np.array(usd))
    return eb.PriceHistory(series, start_s=BEGAN_S, end_s=START_S + (hours + 1) * HOUR_S)


def steady(usd: float = 0.03, hours: float = 24.0) -> eb.PriceHistory:
    """Two markets of GCP, whose prices do not change."""
    series = {market: PriceSeries(np.array([BEGAN_S]), np.array([usd])) for market in (G, H)}
    return eb.PriceHistory(series, start_s=BEGAN_S, end_s=START_S + hours * HOUR_S)


def sweep(folder: Path, *, trials: int = 3, steps: int = 200, program: str = PROGRAM, **options: Any) -> Sweep:
    """One that runs a program written into a folder."""
    (folder / "program.py").write_text(program)
    content = {
        "name": "small sweep",
        "command": f"{sys.executable} program.py {{checkpoint_dir}} {{max_steps}} {{lr}}",
        "grid": {"lr": [round(0.1 * (n + 1), 1) for n in range(trials)]},
        "metric": "loss",
        "max_trial_steps": steps,
        "theta": 1.0,
        "steps_per_hour": {"c3.xlarge": 1_400, "n1-standard-4": 1_400},
        "checkpoint": {"save_s": 5, "restore_s": 20},
    }
    return Sweep.model_validate(content | options)


def total(lr: float, steps: int) -> float:
    """What an undisturbed run of the program adds up to."""
    found = 0.0
    for step in range(steps):
        found += lr * step
    return found


def due_job(*, steps: int, lr: float = 0.1, program: str = "program.py") -> str:
    """The text of a due job, which runs the program beside it on the prices beside it."""
    return f"""
run:
  command: {sys.executable} {program} {{checkpoint_dir}} {{max_steps}} {lr}
  steps: {steps}
  metric: loss
  checkpoint: {{save_s: 5, restore_s: 20}}
  steps_per_hour: {{c3.xlarge: 1_400}}
schedule: 0 2 * * *
policy: exosphere
prices: prices.parquet
start: {iso(START_S)}
speed: 120
"""
