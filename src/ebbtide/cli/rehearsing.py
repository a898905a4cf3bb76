"""`ebbtide rehearse`: interrupt a short copy of the user's own job, and measure the cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ebbtide.base.files import check_place, write_text
from ebbtide.base.json_values import json_text
from ebbtide.base.terminal import visible
from ebbtide.cli.option_groups import grouped
from ebbtide.cli.options import table_console
from ebbtide.cli.run_arguments import RunInput, TrainingOptions, wanted_from
from ebbtide.clouds.settings import RUNS
from ebbtide.errors import InputError
from ebbtide.market.catalogue import default_catalogue
from ebbtide.runs.rehearsal import RehearsalSettings, notice_of, rehearsable, rehearse
from ebbtide.runs.rehearsal_figures import Rehearsal


@dataclass(frozen=True)
class PlaceOptions:
    """Options for the provider of a rehearsal, and for EC2."""

    provider: Annotated[str, typer.Option(help="Whose machine is interrupted: local, or ec2.")] = "local"
    machines: Annotated[
        Path | None, typer.Option(metavar="FILE.yaml", help="For ec2: settings of machines, as for `run`.")
    ] = None
    fis_role: Annotated[
        str | None,
        typer.Option("--fis-role", metavar="ARN", help="For ec2: role of the Fault Injection Service."),
    ] = None
    budget_usd: Annotated[
        float | None,
        typer.Option("--budget-usd", metavar="USD", min=0.01, help="For ec2: the most that it may cost."),
    ] = None

    def check(self) -> None:
        """Raise `InputError` for options that cannot be combined."""
        if self.provider not in ("local", "ec2"):
            raise InputError(
                f"rehearsals run locally and on EC2, not on {self.provider}: write `--provider local`"
            )
        given = {"--machines": self.machines, "--fis-role": self.fis_role, "--budget-usd": self.budget_usd}
        if self.provider == "local" and (named := next((name for name, value in given.items() if value), None)):
            raise InputError(f"{named} is for --provider ec2; a rehearsal here needs none")
        if self.provider == "ec2" and self.fis_role is None:
            raise InputError("a rehearsal on EC2 needs --fis-role ARN, a role of the Fault Injection Service")


@dataclass(frozen=True)
class Timing:
    """Options for the times at which a rehearsal interrupts, and for its waits."""

    after_s: Annotated[
        float, typer.Option("--after-s", metavar="S", min=0.0, help="Seconds from the first step to the notice.")
    ] = 30.0
    notice_s: Annotated[
        float | None,
        typer.Option(
            "--notice-s", metavar="S", min=1.0, help="Length of the notice; by default as the job's billing says."
        ),
    ] = None
    patience_s: Annotated[
        float,
        typer.Option(
            "--patience-s", metavar="S", min=1.0, help="Longest time to wait for the first step and the next save."
        ),
    ] = 300.0

    def check(self) -> None:
        """Raise `InputError` if one of the times is not finite."""
        given = {"--after-s": self.after_s, "--notice-s": self.notice_s, "--patience-s": self.patience_s}
        for name, value in given.items():
            if value is not None and not math.isfinite(value):
                raise InputError(f"{name} is {value:g}; a number of seconds is needed, as in `{name} 30`")


@grouped
def rehearse_command(
    *,
    words: Annotated[
        list[str],
        typer.Argument(metavar="FILE.yaml | -- COMMAND...", help="A job or sweep; or, after --, the command."),
    ],
    place: PlaceOptions,
    timing: Timing,
    checkpoints: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder in which the program saves and from which it resumes."),
    ] = None,
    store: Annotated[
        str, typer.Option(help="Storage of checkpoints, as for `run`: what is stored there is left there.")
    ] = "",
    runs: Annotated[Path, typer.Option("--runs", metavar="FOLDER", help="Folder of the runs.")] = RUNS,
    as_json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the figures into this file, too.")
    ] = None,
) -> None:
    """Rehearse an interruption: what would be lost, how long saving takes, whether it fits the notice.

        ebbtide rehearse job.yaml
        ebbtide rehearse --checkpoints ckpt -- python train.py

    A short copy of the job trains here, its machine is revoked with a notice, and it resumes. With --provider ec2
    it trains on a spot machine, which EC2 takes by its Fault Injection Service. Exit code 1 where saving does not
    fit the notice, or more than the current step is lost.
    """
    place.check()
    timing.check()
    if as_json is not None:
        check_place(as_json)
    wanted = wanted_from(words, TrainingOptions(checkpoints=checkpoints), default_catalogue())
    try:
        if place.provider == "ec2":
            found = _on_ec2(wanted, place, timing, runs)
        else:
            sweep = rehearsable(wanted.sweep)
            notice_s = notice_of(wanted.sweep) if timing.notice_s is None else timing.notice_s
            settings = RehearsalSettings(timing.after_s, notice_s, timing.patience_s, runs, store)
            found = rehearse(sweep, wanted.folder, settings, _say)
    except InputError as error:
        # Only this function knows the file with the wrong field.
        if wanted.file is None or error.file is not None or error.field is None:
            raise
        raise InputError(error.problem, file=wanted.file, field=error.field) from None
    if as_json is not None:
        write_text(as_json, json_text(found.as_plain()))
    table_console().print(rehearsal_table(found))
    typer.echo(visible(found.verdict))
    if not found.is_good:
        raise typer.Exit(1)


def _on_ec2(wanted: RunInput, place: PlaceOptions, timing: Timing, runs: Path) -> Rehearsal:
    from ebbtide.clouds.ec2.interrupting import NOTICE_S, SpotInterruptions
    from ebbtide.clouds.providers import machines_of
    from ebbtide.runs.rehearsal_on_ec2 import rehearsable_on_ec2, rehearse_on_ec2

    if timing.notice_s is not None:
        raise InputError(f"EC2's notice is of {NOTICE_S:g} s: leave out --notice-s")
    interruptions = SpotInterruptions(place.fis_role or "")
    sweep = rehearsable_on_ec2(wanted.sweep, place.budget_usd)
    machines = machines_of("ec2", place.machines)["ec2"]
    settings = RehearsalSettings(timing.after_s, NOTICE_S, timing.patience_s, runs)
    return rehearse_on_ec2(sweep, wanted.folder, settings, machines, interruptions, _say)


def _say(line: str) -> None:
    typer.echo(visible(line), err=True)


def rehearsal_table(found: Rehearsal) -> Table:
    """Make a table of a rehearsal's figures; `-`: not known."""
    table = Table("", "", title="an interruption, rehearsed", show_header=False, title_justify="left")
    size = "-" if found.checkpoint_bytes is None else f"{found.checkpoint_bytes / 1e6:,.2f} MB"
    table.add_row("start of the program to its first step", _seconds(found.start_s))
    table.add_row("a step", _seconds(found.step_s, 3))
    table.add_row("size of the checkpoint", size)
    table.add_row("notice to checkpoint complete", _seconds(found.written_s))
    table.add_row("notice to checkpoint stored", _seconds(found.stored_s))
    for one in found.clouds:
        fits = "fits" if one.fits else "does not fit"
        table.add_row(f"the notice of {one.cloud}, {one.notice_s:g} s", f"{fits}: {one.used:.1%} of it used")
    table.add_row("steps done at the notice", _count(found.steps_at_notice))
    table.add_row("resumed from step", _count(found.steps_resumed))
    table.add_row(f"lost with a notice of {found.notice_s:g} s", _lost(found.steps_lost, found.work_lost_s))
    table.add_row("would be lost without one", _lost(found.steps_lost_without, found.work_lost_without_s))
    table.add_row("saved while it trains, every", _seconds(found.interval_s))
    table.add_row("order to the new machine to its first step", _seconds(found.restart_s))
    return table


def _seconds(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:,.{digits}f} s"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _lost(steps: int | None, work_s: float | None) -> str:
    if steps is None:
        return "-"
    work = "" if work_s is None else f", {work_s:,.2f} s of work"
    return f"{steps:,} step{'s' * (steps != 1)}{work}"
