"""The `ebbtide` command: its entry point, and how it ends when the input is bad."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from ebbtide.cli.availability import availability_app
from ebbtide.cli.backtesting import backtest_command
from ebbtide.cli.comparing import compare_command
from ebbtide.cli.cookbook import cookbook_app
from ebbtide.cli.curves import curves_app
from ebbtide.cli.fetching import fetch_command
from ebbtide.cli.planning import plan_command
from ebbtide.cli.portfolio import portfolio_command
from ebbtide.cli.prices import describe_command, ingest_command
from ebbtide.cli.reporting import report_command
from ebbtide.cli.reproducing import reproduce_app
from ebbtide.cli.revocation import revocation_app
from ebbtide.cli.running import resume_command, run_command
from ebbtide.cli.runs import down_command, logs_command, status_command, stop_command
from ebbtide.cli.watching import recommend_command, watch_command
from ebbtide.errors import InputError

# Typer carries a copy of click under a private name; this is its error for a command line that is wrong.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    name="ebbtide",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train models on cloud spot machines: ingest prices, backtest policies, report what each would cost.",
    epilog="Start with: ebbtide backtest examples/one-day.yaml --generate 60",
)
app.command("ingest")(ingest_command)
app.command("describe")(describe_command)
app.command("watch")(watch_command)
app.command("recommend")(recommend_command)
app.command("plan")(plan_command)
app.command("run")(run_command)
app.command("status")(status_command)
app.command("logs")(logs_command)
app.command("fetch")(fetch_command)
app.command("stop")(stop_command)
app.command("resume")(resume_command)
app.command("down")(down_command)
app.command("portfolio")(portfolio_command)
app.command("backtest")(backtest_command)
app.command("compare")(compare_command)
app.command("report")(report_command)
app.add_typer(availability_app, name="availability")
app.add_typer(revocation_app, name="revocation")
app.add_typer(curves_app, name="curves")
app.add_typer(cookbook_app, name="cookbook")
app.add_typer(reproduce_app, name="reproduce")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command. Bad input ends with exit code 2 and one line on standard error."""
    try:
        code = app(list(arguments) if arguments is not None else None, standalone_mode=False)
    except InputError as error:
        _fail(str(error))
    except _UsageError as error:
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
