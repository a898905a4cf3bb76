"""Read the input of `ebbtide run`: a file, or a command line after `--`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

from ebbtide.errors import InputError, unknown_name
from ebbtide.jobs.common_fields import Direction
from ebbtide.jobs.job_files import read_runnable
from ebbtide.jobs.job_list import OneJob, Runnable
from ebbtide.jobs.one_training import SingleTraining, folder_below, literal
from ebbtide.jobs.parsing import validated
from ebbtide.market.catalogue import Catalogue

# Options that usually name a folder for checkpoints.
_SAVES = re.compile(
    r"--?(?:checkpoints|ckpts|(?:checkpoints?|ckpts?|output|out|save)[-_]?(?:dir|folder))", re.IGNORECASE
)
_FILES = frozenset({".yaml", ".yml", ".json"})


@dataclass(frozen=True)
class TrainingOptions:
    """Options that describe a training; each given one overrides the file's field, None: not given."""

    name: Annotated[str | None, typer.Option(help="Name of the run; by default the program's.")] = None
    accelerators: Annotated[
        str | None, typer.Option(metavar="NAME:NUMBER", help="Accelerators its machine needs, such as T4:1.")
    ] = None
    cpus: Annotated[int | None, typer.Option(metavar="N", help="Minimum vCPUs of its machine.")] = None
    memory_gib: Annotated[
        float | None, typer.Option(metavar="GIB", help="Minimum main memory of its machine.")
    ] = None
    architecture: Annotated[
        str | None, typer.Option(metavar="NAME", help="Processor of its program: x86_64 (default) or arm64.")
    ] = None
    secret: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Give the program this variable of your environment, sealed on its way; may be given again.",
        ),
    ] = None
    instance_type: Annotated[
        list[str] | None, typer.Option(metavar="TYPE", help="Only this instance type; may be given again.")
    ] = None
    checkpoints: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder in which the program saves and from which it resumes; by default one is given to it.",
        ),
    ] = None
    metric: Annotated[str | None, typer.Option(metavar="NAME", help="Metric that it reports or prints.")] = None
    progress: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERN",
            help=r"Regular expression for lines that tell progress: 'it (?P<step>\d+) of (?P<total>\d+)'. "
            "By default those of common tools are recognised.",
        ),
    ] = None
    direction: Annotated[Direction | None, typer.Option(help="Whether to minimize or maximize the metric.")] = None
    steps: Annotated[
        int | None, typer.Option(metavar="N", help="Number of steps; by default the program decides.")
    ] = None
    budget: Annotated[float | None, typer.Option(metavar="USD", help="The most to spend.")] = None
    deadline: Annotated[float | None, typer.Option(metavar="HOURS", help="Hours within which it should end.")] = (
        None
    )

    def fields(self) -> dict[str, Any]:
        """Return the given values by field of `SingleTraining`, without folder and instance types."""
        values = {
            "name": self.name,
            "accelerators": self.accelerators,
            "cpus": self.cpus,
            "memory_gib": self.memory_gib,
            "architecture": self.architecture,
            "secrets": self.secret,
            "metric": self.metric,
            "progress": self.progress,
            "direction": self.direction,
            "steps": self.steps,
            "budget_usd": self.budget,
            "deadline_h": self.deadline,
        }
        return {field: value for field, value in values.items() if value is not None}


@dataclass(frozen=True)
class RunInput:
    """The input of `ebbtide run`.

    Attributes:
        sweep: The sweep to run, with one trial for a single training, or a list of jobs.
        folder: Folder of the program's code, in which it runs.
        file: Path of the file that describes the work; None: the command line describes it.
    """

    sweep: Runnable
    folder: Path
    file: str | None = None


def wanted_from(words: Sequence[str], options: TrainingOptions, catalogue: Catalogue) -> RunInput:
    """Read the input from the command line.

    Args:
        words: File of a sweep or job; or a command and its arguments, which are not changed.
        options: Description of the training by options, which override the file.
        catalogue: Instance types and their list prices.

    Raises:
        InputError: The file or an option is wrong, or an instance type is unknown.
    """
    given = options.fields()
    known = {entry.name for entry in catalogue.instance_types}
    types = options.instance_type or []
    unknown = [name for name in types if name not in known]
    if unknown:
        raise unknown_name("instance type", unknown[0], known)
    is_file = len(words) == 1 and _is_file(Path(words[0]))
    folder = Path(words[0]).parent if is_file else Path.cwd()
    checkpoints = options.checkpoints
    if checkpoints is not None:
        given["checkpoints"] = folder_below(checkpoints, folder.resolve())
    if is_file:
        sweep = read_runnable(words[0], catalogue, to_run=True)
        if not given and not types:
            return RunInput(sweep, folder, words[0])
        sweep = _overridden(sweep, given, types, words[0])
    else:
        command = [literal(word) for word in words]
        if checkpoints is None and (found := _named_for_checkpoints(words, folder)) is not None:
            given["checkpoints"] = found
        if checkpoints is not None and checkpoints.is_absolute():
            # Other machines do not have this absolute path.
            command = [word.replace(literal(str(checkpoints)), "{checkpoint_dir}") for word in command]
        given |= {"command": command} | ({"markets": {"instance_types": types}} if types else {})
        sweep = SingleTraining.parse(given).work()
    sweep.check_types(catalogue)
    return RunInput(sweep, folder, words[0] if is_file else None)


def _overridden(work: Runnable, given: Mapping[str, Any], types: Sequence[str], file: str) -> Runnable:
    """Return the work of a file with the options that apply to it.

    Raises:
        InputError: An option applies to another kind of job, or to a single one of a list.
    """
    names = {"steps": "max_trial_steps"}
    fields = {names.get(key, key): value for key, value in given.items() if key != "name" or value}
    wrong = next((name for name in fields if name not in type(work).model_fields), None)
    if wrong is not None:
        where = "is a field of each job of a list, and no option for all of them"
        problem = where if work.is_list else f"is no field of {work.called}; leave the option out"
        raise InputError(f"{wrong} {problem}", file=file, field=wrong)
    markets = work.markets.model_dump(mode="json") | ({"instance_types": list(types)} if types else {})
    return validated(type(work), work.model_dump(mode="json") | fields | {"markets": markets}, file)


def is_told_where_to_save(sweep: OneJob, folder: Path) -> bool:
    """Return whether a program knows its checkpoint folder, from an option, its command or its code."""
    if sweep.kind != "sweep":
        return True  # an array has results, and the head of a cluster is where nobody takes it
    arguments = sweep.command_line(sweep.trials()[0])
    if sweep.checkpoints is not None or any("{checkpoint_dir}" in argument for argument in arguments):
        return True
    scripts = [folder / argument for argument in arguments if argument.endswith(".py")]
    # A program without readable code is assumed to know it.
    texts = [script.read_text(encoding="utf-8", errors="replace") for script in scripts if script.is_file()]
    return not texts or any("ebbtide" in text.lower() for text in texts)


def _named_for_checkpoints(words: Sequence[str], folder: Path) -> str | None:
    """Find the checkpoint folder named in a command; only a missing or empty folder, so that it is no input."""
    spread = [part for word in words for part in (word.split("=", 1) if word.startswith("-") else [word])]
    for option, value in pairwise(spread):
        if _SAVES.fullmatch(option) and not value.startswith("-") and "{" not in value and not Path(value).suffix:
            path = folder / value
            if not path.exists() or (path.is_dir() and not any(path.iterdir())):
                with suppress(InputError):
                    return folder_below(Path(value), folder)
    return None


def _is_file(path: Path) -> bool:
    return path.suffix in _FILES
