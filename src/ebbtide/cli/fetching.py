"""`ebbtide fetch`: download checkpoints, outputs and logs of a run's trials."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal
from rich.progress import track

from ebbtide.cli.runs import RunsOption
from ebbtide.clouds.settings import RUNS, RunFolder, find_run
from ebbtide.controller.kinds.state import trial_id_of
from ebbtide.errors import InputError
from ebbtide.jobs.job_list import runnable
from ebbtide.runs.fetched_results import fetch_results
from ebbtide.runs.fetching import best_of, fetch_trial, ranks_of_trial
from ebbtide.runs.status import RunStanding, standing_of

_MOST_NAMED = 3


def fetch_command(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's id, or `latest`.")],
    trial: Annotated[
        int | None, typer.Argument(metavar="[TRIAL]", min=0, help="Number of the trial; by default the best.")
    ] = None,
    into: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder to write to; by default named like the run.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Fetch all trials.")] = False,
    newest: Annotated[
        bool, typer.Option("--newest", help="Fetch the newest checkpoint, not the one with the best metric.")
    ] = False,
    runs: RunsOption = RUNS,
) -> None:
    """Download the checkpoint, the outputs and the log of a run's best trial, another, or all; of an array, the
    results of its tasks; of a list of jobs, all of them. Of several checkpoints, the one with the best metric is
    taken.

        ebbtide fetch RUN 3 --into results

    Each file is checked against its checksum. Existing files are never overwritten.
    """
    if every and trial is not None:
        raise InputError("give either a trial or --all")
    folder = find_run(runs, run)
    run = folder.path.name
    work = runnable(folder.settings.sweep)
    if work.kind == "array":
        if trial is not None:
            raise InputError(f"run {run} is an array, all of whose results are fetched: `ebbtide fetch {run}`")
        if not _fetch_array(folder, into or Path(run), 0):
            raise typer.Exit(os.EX_IOERR)
        return
    last = len(work.job_names) - 1
    if trial is not None and trial > last:
        raise InputError(f"run {run} has trials 0 to {last}, not {trial}")
    standing = standing_of(folder, folder.catalogue)
    place = into or Path(run)
    # A list of jobs has no best one, so fetch all.
    every = every or (work.is_list and trial is None)
    # Even a run without any checkpoint yet goes through all trials, so that the errors name each one.
    wanted = range(last + 1) if every else [_chosen(standing, trial)]
    show = len(wanted) > 1
    missing, is_whole = 0, True
    for number in track(wanted, description=run, transient=True, disable=not show):
        try:
            if work.part_of(number)[0].kind == "array":
                is_whole = _fetch_array(folder, place / trial_id_of(run, number), number) and is_whole
            else:
                best = "" if newest else best_of(folder, number)
                is_whole = _fetch_trial(folder, number, place, best=best) and is_whole
        except InputError as error:
            if not every or error.file is not None:
                raise
            typer.echo(str(error), err=True)
            missing += 1
    if not is_whole:
        raise typer.Exit(os.EX_IOERR)
    if missing:
        raise typer.Exit(1)


def _fetch_trial(folder: RunFolder, number: int, place: Path, *, best: str) -> bool:
    """Fetch what a trial has stored; returns whether all of it could be read."""
    trial_id = trial_id_of(folder.path.name, number)
    try:
        found = fetch_trial(folder, trial_id, place, best=best, ranks=ranks_of_trial(folder, number))
    except OSError as error:
        raise InputError(f"trial {trial_id} cannot be fetched: {error}") from None
    step = "no checkpoint" if found.step is None else f"checkpoint of step {found.step}"
    if found.metric is not None:
        step += f" (metric {found.metric:.6g})"
    if found.outputs:
        step += f"; its outputs ({_named(found.outputs)})"
    typer.echo(f"trial {number}: {step}, {'in' if found.is_new else 'already in'} {found.folder}")
    if found.problem:
        typer.echo(f"{found.problem}; another `ebbtide fetch` adds them", err=True)
    return not found.problem


def _fetch_array(folder: RunFolder, into: Path, number: int) -> bool:
    """Fetch an array's stored results; returns whether all are intact."""
    try:
        found = fetch_results(folder, into, number)
    except OSError as error:
        raise InputError(f"the results of run {folder.path.name} cannot be fetched: {error}") from None
    others = f", {found.missing:,} tasks have none yet" if found.missing else ""
    typer.echo(f"{found.done:,} results in {found.folder}, {found.new:,} of them new{others}")
    for problem in found.problems:
        typer.echo(problem, err=True)
    return not found.problems


def _named(outputs: Mapping[str, int]) -> str:
    """Format the names of the first files, and the total size."""
    names = [*list(outputs)[:_MOST_NAMED], *(["..."] if len(outputs) > _MOST_NAMED else [])]
    return f"{', '.join(names)}, {decimal(sum(outputs.values()))}"


def _chosen(standing: RunStanding, trial: int | None) -> int:
    """Return the given number, or else the best trial's."""
    if trial is not None:
        return trial
    if standing.best is None:
        raise InputError(
            f"no trial of run {standing.run} has reported its metric, so none is the best; name one: "
            f"`ebbtide fetch {standing.run} 0`, or --all"
        )
    return standing.best.number
