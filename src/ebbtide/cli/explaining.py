"""`ebbtide why`: the decisions of a live run, with alternatives, reasons, expected and actual costs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ebbtide.base.json_values import finite
from ebbtide.base.terminal import visible
from ebbtide.base.utc import iso
from ebbtide.cli.options import table_console
from ebbtide.cli.runs import JsonOption, RunArgument, RunsOption
from ebbtide.clouds.settings import RUNS, SIMULATED, find_run
from ebbtide.engine.decisions import HELD, REQUESTED, Decision
from ebbtide.engine.explanation import Explanation, LeaseResult
from ebbtide.errors import InputError
from ebbtide.runs.cost_summary import seconds
from ebbtide.runs.why import lease_named, told_of

# Ratio of actual to expected cost above which the likely reasons are printed.
_FAR_MORE = 1.5
# Number of decisions on a page of the list.
_PAGE = 50


def why_command(
    run: RunArgument = None,
    lease: Annotated[
        str | None,
        typer.Argument(
            metavar="LEASE", help="A machine, such as 3 or m0003; by default all decisions are listed."
        ),
    ] = None,
    trial: Annotated[
        int | None, typer.Option(min=0, help="Only decisions about this trial: also why it was ended.")
    ] = None,
    decision: Annotated[
        int | None, typer.Option(min=1, metavar="NUMBER", help="The decision of this number in the list.")
    ] = None,
    page: Annotated[
        int | None,
        typer.Option(min=1, help=f"Page of the list, of {_PAGE} decisions each; 1, by default, has the newest."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="List all decisions on one page.")] = False,
    runs: RunsOption = RUNS,
    as_json: JsonOption = False,
) -> None:
    """Explain what a run decided: what was offered, what each was expected to cost and what it came to."""
    folder = find_run(runs, run)
    told = told_of(folder)
    if sum(one is not None for one in (lease, trial, decision)) > 1:
        raise InputError("give one of LEASE, --trial and --decision")
    if page is not None and (every or lease is not None or decision is not None):
        raise InputError("pages are of the list: give no LEASE, --decision or --all with it", field="--page")
    found: Sequence[Explanation]
    if lease is not None:
        found = told.of_lease(lease_named(folder, lease))
    elif decision is not None:
        found = told.numbered(decision)
    else:
        found = told.all() if trial is None else told.of_trial(trial)
    before, count = 0, len(found)
    # JSON, for programs, has all decisions; people get a page.
    if page is not None or (lease is None and trial is None and decision is None and not (every or as_json)):
        before, found = _page_of(found, page or 1)
    if as_json:
        typer.echo(json.dumps(finite([one.as_plain() for one in found]), indent=2))
        return
    if lease is None and trial is None and decision is None:
        if not found:
            is_old = "keeps no decisions: it is from before they were kept"
            typer.echo(f"run {folder.path.name} {is_old if told.leases else 'has decided nothing yet'}")
            return
        if folder.settings.provider in SIMULATED:
            typer.echo(f"provider {folder.settings.provider}: prices and costs are simulated")
        table_console().print(decisions_table(found))
        if len(found) < count:
            run_id = folder.path.name
            older = f"`ebbtide why {run_id} --page {(page or 1) + 1}` shows those before, " if before else ""
            typer.echo(
                f"decisions {before + 1:,} to {before + len(found):,} of {count:,}; {older}--all shows all of them"
            )
        typer.echo(
            f"`ebbtide why {folder.path.name} LEASE` explains one, such as `{_a_lease(found)}`; --trial and "
            "--decision NO show others"
        )
        return
    for number, one in enumerate(found):
        if number:
            typer.echo("")
        for part in explained(one):
            if isinstance(part, Table):
                table_console().print(part)
            else:
                typer.echo(visible(part))


def _page_of(found: list[Explanation], page: int) -> tuple[int, list[Explanation]]:
    """Return the number of decisions before a page, and the page; page 1 has the newest.

    Raises:
        InputError: There is no such page.
    """
    pages = max(math.ceil(len(found) / _PAGE), 1)
    if page > pages:
        raise InputError(f"the list has {'1 page' if pages == 1 else f'{pages:,} pages'}", field="--page")
    end = len(found) - (page - 1) * _PAGE
    return max(end - _PAGE, 0), found[max(end - _PAGE, 0) : end]


def decisions_table(found: Sequence[Explanation]) -> Table:
    """Make a table of decisions: time, decision, job, reason, expected and actual cost."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for heading in ("no", "time", "lease", "decided", "job", "why", "expected USD", "came to"):
        is_short = heading in ("no", "time", "lease")
        justify: Literal["left", "right"] = "right" if heading in ("no", "expected USD") else "left"
        least = 10 if heading in ("decided", "why", "came to") else None
        table.add_column(heading, justify=justify, no_wrap=is_short, min_width=least, overflow="fold")
    for one in found:
        made = one.decision
        table.add_row(
            str(one.number),
            iso(made.time_s),
            Text(_ids(made.lease_ids)),
            Text(_what(made)),
            Text(one.job),
            Text(made.why or "-"),
            _expected(made),
            Text("; ".join(map(_came_to, one.machines[:1])) or "-"),
        )
    return table


def explained(one: Explanation) -> Iterator[str | Table]:
    """Describe a decision in full, as lines and tables."""
    made = one.decision
    about = f" for {one.job}" if one.job else ""
    yield f"{iso(made.time_s)}: {_what(made)}{about}"
    yield f"why: {made.why or 'the policy gave no reason'}"
    if made.woken_by:
        yield f"asked because of: {', '.join(made.woken_by)}"
    known = [] if math.isnan(made.steps_left) or not made.has_steps else [f"{made.steps_left:g} steps left"]
    known += [] if math.isnan(made.spent_usd) else [f"{made.spent_usd:.4f} USD spent"]
    if known:
        yield f"then: {', '.join(known)}"
    if not made.has_steps and (made.alternatives or made.offered):
        yield "how many steps it has is not known: costs are for the work that what was chosen does in an hour"
    if made.alternatives:
        until = "until the job is done" if made.has_steps else "of that work"
        yield f"what the policy weighed (expected cost {until}):"
        yield _weighed(made)
    if made.offered:
        kept = f", the cheapest {len(made.offered)} of {made.markets}" if made.markets > len(made.offered) else ""
        yield f"what was offered{kept} ({'pure' if made.has_steps else 'that'} work at the prices of that moment):"
        yield _offers(made)
    for machine in one.machines:
        yield f"lease {machine.lease_id} came to: {_came_to(machine)}"
    if made.action == REQUESTED and one.later_machines > len(one.machines) and one.job:
        machines = f"{one.later_machines} machines requested for {one.job} from then on"
        yield f"{machines} cost {_usd(one.later_usd)} USD so far"
    yield from _error(one)


def _expected(made: Decision) -> str:
    """Format the chosen alternative's expected cost for the rest of the job; per hour if its length is unknown."""
    if made.chosen is None or math.isnan(made.chosen.expected_usd):
        return "-"
    return _usd(made.chosen.expected_usd) if made.has_steps else f"{_usd(made.chosen.expected_usd)} an hour"


def _error(one: Explanation) -> Iterator[str]:
    """Compare a job's cost since the decision with the cost expected for the rest of the job."""
    made = one.decision
    expected_usd = made.chosen.expected_usd if made.chosen is not None else math.nan
    if not made.has_steps or not 0.0 < expected_usd < math.inf or not one.later_usd > 0.0:
        return
    times = one.later_usd / expected_usd
    told = (
        f"expected {_usd(expected_usd)} USD for the rest of the job; it has cost {_usd(one.later_usd)} USD so far"
    )
    yield f"{told}, {times:.2g} times that"
    if times > _FAR_MORE:
        yield (
            "more than expected: speeds are estimated until they are measured, and starts, interruptions and the "
            "least time that a machine is charged for are paid as well"
        )


def _weighed(made: Decision) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for heading in ("", "choice", "market", "USD", "how"):
        table.add_column(heading, justify="right" if heading == "USD" else "left", overflow="fold")
    for one in made.alternatives:
        usd = "too late" if one.expected_usd == math.inf else _usd(one.expected_usd)
        market = "" if one.market is None else str(one.market)
        table.add_row("*" if one.is_chosen else "", Text(one.choice), Text(market), usd, Text(one.how))
    return table


def _offers(made: Decision) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for heading in ("", "market", "spot USD/h", "list USD/h", "work h", "spot USD", "list USD"):
        table.add_column(heading, justify="left" if heading in ("", "market") else "right", overflow="fold")
    for one in made.offered:
        listed = "-" if one.on_demand_usd_per_hour is None else f"{one.on_demand_usd_per_hour:.6f}"
        table.add_row(
            "*" if one.market == made.market else "",
            Text(str(one.market)),
            f"{one.spot_usd_per_hour:.6f}",
            listed,
            f"{one.work_h:.6f}",
            _usd(one.spot_usd),
            "-" if one.on_demand_usd is None else _usd(one.on_demand_usd),
        )
    return table


def _what(made: Decision) -> str:
    """Describe a decision in a few words."""
    if made.action == REQUESTED:
        count = "" if len(made.lease_ids) == 1 else f"{len(made.lease_ids)} x "
        most = made.max_price_usd_per_hour
        price = "at any price" if math.isinf(most) else f"at most {most:.4f} USD/h"
        return f"requested {count}{made.market}, {'on demand' if made.on_demand else price}"
    if made.market is not None:
        return f"{made.action} {_ids(made.lease_ids)}, {made.market}"
    return "waits" if made.action == HELD else made.action


def _came_to(machine: LeaseResult) -> str:
    if math.isnan(machine.started_s):
        return machine.state
    steps = f"{machine.steps:g} steps, " if machine.steps else ""
    refund = f" ({machine.refund_usd:.4f} refunded)" if machine.refund_usd else ""
    return f"{machine.state} after {seconds(machine.held_s)}, {steps}{_usd(machine.paid_usd)} USD{refund}"


def _ids(lease_ids: Sequence[int]) -> str:
    if len(lease_ids) > 3:
        return f"{lease_ids[0]}-{lease_ids[-1]}"
    return ", ".join(map(str, lease_ids))


def _a_lease(found: Sequence[Explanation]) -> int:
    return next((one.decision.lease_ids[0] for one in found if one.decision.lease_ids), 0)


def _usd(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.6f}"
