"""Commands of the pipeline: `python -m pipelines COMMAND`.

repro [--keep-lock] [STAGE ...]     `dvc repro` with one Prefect server for all stages
collect                             take in new batches of prices and measured speeds, for the next `repro`
nightly                             one night: collect, repro, train what is due, report
pull                                data, models and reports of the commit that is checked out, from the store
train                               train the jobs that are due, without the rest of the night
serve [--host] [--port] [--cron]    a Prefect server, a worker and the nightly schedule
STAGE [NAME=VALUE ...]              one stage, as dvc.yaml runs it
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence

from ebbtide.errors import InputError, TrainingError, unknown_name
from pipelines.stage import run_command, run_stage

STAGES = (
    "ingest",
    "interpolate",
    "train_revpred",
    "measure_curves",
    "calibrate_earlycurve",
    "fit_price_model",
    "fit_spells",
    "measure_speeds",
    "bundle",
    "solve",
    "promote",
    "execute",
    "evaluate",
)


def collect() -> None:
    """Collect batches and speeds for the next `repro`, and print a line for each batch."""
    from flows.collect import collect as take_in
    from flows.parameters import Nightly, parameters

    for verdict in take_in(parameters(Nightly)):
        told = f"set aside {verdict.file.name}: {verdict.problem}"
        sys.stdout.write(f"{told if verdict.problem else f'added {verdict.file.name}: {verdict.rows} rows'}\n")


def pull() -> None:
    """Fetch what the commit that is checked out names, from the store of params.yaml or DVC's remote."""
    from flows.cache_store import pull_cache
    from flows.parameters import Nightly, parameters

    from ebbtide.storage.objects import object_store

    store = parameters(Nightly).store
    if store is not None:
        sys.stdout.write(f"{pull_cache(object_store(store))} objects from {store}\n")
    words = ["checkout"] if store is not None else ["pull"]
    done = subprocess.run([sys.executable, "-m", "dvc", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        where = store or "DVC's remote (`dvc remote list`; nightly.store in params.yaml is null)"
        raise InputError(f"{where} lacks some of what dvc.lock names: {_last_line(done.stderr)}")


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no reason given"


def nightly() -> None:
    """Run one night and print its summary; exit code 1 if a due job did not finish."""
    from flows.nightly import SUMMARY
    from flows.nightly import nightly as run_night

    try:
        sys.stdout.write(run_night() + "\n")
    except TrainingError as error:
        sys.stdout.write(SUMMARY.read_text(encoding="utf-8") + "\n")
        sys.stderr.write(f"ebbtide: {error}\n")
        sys.exit(1)


def train() -> None:
    """Train the jobs that are due and print a line for each; exit code 1 if one did not finish."""
    from flows.parameters import Nightly, parameters
    from flows.train import rows_of
    from flows.train import train as train_due

    from ebbtide.tracking.due_runs import failed

    settings = parameters(Nightly)
    results = [] if settings.jobs is None else train_due(settings.jobs, settings.runs)
    for row in rows_of(results):
        sys.stdout.write(", ".join(f"{name} {value}" for name, value in row.items() if value != "") + "\n")
    if problem := failed(results):
        sys.stderr.write(f"ebbtide: {problem}\n")
        sys.exit(1)


# Commands without arguments.
_COMMANDS: dict[str, Callable[[], None]] = {"collect": collect, "nightly": nightly, "pull": pull, "train": train}


def main(words: Sequence[str]) -> None:
    """Run the command that the words name."""
    if not words or words[0] in ("-h", "--help"):
        sys.stdout.write(__doc__ or "")
        sys.exit(0 if words else 2)
    name, *rest = words
    if name == "repro":
        from pipelines.repro import main as repro

        repro(rest)
    elif name == "serve":
        from pipelines.serve import main as serve

        serve(rest)
    elif name in STAGES:
        run_stage(name, rest)
    elif name not in _COMMANDS:
        raise unknown_name("command or stage", name, ("repro", "serve", *_COMMANDS, *STAGES))
    elif rest:
        raise InputError(f"{name} takes no arguments; {' '.join(rest)} given")
    else:
        _COMMANDS[name]()


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
