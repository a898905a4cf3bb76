"""Groups of options: a command receives a dataclass for options that belong together.

    @dataclass(frozen=True)
    class Window:
        start: Annotated[str | None, typer.Option("--from", help="Start of the record.")] = None
        end: Annotated[str | None, typer.Option("--to", help="End of the record.")] = None

    @grouped
    def describe_command(path: Path, window: Window) -> None: ...

On the command line, the fields are options as if they were parameters of the command, in the same order. A group
that differs in one option only is a subclass that declares this field again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from inspect import Parameter
from typing import Any, get_type_hints


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Turn a command with groups as parameters into one whose signature typer can read.

    Args:
        command: The function of the command. Each parameter is a typer option or argument, or a group: a dataclass
            whose fields are options, each with `Annotated[..., typer.Option(...)]`.

    Returns:
        A function of single options and arguments that creates the groups and calls the command.

    Raises:
        TypeError: Two options of the command have the same name.
    """
    given = inspect.signature(command, eval_str=True)
    groups = {name: part.annotation for name, part in given.parameters.items() if _is_group(part.annotation)}
    single: dict[str, Parameter] = {}
    for name, part in given.parameters.items():
        for option in _options(groups[name]) if name in groups else (part.replace(kind=Parameter.KEYWORD_ONLY),):
            if option.name in single:
                raise TypeError(f"{command.__qualname__} has two options named {option.name}")
            single[option.name] = option

    @wraps(command)
    def flat(**values: Any) -> None:
        command(
            **{name: values[name] for name in given.parameters if name not in groups},
            **{name: _created(group, values) for name, group in groups.items()},
        )

    # Typer reads the signature; `ebbtide.cli.commands` adds completions to the annotations.
    flat.__signature__ = given.replace(parameters=list(single.values()))  # type: ignore[attr-defined]
    flat.__annotations__ = {name: option.annotation for name, option in single.items()} | {"return": None}
    return flat


def _is_group(annotation: Any) -> bool:
    return isinstance(annotation, type) and is_dataclass(annotation)


def _options(group: type[Any]) -> Iterator[Parameter]:
    """Yield an option for each field of a group."""
    annotations = get_type_hints(group, include_extras=True)
    for field in fields(group):
        default = Parameter.empty if field.default is MISSING else field.default
        yield Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=annotations[field.name])


def _created(group: type[Any], values: Mapping[str, Any]) -> Any:
    return group(**{field.name: values[field.name] for field in fields(group)})
