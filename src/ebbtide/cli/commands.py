"""The commands of `ebbtide`. Each is imported only when it is called, so completion and --version are fast."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.abc import InspectLoader
from importlib.util import find_spec
from typing import Any, Literal, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import ArgumentInfo, OptionInfo

from ebbtide.cli.completing import complete_billing, complete_policies, complete_policy, complete_runs

# Shell completions by option or argument, for all commands.
_COMPLETIONS: dict[str, Callable[[str], list[str]]] = {
    "--policies": complete_policies,
    "--policy": complete_policy,
    "--billing": complete_billing,
    "run": complete_runs,
}


@dataclass(frozen=True)
class Verb:
    """A command or a group of commands.

    Attributes:
        name: Name on the command line.
        module: Module in `ebbtide.cli`, or a dotted name in another package.
        attribute: Name in the module: a function, or a `typer.Typer` for a group.
        panel: Heading that it is listed under.
    """

    name: str
    module: str
    attribute: str
    panel: str

    @property
    def _module(self) -> str:
        return self.module if "." in self.module else f"ebbtide.cli.{self.module}"

    def about(self) -> str:
        """Return the first paragraph of its help, read from the source, so that listing needs no imports."""
        spec = find_spec(self._module)
        source = spec.loader.get_source(spec.name) if spec and isinstance(spec.loader, InspectLoader) else None
        for part in ast.parse(source or "").body:
            if isinstance(part, ast.FunctionDef) and part.name == self.attribute:
                return " ".join((ast.get_docstring(part) or "").split("\n\n")[0].split())
            if isinstance(part, ast.Assign) and isinstance(part.value, ast.Call):
                names = [target.id for target in part.targets if isinstance(target, ast.Name)]
                texts = [word.value for word in part.value.keywords if word.arg == "help"]
                if self.attribute in names and texts and isinstance(texts[0], ast.Constant):
                    return str(texts[0].value)
        return ""

    def load(self) -> Any:
        """Import the module and create the command."""
        module = import_module(self._module)
        found: Callable[..., Any] | typer.Typer = getattr(module, self.attribute)
        if not isinstance(found, typer.Typer):
            alone = typer.Typer(add_completion=False)
            alone.command(self.name)(found)
            found = alone
        for registered in found.registered_commands:
            if registered.callback:
                _with_completions(registered.callback)
        command = typer.main.get_command(found)
        command.name = self.name
        for one in (command, *getattr(command, "commands", {}).values()):
            one.help = _flowing(one.help or "")
        return command


def _flowing(text: str) -> str:
    """Join each paragraph of a help text into one line, to be wrapped at any width; keep lines of examples."""
    parts = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(
        inspect.cleandoc(part) if part.startswith(" ") else " ".join(part.split()) for part in parts
    )


def _with_completions(function: Callable[..., Any]) -> None:
    """Add shell completions to parameters that have none."""
    # Evaluate annotations given as text here: otherwise typer evaluates them again, without the additions.
    function.__annotations__ = get_type_hints(function, include_extras=True)
    for name, hint in function.__annotations__.items():
        for info in getattr(hint, "__metadata__", ()):
            if isinstance(info, OptionInfo | ArgumentInfo) and info.autocompletion is None:
                # Inside `Annotated`, typer stores the first name of an option as its default.
                own = name if isinstance(info, ArgumentInfo) else f"--{name}"
                written = (info.default, *(info.param_decls or ()), own)
                known = (_COMPLETIONS[one] for one in written if isinstance(one, str) and one in _COMPLETIONS)
                info.autocompletion = next(known, None)


_TRAIN, _DECIDE, _MORE = "Train", "Decide what to rent", "Prices, forecasts and research"

VERBS = (
    Verb("run", "running", "run_command", _TRAIN),
    Verb("rehearse", "rehearsing", "rehearse_command", _TRAIN),
    Verb("status", "runs", "status_command", _TRAIN),
    Verb("why", "explaining", "why_command", _TRAIN),
    Verb("logs", "runs", "logs_command", _TRAIN),
    Verb("fetch", "fetching", "fetch_command", _TRAIN),
    Verb("ui", "serving", "ui_command", _TRAIN),
    Verb("stop", "runs", "stop_command", _TRAIN),
    Verb("resume", "resuming", "resume_command", _TRAIN),
    Verb("down", "runs", "down_command", _TRAIN),
    Verb("rm", "runs", "rm_command", _TRAIN),
    Verb("demo", "demo", "demo_command", _DECIDE),
    Verb("plan", "planning", "plan_command", _DECIDE),
    Verb("compare", "comparing", "compare_command", _DECIDE),
    Verb("ingest", "prices", "ingest_command", _DECIDE),
    Verb("generate", "generating", "generate_command", _MORE),
    Verb("describe", "prices", "describe_command", _MORE),
    Verb("catalogue", "catalogue", "catalogue_app", _MORE),
    Verb("watch", "watching", "watch_command", _MORE),
    Verb("portfolio", "portfolio", "portfolio_command", _MORE),
    Verb("benchmark", "benchmarking", "benchmark_command", _MORE),
    Verb("report", "reporting", "report_command", _MORE),
    Verb("availability", "availability", "availability_app", _MORE),
    Verb("revocation", "revocation", "revocation_app", _MORE),
    Verb("hazard", "hazard", "hazard_app", _MORE),
    Verb("curves", "curves", "curves_app", _MORE),
    Verb("cookbook", "cookbook", "cookbook_app", _MORE),
    Verb("reproduce", "ebbtide_papers.commands", "reproduce_app", _MORE),
)


# Unlisted aliases of commands, for users of other tools.
ALIASES = {"ls": "status", "list": "status", "ps": "status"}

# Former commands, with what stands for them now.
FORMER = {"backtest": ("compare",), "recommend": ("plan", "--runs", "0")}


class _Unloaded(TyperCommand):
    """Placeholder for a command until it is called or listed."""


class VerbGroup(TyperGroup):
    """The group of all commands: listing them needs no import, calling one imports only that one."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._unloaded = {verb.name: verb for verb in VERBS}
        self.commands = {name: _Unloaded(name) for name in self._unloaded} | dict(self.commands)
        self._listing: Literal["", "usual", "all"] = ""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        cmd_name = ALIASES.get(cmd_name, cmd_name)
        found = super().get_command(ctx, cmd_name)
        if not isinstance(found, _Unloaded):
            return found
        verb = self._unloaded[cmd_name]
        if not self._listing:
            return verb.load()
        hidden = self._listing == "usual" and verb.panel == _MORE
        return TyperCommand(cmd_name, help=verb.about(), rich_help_panel=verb.panel, hidden=hidden)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[:1] and args[0] in FORMER:
            command, *options = FORMER[args[0]]
            now = " ".join(("ebbtide", *FORMER[args[0]]))
            typer.echo(f"`ebbtide {args[0]}` is now `{now}`", err=True)
            args = [command, *args[1:], *options]
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        # `ebbtide --commands` asks for all; the first screen has those that a training needs.
        self._listing = self._listing or "usual"
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = ""

    def help_of_all(self, ctx: Any) -> str:
        """Return the help with every command."""
        self._listing = "all"
        return str(self.get_help(ctx))

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        self._listing = "all"
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            self._listing = ""
