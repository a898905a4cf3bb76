"""A live run in the foreground: the controller with a table that is alive; Ctrl-C or SIGTERM stops it."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.live import Live

from ebbtide._terminal import PlainConsole
from ebbtide.cli.live_table import answer_lines, run_table, state_line, warning_lines
from ebbtide.cli.options import table_console
from ebbtide.engine.snapshot import snapshot
from ebbtide.errors import CloudGoneError, InputError
from ebbtide.jobs.sweep import Sweep
from ebbtide.live.journal import Journal
from ebbtide.live.phase import State, StopRequest, controller_pid, phase_of, request_stop
from ebbtide.live.runs import run_live
from ebbtide.live.settings import RunFolder
from ebbtide.live.standing import RunStanding, standing, standing_of
from ebbtide.market.catalogue import default_catalogue
from ebbtide.policies.api.protocol import Policy

if TYPE_CHECKING:
    from ebbtide.engine.engine import Engine
    from ebbtide.live.agent_provider import AgentProvider

_LOGGER = logging.getLogger(__name__)

_TABLE_EVERY_S = 0.5
# A controller that does not look up within so long after Ctrl-C hangs in its policy or in a library.
_LOOKS_UP_WITHIN_S = 15.0
_INTERRUPTED = 130


# Each stops the run: Ctrl-C, `kill` and service managers, a terminal that closes.
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Ctrl-C, SIGTERM or a lost terminal while a controller runs stops it; Ctrl-C after that ends it at once.

    Args:
        folder: Of the run.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._runs = False
        self._asked_s: float | None = None
        self._looked_s = 0.0
        self._terminals = [number for number in (1, 2) if os.isatty(number)]

    @property
    def is_asked(self) -> bool:
        """Whether it was asked to stop."""
        return self._asked_s is not None

    def looked(self) -> None:
        """The controller has come round."""
        self._runs, self._looked_s = True, time.monotonic()

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """While this lasts; then signals do what they did before."""
        # Whoever started us under `nohup` wants a lost terminal to be ignored.
        heeded = [number for number in _STOPPING if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._asked) for number in heeded}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _asked(self, number: int, *_: object) -> None:
        if number == signal.SIGHUP:
            self._leave_terminal()
        if not self._runs:
            raise KeyboardInterrupt  # nothing is rented yet
        if self._asked_s is not None:
            # `timeout` and terminals that close signal more than once, which is no haste.
            if number == signal.SIGINT:
                self._end_at_once("interrupted twice")
            return
        self._asked_s = time.monotonic()
        request_stop(self._folder.path, StopRequest.STOP)
        again = "Ctrl-C again ends" if number == signal.SIGINT else f"`kill -INT {os.getpid()}` ends"
        _say(f"\nstopping: everything is saved and given back; {again} at once\n")
        watch = threading.Timer(_LOOKS_UP_WITHIN_S, self._check)
        watch.daemon = True
        watch.start()

    def _leave_terminal(self) -> None:
        """It is gone: writing to it would fail in the midst of saving."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for number in self._terminals:
            os.dup2(nowhere, number)
        os.close(nowhere)

    def _check(self) -> None:
        if self._asked_s is not None and self._looked_s < self._asked_s:
            self._end_at_once(f"the controller has not looked up for {_LOOKS_UP_WITHIN_S:.0f} s")

    def _end_at_once(self, why: str) -> None:
        run = self._folder.path.name
        words = (
            f"\n{why}: ended. Its machines save and end themselves when they miss their controller; "
            f"`ebbtide down {run}` ends them now, `ebbtide resume {run}` goes on\n"
        )
        _say(words)
        # Whatever hangs in this process, nothing of it is needed: the journal is whole at any instant.
        os._exit(_INTERRUPTED)


def _say(words: str) -> None:
    """From a signal handler, to standard error if there still is one."""
    with suppress(OSError):
        os.write(2, words.encode())


def run_in_foreground(folder: RunFolder, policy: Policy, sweep: Sweep, track: str = "") -> None:
    """Run it in the foreground, with a table that is alive; Ctrl-C stops it.

    Raises:
        InputError: It cannot go on.
        typer.Exit: With 1: trials failed, or machines could not be ended; with 130: it was stopped.
    """
    run, catalogue = folder.path.name, default_catalogue()
    pid = controller_pid(folder.path)
    if pid is not None:
        raise InputError(f"run {run} has a controller already (pid {pid}); `ebbtide status {run}` shows it")
    if track:
        from ebbtide.analysis.live_tracking import begin_tracking

        # Programs run elsewhere: what is a path is to be one from everywhere.
        file = track.removeprefix("sqlite:///")
        uri = track if file == track else f"sqlite:///{Path(file).resolve()}"
        begin_tracking(folder, uri, folder.path / "mlflow")
    elif _is_tracked(folder):
        from ebbtide.analysis.live_tracking import resume_tracking

        resume_tracking(folder)
    count = len(sweep.trials())
    typer.echo(f"run {run} ({count} trials)" if count > 1 else f"run {run}")
    typer.echo(f"  ebbtide status {run}    ebbtide logs -f {run}    ebbtide stop {run}    ebbtide down {run}")
    console = PlainConsole()
    interrupts = Interrupts(folder)
    with Live(console=console, refresh_per_second=4, transient=True) as live, interrupts.heeded():
        shown_s = 0.0

        def looked(engine: Engine, provider: AgentProvider) -> None:
            nonlocal shown_s
            interrupts.looked()
            if console.is_terminal and time.monotonic() - shown_s > _TABLE_EVERY_S:
                shown_s = time.monotonic()
                live.update(run_table(_now(folder, engine, provider)))

        try:
            outcome = run_live(folder, policy, looked)
        except CloudGoneError as error:
            _abandon_tracking(folder, error)
            raise CloudGoneError(f"{error}; `ebbtide resume {run}` goes on with a new one") from None
        except BaseException as error:
            _abandon_tracking(folder, error)
            raise
    if _is_tracked(folder):
        from ebbtide.analysis.live_tracking import end_tracking

        end_tracking(folder, outcome)
    found = standing_of(folder, catalogue)
    table_console().print(run_table(found))
    for line in answer_lines(found):
        typer.echo(line)
    typer.echo(state_line(found))
    _end(found)


def _is_tracked(folder: RunFolder) -> bool:
    return Journal(folder.journal, read_only=True).state("tracking") is not None


def _abandon_tracking(folder: RunFolder, error: BaseException) -> None:
    """MLflow must not show as running what is over; where it cannot be told, the run's own error still is."""
    try:
        if _is_tracked(folder):
            from ebbtide.analysis.live_tracking import abandon_tracking

            abandon_tracking(folder, " ".join(str(error).split()) or type(error).__name__)
    except Exception as trouble:
        _LOGGER.warning("MLflow is not told that the run ended: %s", trouble)


def _now(folder: RunFolder, engine: Engine, provider: AgentProvider) -> RunStanding:
    """As the controller in this process has it at this moment."""
    journal = Journal(folder.journal, read_only=True)
    kept = {"engine": snapshot(engine), "provider": provider.snapshot()}
    return standing(
        folder.settings,
        kept,
        journal.state("figures"),
        phase_of(journal),
        State.RUNNING,
        os.getpid(),
        {},
        default_catalogue(),
    )


def _end(found: RunStanding) -> None:
    """The exit code is the answer to a script."""
    if found.unended:
        sys.stderr.write("".join(f"{line}\n" for line in warning_lines(found) if "machine" in line))
        sys.stderr.write(
            f"{len(found.unended)} machines could not be ended; `ebbtide down {found.run}` tries again\n"
        )
        raise typer.Exit(1)
    match found.state:
        case State.FINISHED:
            return
        case State.STOPPED | State.DOWN:
            raise typer.Exit(_INTERRUPTED)
        case State.GAVE_UP if not found.why:
            raise InputError(
                f"run {found.run} did not finish: the record of prices is over; `ebbtide status {found.run}` "
                "shows more"
            )
    raise typer.Exit(1)
