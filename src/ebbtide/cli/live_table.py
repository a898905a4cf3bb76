"""Text output of a live run: a table of trials, costs, warnings, and the final result."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ebbtide.clouds.settings import UNREADABLE, UnreadableRun
from ebbtide.controller.run_state import OVER, State
from ebbtide.policies.parameters import parameters_text
from ebbtide.runs.cost_summary import seconds
from ebbtide.runs.status import RunStanding, TrialStanding

_TAIL_LINES = 6
# Default maximum of rows in a run's table.
MOST_ROWS = 50


def run_table(standing: RunStanding, most: int | None = MOST_ROWS) -> RenderableType:
    """Make a table of trials, the best first, with policy, machines, costs and warnings below it.

    Args:
        standing: Status of the run.
        most: Maximum number of trials with a row; None: all. The others are counted by state.
    """
    shown = standing.trials[:most]
    parts: list[RenderableType] = [_trials(standing, shown)] if shown else []
    if len(shown) < len(standing.trials):
        parts.append(Text(_rest_words(standing.trials[most:], standing.run)))
    policy = f"policy {policy_words(standing.policy, standing.parameters)}"
    lines = (policy, f"provider {provider_words(standing)}", *_money_lines(standing))
    parts += [Text(line) for line in (*lines, *warning_lines(standing))]
    return Group(*parts)


def runs_table(standings: Sequence[RunStanding | UnreadableRun]) -> Table:
    """Make a table of all runs, the newest last, with machines' current cost if any are rented."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    rented = any(one.rented for one in standings if isinstance(one, RunStanding))
    now = ("machines", "USD/h now") if rented else ()
    for heading in ("run", "state", "provider", "trials", "best", *now, "cost USD", "elapsed", "rest"):
        named = heading in ("run", "state")
        table.add_column(heading, justify="left" if named else "right", no_wrap=named, overflow="fold")
    for one in standings:
        if isinstance(one, UnreadableRun):
            table.add_row(Text(one.run), Text(UNREADABLE), *["-"] * (len(table.columns) - 2))
            continue
        best = one.best
        machines = (str(one.rented), f"{one.money.usd_per_hour:.4f}" if one.rented else "-") if rented else ()
        table.add_row(
            Text(one.run),
            Text(state_words(one)),
            Text(provider_words(one)),
            f"{one.done}/{len(one.trials)}" if one.trials else "-",
            "-" if best is None or best.best is None else f"{best.best:.4g}",
            *machines,
            f"{one.money.paid_usd:.4f}",
            seconds(one.elapsed_s) if one.elapsed_s else "-",
            "-" if one.rest_s is None else f"~{seconds(one.rest_s)}",
        )
    return table


def policy_words(policy: str, parameters: Mapping[str, Any]) -> str:
    """Format a policy's name, with the parameters that differ from its defaults."""
    return f"{policy} ({parameters_text(parameters)})" if parameters else policy


def provider_words(standing: RunStanding) -> str:
    """Format the name of a run's provider, marked if it is simulated."""
    return f"{standing.provider} (simulated)" if standing.is_simulated else standing.provider


def machines(number: int) -> str:
    """Format a number of machines."""
    return "1 machine" if number == 1 else f"{number} machines"


def state_words(standing: RunStanding) -> str:
    """Format the state of a run, with the process id of its controller."""
    if standing.pid:
        return f"{standing.state} (pid {standing.pid})"
    return str(standing.state)


def state_line(standing: RunStanding) -> str:
    """Describe the state of a run in a sentence, with the commands to continue or end it."""
    run, why = standing.run, f": {standing.why}" if standing.why and standing.state is not State.STOPPED else ""
    match standing.state:
        case State.RUNNING | State.STOPPING:
            return f"{state_words(standing)}"
        case State.NEW:
            return f"{run} has not begun yet"
        case State.GONE:
            may = f"{machines(standing.rented)} may run for a while" if standing.rented else "no machine runs"
            return f"controller gone, and {may}; `ebbtide resume {run}` continues, `ebbtide down {run}` ends them"
        case State.LOST:
            return (
                f"{standing.state}{why}: a controller of it has begun, and its journal records no machine; "
                f"`ebbtide resume {run} --from-storage` goes on from its checkpoints, `ebbtide down {run}` ends "
                "its machines"
            )
        case State.FINISHED:
            return "finished"
        case State.FAILED:
            return f"failed: {len(standing.failed)} of {len(standing.trials)} trials"
        case State.ELSEWHERE:
            # The reason of the refusal says where the run continues.
            return f"{standing.state}{why}"
        case State.REFUSED:
            return f"{standing.state}, and nothing was rented{why}"
        case State.DOWN:
            return f"down: its machines were ended; `ebbtide resume {run}` continues"
    return f"{standing.state}{why}; `ebbtide resume {run}` continues"


def answer_lines(standing: RunStanding) -> Iterator[str]:
    """Describe the result of a run: the best trial, its checkpoint's location, and failed trials with reasons."""
    best = standing.best
    if best is not None:
        setting = f" ({best.setting})" if best.setting else ""
        if standing.metric is not None and best.best is not None:
            last = "" if best.last == best.best or best.last is None else f" (last {best.last:.6g})"
            value = f"{standing.metric} {best.best:.6g} at step {best.best_step}{last}"
            yield f"best: trial {best.number}{setting}, {value}"
        elif len(standing.trials) > 1:
            yield f"trial {best.number}{setting}"
        if best.checkpoint and standing.tasks is None:
            at = f" (step {best.steps_saved:g})" if best.steps_saved else ""
            if best.steps_saved and best.kept is None and best.best_step not in (None, best.steps_saved):
                at = f" (step {best.steps_saved:g}; that of step {best.best_step} is not kept)"
            fetch = f"`ebbtide fetch {standing.run}` downloads it"
            if best.kept is not None and best.kept_step != best.steps_saved:
                yield (
                    f"its best checkpoint (step {best.kept_step}, {standing.metric} {best.kept:.6g}): "
                    f"{best.checkpoint}; {fetch}, and with --newest that of step {best.steps_saved:g}"
                )
            else:
                yield f"its newest checkpoint{at}: {best.checkpoint}; {fetch}"
        elif standing.state in OVER and standing.tasks is None:
            yield f"it has stored no checkpoint; `ebbtide fetch {standing.run}` downloads what is in its folder"
    if standing.tasks is not None and standing.trials:
        (array,) = standing.trials
        done = f"{array.steps_done or 0:,.0f} of {standing.tasks:,} results"
        yield f"{done}: {array.checkpoint or 'none'}; `ebbtide fetch {standing.run}` downloads them"
    if standing.jobs is not None:
        for trial in standing.trials:
            yield f"{trial.setting}: {trial.state}{', ' * bool(trial.checkpoint)}{trial.checkpoint}"
        if any(trial.checkpoint for trial in standing.trials):
            yield f"`ebbtide fetch {standing.run}` downloads what they have stored"
    for trial in standing.failed:
        yield trial.failure
        yield from (f"    {line}" for line in trial.tail[-_TAIL_LINES:])


def warning_lines(standing: RunStanding) -> Iterator[str]:
    """Yield warnings, each once with its trials, and machines that cannot be ended."""
    about: dict[str, list[int]] = {}
    for trial in sorted(standing.trials, key=lambda trial: trial.number):
        for warning in trial.warnings:
            about.setdefault(warning, []).append(trial.number)
    for warning, numbers in about.items():
        who = "all trials" if len(numbers) == len(standing.trials) > 1 else f"trial {', '.join(map(str, numbers))}"
        yield f"warning: {who}: {warning}"
    if standing.late_s:
        yield f"warning: its deadline of {standing.deadline_h:g} h is missed by {seconds(standing.late_s)}"
    if standing.quarantined:
        yield (
            f"warning: {standing.quarantined} messages in storage could not be read, or were not sealed by their "
            "machine; they are set aside and counted for nothing"
        )
    for name, why in standing.unended.items():
        yield f"warning: machine {name} still runs and costs: {why}" if name not in why else f"warning: {why}"


def _rest_words(rest: Sequence[TrialStanding], run: str) -> str:
    states = Counter(trial.state for trial in rest)
    words = ", ".join(f"{count:,} {state}" for state, count in states.most_common())
    return f"and {len(rest):,} more trials: {words}; `ebbtide status {run} --all` shows them"


def _trials(standing: RunStanding, trials: Sequence[TrialStanding]) -> Table:
    metric = standing.metric or ""
    table = Table(title=Text(standing.run), box=SIMPLE_HEAD)
    headings = [
        "trial",
        "setting",
        "steps",
        "saved",
        *([f"best {metric}", "last"] if metric else []),
        "state",
        "machine",
    ]
    for heading in headings:
        table.add_column(Text(heading), justify="left" if heading in ("setting", "state", "machine") else "right")
    for trial in trials:
        values = [_number(trial.best), _number(trial.last)] if metric else []
        row = [
            str(trial.number),
            trial.setting,
            _steps(trial.steps_done),
            _steps(trial.steps_saved),
            *values,
            _trial_words(trial),
            trial.machine,
        ]
        table.add_row(*(Text(cell) for cell in row))
    return table


def _trial_words(trial: TrialStanding) -> str:
    silent = ["no metric"] if any("never reported" in warning for warning in trial.warnings) else []
    if trial.steps_saved is None and any("saved nothing" in warning for warning in trial.warnings):
        silent.append("nothing saved")
    return f"{trial.state} ({', '.join(silent)})" if silent and trial.state != "failed" else trial.state


def _money_lines(standing: RunStanding) -> Iterator[str]:
    now = f", {standing.money.usd_per_hour:.4f} USD/h now" if standing.rented else ""
    if standing.rented or standing.state in (State.NEW, State.RUNNING):
        yield f"{machines(standing.rented)} rented{now}; {_times_revoked(standing)}"
    else:
        yield f"rented {machines(standing.rented_ever)} in all, none now; {_times_revoked(standing)}"
    rest = "" if standing.rest_s is None else f", about {seconds(standing.rest_s)} left at most"
    yield standing.money.in_words(simulated=standing.is_simulated)
    if standing.requests_usd_estimate:
        yield f"requests to storage: about {standing.requests_usd_estimate:.4f} USD more (an estimate)"
    if standing.unknown:
        yield standing.unknown
    if standing.elapsed_s:
        yield f"elapsed {seconds(standing.elapsed_s)}{rest}"


def _times_revoked(standing: RunStanding) -> str:
    return "revoked once" if standing.revoked == 1 else f"revoked {standing.revoked} times"


def _steps(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _number(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.4g}"
