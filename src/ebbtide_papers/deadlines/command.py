"""`ebbtide reproduce deadlines`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ebbtide.cli.options import to_be_written
from ebbtide.cli.progress import progress
from ebbtide_papers.deadlines.claims import reproduce_deadlines
from ebbtide_papers.deadlines.inputs import read_inputs
from ebbtide_papers.printing import show_reproduction
from ebbtide_papers.reproduction import sha256_of

# Number of starts with --quick.
_FEW_STARTS = 3


def command(
    traces: Annotated[
        list[Path],
        typer.Option(help="A table of availability, probes or capacity; or a folder of them and of prices."),
    ],
    starts: Annotated[int, typer.Option(min=1, help="Number of starts in each record.")] = 300,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the starts.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help=f"Only {_FEW_STARTS} starts.")] = False,
    json_path: Annotated[
        Path | None, typer.Option("--json", callback=to_be_written, help="File to write the claims to.")
    ] = None,
) -> None:
    """Deadlines where capacity decides: in one zone, and in several at once, against rivals and the optimum.

    The columns of a file show its kind. Prices for probes or capacity rounds are taken from the given files, and
    from the folder of the file.

    ebbtide reproduce deadlines --traces traces/ --json deadlines.json
    """
    count = _FEW_STARTS if quick else starts
    with progress("reading records") as state:
        given = read_inputs(traces)
        result = reproduce_deadlines(
            given, starts=count, seed=seed, inputs=sha256_of(given.files), on_progress=state.at
        )
    show_reproduction(result, "Deadlines", json_path)
    for why in dict.fromkeys(one.why for one in given.left_out):
        typer.echo(f"left out: {why}", err=True)
