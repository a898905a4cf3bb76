"""Training of Table II as a process, which can be killed at any moment and started again.

    python -m ebbtide.jobs.reference.program --workload resnet --setting 3 --checkpoint trial.pt

The process resumes from the checkpoint if there is one, and reports its progress as lines of JSON on standard
output (`started`, `step` with `metric` at each validation, `saved`, `finished` or `stopped`). The trial is saved
as often as requested and at the end; on SIGTERM the process saves it and exits.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path

import torch

from ebbtide.errors import InputError
from ebbtide.jobs.reference.benchmarks import BENCHMARKS, benchmark
from ebbtide.jobs.reference.datasets import load_dataset
from ebbtide.jobs.reference.trial import load, save


def main(arguments: list[str] | None = None) -> int:
    """Train to the last step, or until SIGTERM, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", required=True, help=f"one of {', '.join(BENCHMARKS)}")
    parser.add_argument("--setting", type=int, required=True, help="number of its setting in Table II, from 0")
    parser.add_argument("--checkpoint", type=Path, required=True, help="file to resume from and to save to")
    parser.add_argument("--steps", type=int, help="train to this step; else to the workload's last")
    parser.add_argument("--save-every", type=int, default=0, metavar="STEPS", help="0: only at the end")
    parser.add_argument("--data", type=Path, help="folder of the original dataset; else a stand-in")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="keep it for identical results")
    options = parser.parse_args(arguments)
    try:
        return _train(options)
    except InputError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2


def _train(options: argparse.Namespace) -> int:
    stopping = False

    def stop(_number: int, _frame: object) -> None:
        nonlocal stopping
        stopping = True

    # Set before the data are loaded, which may take a while.
    signal.signal(signal.SIGTERM, stop)
    torch.set_num_threads(options.threads)
    chosen = benchmark(options.workload)
    setting = chosen.setting(options.setting)
    trial = chosen.build(setting, load_dataset(chosen.dataset, options.data), options.seed)
    about = {"workload": chosen.name, "seed": options.seed, **setting}
    if options.checkpoint.exists():
        load(trial, options.checkpoint, setting=about)
    last = trial.max_steps if options.steps is None else min(options.steps, trial.max_steps)
    _report(started=trial.step)
    saved = -1

    def keep() -> None:
        nonlocal saved
        if saved != trial.step:
            save(trial, options.checkpoint, setting=about)
            saved = trial.step
            _report(saved=saved)

    while trial.step < last and not stopping:
        trial.train_step()
        if trial.step % trial.validate_every == 0:
            _report(step=trial.step, metric=trial.validate())
        if options.save_every and trial.step % options.save_every == 0:
            keep()
    keep()
    _report(finished=trial.step) if trial.step >= last else _report(stopped=trial.step)
    return 0


def _report(**message: float) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
