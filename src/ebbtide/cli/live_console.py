"""Run a live run in the foreground, with a live table; Ctrl-C or SIGTERM stops it."""

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

from ebbtide.base.terminal import PlainConsole
from ebbtide.cli.live_table import answer_lines, run_table, state_line, warning_lines
from ebbtide.cli.options import table_console
from ebbtide.clouds.settings import RunFolder
from ebbtide.controller import progress_news
from ebbtide.controller.journal.journal import journal_of
from ebbtide.controller.run_state import (
    State,
    StopRequest,
    controller_of,
    controller_words,
    phase_of,
    request_stop,
    requested_stop,
)
from ebbtide.controller.snapshots import RunSnapshot
from ebbtide.engine.snapshot import snapshot
from ebbtide.errors import CloudGoneError, InputError, JournalAwayError, JournalError
from ebbtide.jobs.job_list import Runnable
from ebbtide.policies.api.protocol import Policy
from ebbtide.runs.by_provider import run_live
from ebbtide.runs.status import RunStanding, standing, standing_of

if TYPE_CHECKING:
    from ebbtide.controller.agent_provider import AgentProvider
    from ebbtide.engine.engine import Engine
    from ebbtide.market.catalogue import Catalogue

_LOGGER = logging.getLogger(__name__)

_TABLE_EVERY_S = 0.5
# A policy that has not answered for this long after a stop request hangs; the process is then ended.
_LOOKS_UP_WITHIN_S = 8.0
_WATCH_S = 0.25
_INTERRUPTED = 130


# Signals that stop the run: Ctrl-C, `kill` and service managers, a closed terminal.
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Signal handlers: Ctrl-C, SIGTERM or SIGHUP stops the controller; a second Ctrl-C ends it at once.

    Args:
        folder: Folder of the run.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._runs = False
        self._asked_s: float | None = None
        self._looked_s = 0.0
        self._engine: Engine | None = None
        self._terminals = [number for number in (1, 2) if os.isatty(number)]

    @property
    def is_asked(self) -> bool:
        """True if a stop was requested."""
        return self._asked_s is not None

    def looked(self, engine: Engine) -> None:
        """Record that the controller has begun a round."""
        self._runs, self._looked_s, self._engine = True, time.monotonic(), engine

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Handle the signals within the block, then restore the previous handlers."""
        # `nohup` ignores SIGHUP, which must stay ignored.
        heeded = [number for number in _STOPPING if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._asked) for number in heeded}
        ended = threading.Event()
        threading.Thread(target=self._watch, args=(ended,), daemon=True).start()
        try:
            yield
        finally:
            ended.set()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _asked(self, number: int, *_: object) -> None:
        if number == signal.SIGHUP:
            self._leave_terminal()
        if not self._runs:
            raise KeyboardInterrupt  # no machine is rented yet
        if self._asked_s is not None:
            # `timeout` and closing terminals send several signals; only a second Ctrl-C means "at once".
            if number == signal.SIGINT:
                self._end_at_once("interrupted twice")
            return
        self._asked_s = time.monotonic()
        try:
            request_stop(self._folder.path, StopRequest.STOP)
        except OSError as error:
            self._end_at_once(f"the request to stop cannot be left: {error}")
        again = "Ctrl-C again ends" if number == signal.SIGINT else f"`kill -INT {os.getpid()}` ends"
        _say(f"\nstopping: everything is saved and given back; {again} at once\n")

    def _leave_terminal(self) -> None:
        """Redirect the output of a closed terminal: a failed write could break a save."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for number in self._terminals:
            os.dup2(nowhere, number)
        os.close(nowhere)

    def _watch(self, ended: threading.Event) -> None:
        """End the process if a policy hangs after a stop request, whatever the source of the request."""
        requested_s: float | None = None
        while not ended.wait(_WATCH_S):
            now_s = time.monotonic()
            if requested_stop(self._folder.path) is None:
                requested_s = None
            elif requested_s is None:
                requested_s = now_s
            elif self._engine is None or not self._engine.asks:
                continue  # cloud and storage answer, or fail, within seconds
            elif now_s - max(requested_s, self._looked_s) >= _LOOKS_UP_WITHIN_S:
                self._end_at_once(f"the policy has not answered for {_LOOKS_UP_WITHIN_S:.0f} s")

    def _end_at_once(self, why: str) -> None:
        run = self._folder.path.name
        words = (
            f"\n{why}: ended. Its machines save and end themselves when they miss their controller; "
            f"`ebbtide down {run}` ends them now, `ebbtide resume {run}` continues\n"
        )
        _say(words)
        # Exit without cleanup: the journal is consistent at any time.
        os._exit(_INTERRUPTED)


def _say(words: str) -> None:
    """Write to standard error from a signal handler, if it is still open."""
    with suppress(OSError):
        os.write(2, words.encode())


def run_in_foreground(folder: RunFolder, policy: Policy, work: Runnable, track: str = "") -> None:
    """Run a live run in the foreground, with a live table; Ctrl-C stops it.

    Raises:
        InputError: The run cannot continue.
        typer.Exit: With code 1 if trials failed or machines could not be ended, with 130 if it was stopped.
    """
    run, catalogue = folder.path.name, folder.catalogue
    pid = controller_of(folder)
    if pid is not None:
        raise InputError(
            f"run {run} has a controller already ({controller_words(pid)}); `ebbtide status {run}` shows it"
        )
    if track:
        from ebbtide.tracking.live_tracking import begin_tracking

        # Programs run in other folders, so the path must be absolute.
        file = track.removeprefix("sqlite:///")
        uri = track if file == track else f"sqlite:///{Path(file).resolve()}"
        begin_tracking(folder, uri, folder.path / "mlflow")
    elif _is_tracked(folder):
        from ebbtide.tracking.live_tracking import resume_tracking

        resume_tracking(folder)
    count = len(work.job_names)
    typer.echo(f"run {run} ({work.in_words})" if count > 1 else f"run {run}")
    typer.echo(f"  ebbtide status {run}    ebbtide logs -f {run}    ebbtide stop {run}    ebbtide down {run}")
    progress_news.show()
    console = PlainConsole()
    interrupts = Interrupts(folder)
    with Live(console=console, refresh_per_second=4, transient=True) as live, interrupts.heeded():
        shown_s = 0.0

        def looked(engine: Engine, provider: AgentProvider) -> None:
            nonlocal shown_s
            interrupts.looked(engine)
            if console.is_terminal and time.monotonic() - shown_s > _TABLE_EVERY_S:
                shown_s = time.monotonic()
                # If the journal's server does not answer, the table stays as it is; the controller itself waits.
                with suppress(JournalError):
                    live.update(run_table(_now(folder, engine, provider, catalogue)))

        try:
            with _followed(folder):
                run_live(folder, policy, looked)
        except CloudGoneError as error:
            _abandon_tracking(folder, error)
            raise CloudGoneError(f"{error}; `ebbtide resume {run}` continues with a new one") from None
        except BaseException as error:
            _abandon_tracking(folder, error)
            raise
    try:
        is_tracked = _is_tracked(folder)
    except JournalError as error:
        is_away = isinstance(error, JournalAwayError)
        _say(
            f"run {run} has ended, but its journal can be neither written nor read ({error}): "
            f"{'start its server' if is_away else 'make room on the disk'}; "
            f"`ebbtide down {run}` sees that no machine is left, `ebbtide resume {run}` continues\n"
        )
        raise typer.Exit(os.EX_UNAVAILABLE if is_away else os.EX_IOERR) from None
    if is_tracked:
        from ebbtide.tracking.live_tracking import end_tracking

        end_tracking(folder)
    found = standing_of(folder, catalogue)
    table_console().print(run_table(found))
    for line in answer_lines(found):
        typer.echo(line)
    typer.echo(state_line(found))
    _end(found)


def _is_tracked(folder: RunFolder) -> bool:
    return journal_of(folder, read_only=True).state("tracking") is not None


@contextmanager
def _followed(folder: RunFolder) -> Iterator[None]:
    """Report the run to MLflow within the block, if the run is tracked."""
    if not _is_tracked(folder):
        yield
        return
    from ebbtide.tracking.live_tracking import followed

    with followed(folder):
        yield


def _abandon_tracking(folder: RunFolder, error: BaseException) -> None:
    """Mark the run as ended in MLflow; if that fails, the run's own error is still raised."""
    try:
        if _is_tracked(folder):
            from ebbtide.tracking.live_tracking import abandon_tracking

            abandon_tracking(folder, " ".join(str(error).split()) or type(error).__name__)
    except Exception as trouble:
        _LOGGER.warning("MLflow does not know that the run ended: %s", trouble)


def _now(folder: RunFolder, engine: Engine, provider: AgentProvider, catalogue: Catalogue) -> RunStanding:
    """Return the current status of the run, from this process's controller."""
    journal = journal_of(folder, read_only=True)
    kept: RunSnapshot = {"engine": snapshot(engine), "provider": provider.snapshot()}
    return standing(
        folder.settings,
        kept,
        journal.figures(),
        phase_of(journal),
        State.RUNNING,
        os.getpid(),
        {},
        catalogue,
    )


def _end(found: RunStanding) -> None:
    """End the command with the exit code for the run's state."""
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
