"""The `ebbtide` command: its entry point, and how it ends when the input is bad."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

import ebbtide
from ebbtide.cli.commands import VerbGroup
from ebbtide.errors import InputError

# Typer carries a copy of click under a private name; this is its error for a command line that is wrong.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    name="ebbtide",
    cls=VerbGroup,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    help="Train models on cloud spot machines: ingest prices, backtest policies, report what each would cost.",
    epilog="Start with: ebbtide demo",
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"ebbtide {ebbtide.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Options of the command itself."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command. Bad input ends with exit code 2 and one line on standard error."""
    try:
        code = app(list(arguments) if arguments is not None else None, standalone_mode=False)
    except InputError as error:
        _fail(str(error))
    except _UsageError as error:
        if not str(error):
            # Nothing was asked for, and the help is printed.
            sys.exit(2)
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "ebbtide"
        _fail(f"{' '.join(error.format_message().split())} (see `{command} --help`)")  # type: ignore[attr-defined]
    except (typer.Abort, KeyboardInterrupt):
        sys.stderr.write("interrupted\n")
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read our output, such as `head`, has seen enough.
        sys.stderr.close()
        sys.exit(0)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(problem: str) -> None:
    sys.stderr.write(f"ebbtide: {problem}\n")
    sys.exit(2)


if __name__ == "__main__":
    main()
