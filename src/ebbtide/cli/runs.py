"""`ebbtide status`, `logs`, `stop`, `down`, `rm`: live runs, running or ended."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from ebbtide.base.terminal import visible
from ebbtide.cli.live_table import MOST_ROWS, answer_lines, machines, run_table, runs_table, state_line
from ebbtide.cli.options import table_console
from ebbtide.clouds.settings import (
    LATEST,
    RENTED,
    RUNS,
    UNREADABLE,
    RunFolder,
    UnreadableRun,
    find_run,
    known_runs,
)
from ebbtide.controller.journal.journal import journal_of
from ebbtide.controller.run_state import (
    ENDED,
    OVER,
    State,
    StopRequest,
    controller_of,
    controller_words,
    known_controller_of,
    phase_of,
    request_stop,
    state_now,
)
from ebbtide.engine.snapshot import lease_of
from ebbtide.errors import EbbtideError, InputError
from ebbtide.jobs.job_list import runnable
from ebbtide.runs.by_provider import end_machines
from ebbtide.runs.cost_summary import seconds
from ebbtide.runs.settling import settle
from ebbtide.runs.status import RunStanding, standing_of
from ebbtide.storage.checkpoints.tree import remove_tree

# Errors from reading a run whose files are damaged or not Ebbtide's: our own, and those of decoding.
_UNREADABLE = (EbbtideError, OSError, ValueError, TypeError, LookupError, AttributeError)
_FOLLOW_EVERY_S, _WATCH_EVERY_S = 0.3, 2.0
# States in which a run may look another way in a moment.
_CHANGING = frozenset({State.NEW, State.RUNNING, State.STOPPING})
# The end of a log's name, as `trial_id_of` and clusters write it: the trial, and the number of its machine.
_LOG_NAME = re.compile(r"-(\d+)(?:-([rw])(\d+))?$")
# Real seconds that `down` waits for a controller, which first saves and then ends its machines.
_CONTROLLER_ENDS_S = 45.0
_PRINT_EVERY_S = 5.0

RunArgument = Annotated[
    str | None, typer.Argument(metavar="RUN", help="A run's id, or `latest`; by default the newest.")
]
RunsOption = Annotated[Path, typer.Option("--runs", metavar="FOLDER", help="Folder of the runs.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def status_command(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="A run's id, or `latest`; by default all runs.")
    ] = None,
    runs: RunsOption = RUNS,
    as_json: JsonOption = False,
    every: Annotated[bool, typer.Option("--all", help=f"Show all trials, and not the first {MOST_ROWS}.")] = False,
    watch: Annotated[
        bool, typer.Option("-w", "--watch", help="Show it again every two seconds, until nothing runs.")
    ] = False,
) -> None:
    """Show all runs, or one in detail: state, trials, machines, cost and savings."""
    if watch and as_json:
        raise InputError("--watch is for people, --json for programs: give one of them")
    while True:
        alone = None if run is None else _standing(runs, run)
        found = _standings(known_runs(runs)) if alone is None else [alone]
        if as_json:
            plain = [one.as_plain() for one in found]
            typer.echo(json.dumps(plain if alone is None else plain[0], indent=2))
            return
        if watch:
            table_console().clear()
        if run is None or alone is None:
            _show_all(found)
        else:
            _show_one(find_run(runs, run), run, alone, every=every)
        if not watch or not any(isinstance(one, RunStanding) and one.state in _CHANGING for one in found):
            return
        time.sleep(_WATCH_EVERY_S)


def _standing(runs: Path, run: str) -> RunStanding:
    folder = find_run(runs, run)
    return standing_of(folder, folder.catalogue)


def _show_all(standings: Sequence[RunStanding | UnreadableRun]) -> None:
    table_console().print(runs_table(standings))
    for one in standings:
        if isinstance(one, UnreadableRun):
            typer.echo(visible(f"{one.run} {UNREADABLE}: {one.why}"))
    readable = [one for one in standings if isinstance(one, RunStanding)]
    if readable:
        typer.echo(f"`ebbtide status {readable[-1].run}` shows one in detail")


def _show_one(folder: RunFolder, run: str, standing: RunStanding, *, every: bool) -> None:
    if run == LATEST:
        typer.echo(_named(folder, run))
    if standing.trials:
        table_console().print(run_table(standing, None if every else MOST_ROWS))
    if standing.state in OVER:
        for line in answer_lines(standing):
            typer.echo(line)
    typer.echo(state_line(standing))


def logs_command(
    run: RunArgument = None,
    trial: Annotated[int | None, typer.Option(min=0, help="Only this trial.")] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Continue as more is printed.")] = False,
    last: Annotated[
        int | None, typer.Option("-n", "--lines", min=0, help="Begin with the last lines of each log.")
    ] = None,
    runs: RunsOption = RUNS,
) -> None:
    """Print the output of trials' programs; other machines of a job are [0-r1], workers of a cluster [0-w1]."""
    folder = find_run(runs, run)
    trials = len(runnable(folder.settings.sweep).job_names)
    if trial is not None and trial >= trials:
        has = f"trials 0 to {trials - 1}" if trials > 1 else "trial 0 alone"
        raise InputError(f"run {folder.path.name} has {has}, not {trial}")
    known: dict[Path, int] = {}
    while True:
        over = controller_of(folder) is None
        for (number, kind, machine), path in _logs(folder):
            if trial in (None, number):
                content = path.read_text(encoding="utf-8", errors="replace")
                if len(content) < known.get(path, 0):
                    known[path] = 0  # the log was rotated
                is_new = path not in known
                content = content[known.get(path, 0) :]
                known[path] = known.get(path, 0) + len(content)
                label = f"{number}-{kind}{machine}" if kind else f"{number}"
                lines = content.splitlines()
                for line in lines if last is None or not is_new else lines[max(len(lines) - last, 0) :]:
                    typer.echo(f"[{label}] {line}")
        if not follow or over:
            return
        time.sleep(_FOLLOW_EVERY_S)


def stop_command(run: RunArgument = None, runs: RunsOption = RUNS) -> None:
    """Stop a run: save everything, wait for uploads, and release its machines. It can be resumed later."""
    folder = find_run(runs, run)
    name = folder.path.name
    pid = controller_of(folder)
    if pid is None:
        state, _ = state_now(folder, phase_of(journal_of(folder, read_only=True)))
        raise InputError(_nothing_to_stop(name, _named(folder, run), state))
    request_stop(folder.path, StopRequest.STOP)
    requested = f"stop requested of {_named(folder, run)} (controller {controller_words(pid)})"
    typer.echo(f"{requested}; `ebbtide status {name}` shows how far it is")


def down_command(run: RunArgument = None, runs: RunsOption = RUNS) -> None:
    """End every machine of a run and its controller now; stored data stays. Exit code 1 if any still runs."""
    folder = find_run(runs, run)
    away = _journal_away(folder)
    had_controller = controller_of(folder) is not None
    open_before = _leases_open(folder)
    is_ended = _end_controller(folder)
    # The database may have gone away while a controller on another host was waited for.
    away = away or _journal_away(folder)
    open_after = _leases_open(folder)
    found = end_machines(folder, report=lambda line: typer.echo(f"{line}; requested again", err=True))
    untold = "" if found.problem or away else settle(folder, found.refused)
    given_back = found.ended
    if had_controller and is_ended:
        # The controller also releases machines that it rented just before the request.
        given_back += sum(not is_open for is_open in open_after) - sum(not is_open for is_open in open_before)
    done = ["controller ended" if is_ended else "controller still runs"] if had_controller else []
    left = f"{machines(len(found.refused))} left" if found.refused else "none left"
    done += [f"{machines(given_back)} given back", "it is not known how many are left" if found.problem else left]
    typer.echo(f"{_named(folder, run)}: {', '.join(done)}")
    for why in found.refused.values():
        typer.echo(why, err=True)
    if untold:
        typer.echo(f"its team's account could not be written, where its machines count on: {untold}", err=True)
    if found.problem:
        typer.echo(f"it is not known whether machines still run: {found.problem}", err=True)
    if away:
        again = f"`ebbtide down {folder.path.name}` once more when it answers"
        typer.echo(f"a controller on another host may still run and rent, {away}; {again}", err=True)
    if not (found.is_done and is_ended) or away:
        raise typer.Exit(1)


def rm_command(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's id.")], runs: RunsOption = RUNS
) -> None:
    """Remove the folder of a run that has ended: its journal, logs and key. Data in a bucket stays."""
    folder = find_run(runs, run)
    name, store = folder.path.name, folder.settings.store
    standing = standing_of(folder, folder.catalogue)
    if controller_of(folder) is not None or standing.state not in {*ENDED, State.REFUSED} or standing.unended:
        left = ", and machines may still run" if standing.unended else ""
        raise InputError(
            f"run {name} has not ended ({standing.state}{left}); `ebbtide down {name}` ends it and its machines"
        )
    # A name that no run has: what is left of an interrupted removal is no run any more.
    aside = folder.path.with_name(f".{name}.removed")
    remove_tree(aside)
    folder.path.rename(aside)
    remove_tree(aside)
    is_inside = Path(store).is_relative_to(folder.path)
    typer.echo(f"{name} removed{'' if is_inside else f'; what it stored stays in {store}'}")


def _journal_away(folder: RunFolder) -> str:
    """Reason why a controller on another host cannot be seen; empty: it would be, or there can be none."""
    settings = folder.settings
    if settings.provider not in RENTED or not settings.journal:
        # A controller here holds a lock in the run's folder, whatever its journal is like.
        return ""
    try:
        known_controller_of(folder)
    except EbbtideError as error:
        return str(error)
    return ""


def _logs(folder: RunFolder) -> list[tuple[tuple[int, str, int], Path]]:
    """Return the logs of a run: the trial's number, `r` or `w`, the machine's number, and the path of each.

    The trial's own log has no letter; other machines of a gang have `r` and their rank, workers of a cluster `w`.
    """
    found = []
    for path in (folder.path / "logs").glob("*.log"):
        named = _LOG_NAME.search(path.stem)
        if named is not None:
            trial, kind, machine = named.groups()
            found.append(((int(trial), kind or "", int(machine or 0)), path))
    return sorted(found)


def _standings(folders: Sequence[RunFolder]) -> list[RunStanding | UnreadableRun]:
    """Return the status of several runs, unreadable ones included."""
    found: list[RunStanding | UnreadableRun] = []
    for folder in folders:
        try:
            found.append(standing_of(folder, folder.catalogue))
        except _UNREADABLE as error:
            why = " ".join(str(error).split()) or type(error).__name__
            found.append(UnreadableRun(folder.path.name, why))
    return found


def _named(folder: RunFolder, asked: str | None) -> str:
    """Format a run's id, with its age if the id was not given, since a newer run may be about to begin."""
    if asked not in (None, LATEST):
        return folder.path.name
    began_s = time.time() - (folder.path / "run.json").stat().st_mtime
    return f"{folder.path.name} (the newest, begun {seconds(max(began_s, 0.0))} ago)"


def _leases_open(folder: RunFolder) -> list[bool]:
    """Return for each requested machine whether the run still has it; empty if the journal cannot be read."""
    kept = None
    with suppress(*_UNREADABLE):
        kept = journal_of(folder, read_only=True).run(decisions=False, metrics=False)
    return [lease_of(values).is_open for values in kept["engine"]["leases"]] if kept else []


def _end_controller(folder: RunFolder) -> bool:
    """End the run's controller, if one runs; returns whether it has ended."""
    name, began_s, next_print_s = folder.path.name, time.monotonic(), 0.0
    while (pid := controller_of(folder)) is not None:
        request_stop(folder.path, StopRequest.DOWN)
        waited_s, which = time.monotonic() - began_s, controller_words(pid)
        if waited_s >= _CONTROLLER_ENDS_S:
            typer.echo(
                f"the controller of {name} ({which}) does not end; `kill -9 {pid or 'PID'}` ends it, and "
                f"`ebbtide down {name}` once more whatever it rents meanwhile",
                err=True,
            )
            return False
        if waited_s >= next_print_s:
            typer.echo(f"waiting for the controller ({which}) to save and end, {waited_s:.0f} s", err=True)
            next_print_s += _PRINT_EVERY_S
        time.sleep(0.1)
    return True


def _nothing_to_stop(name: str, named: str, state: State) -> str:
    if state in OVER:
        return f"{named} has {state}; there is nothing to stop"
    if state is State.REFUSED:
        return f"{named} was {state}; there is nothing to stop"
    if state is State.GONE:
        return f"{named} has no controller that could stop it; `ebbtide down {name}` ends its machines"
    return f"{named} does not run: {state}; `ebbtide resume {name}` continues"
