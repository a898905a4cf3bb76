"""The `ebbtide` command: its entry point."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

import ebbtide
from ebbtide.cli.commands import VerbGroup
from ebbtide.cli.exit_codes import INTERRUPTED, end_with

app = typer.Typer(
    name="ebbtide",
    cls=VerbGroup,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    help="Train models on cloud spot machines: choose what to rent, save before an interruption, resume.",
    epilog="Start with: ebbtide demo. All commands: ebbtide --commands",
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"ebbtide {ebbtide.__version__}")
        raise typer.Exit


def _commands(ctx: typer.Context, asked: bool) -> None:
    if asked:
        assert isinstance(ctx.command, VerbGroup)
        typer.echo(ctx.command.help_of_all(ctx))
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
    commands: Annotated[
        bool, typer.Option("--commands", callback=_commands, is_eager=True, help="List all commands, and end.")
    ] = False,
) -> None:
    """Options of `ebbtide` itself."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command. Errors end with one line on standard error (see `ebbtide.cli.exit_codes`)."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # File names may contain bytes that are not valid in any encoding.
            stream.reconfigure(errors="backslashreplace")
    try:
        code = app(list(arguments) if arguments is not None else None, standalone_mode=False, prog_name="ebbtide")
        # Flush here, so that a full disk or a closed reader can still be reported.
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:
        end_with(error)
    if code == INTERRUPTED:
        # Typer turns an interrupt into this code, without a message.
        end_with(KeyboardInterrupt())
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
