"""`ebbtide resume`: continue a run, from its journal or, if that was lost, from its storage."""

from __future__ import annotations

from typing import Annotated

import typer

from ebbtide.cli.live_console import run_in_foreground
from ebbtide.cli.runs import RunArgument, RunsOption
from ebbtide.clouds.settings import RUNS, RunFolder, find_run
from ebbtide.controller.from_storage import FromStorage, go_on_from_storage
from ebbtide.controller.run_state import controller_of, controller_words, controlling
from ebbtide.errors import InputError
from ebbtide.jobs.job_list import runnable
from ebbtide.runs.by_provider import end_machines
from ebbtide.runs.handle import Run


def resume_command(
    run: RunArgument = None,
    from_storage: Annotated[
        bool,
        typer.Option(
            "--from-storage",
            help="Where its journal was lost, is damaged or has gone back in time: end its machines, and go on "
            "from its checkpoints with a new journal. What was paid before is unknown, and counts for no budget.",
        ),
    ] = False,
    track: Annotated[
        str, typer.Option(metavar="URI", help="With --from-storage: MLflow's address, where it was lost as well.")
    ] = "",
    runs: RunsOption = RUNS,
) -> None:
    """Continue a run that was stopped, or whose controller was killed."""
    if track and not from_storage:
        raise InputError("a run is tracked as it was begun; this is for --from-storage", field="--track")
    found = Run(find_run(runs, run))
    policy = found.policy
    if from_storage:
        typer.echo(_continued_from_storage(found.kept).in_words(found.kept.path.name), err=True)
    run_in_foreground(found.kept, policy, runnable(found.kept.settings.sweep), track)


def _continued_from_storage(folder: RunFolder) -> FromStorage:
    """Continue a run with a new journal, after ending its machines.

    Raises:
        InputError: A controller has the run, its journal is complete, or machines may still run.
    """
    run, pid = folder.path.name, controller_of(folder)
    if pid is not None:
        raise InputError(f"run {run} has a controller ({controller_words(pid)}); `ebbtide stop {run}` ends it")

    def end() -> str:
        ended = end_machines(folder, report=lambda line: typer.echo(line, err=True))
        return "; ".join([*ended.refused.values(), *([ended.problem] if ended.problem else [])])

    # Hold the run's lock: another controller's new journal would be moved aside.
    with controlling(folder.path):
        return go_on_from_storage(folder, end)
