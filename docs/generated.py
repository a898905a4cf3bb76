"""Tables of the reference that come from the code: fields of files from the models, options from the commands.

A page asks for them in comments, which GitHub's readers do not see:

    <!-- fields: ebbtide.jobs.sweep.Sweep -->
    <!-- commands -->
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from sphinx.application import Sphinx

from ebbtide.cli.commands import VERBS
from ebbtide.jobs.asked_policy import AskedPolicy

_FIELDS = re.compile(r"<!-- fields: ([\w.]+) -->")
_COMMANDS = re.compile(r"<!-- commands -->")
_SECTION = re.compile(r"^Attributes:\n(.*?)(?=^\S|\Z)", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^    (\w+): (.*?)(?=^    \w+: |\Z)", re.MULTILINE | re.DOTALL)


def put_in(app: Sphinx, page: str, text: list[str]) -> None:  # noqa: ARG001 (as Sphinx calls it)
    """Put the tables in their places; called by Sphinx with each page's text."""
    changed = _FIELDS.sub(lambda found: "\n".join(fields(named(found[1]))), text[0])
    text[0] = _COMMANDS.sub(lambda _: "\n".join(commands()), changed)


def named(path: str) -> type[BaseModel]:
    """A model by its dotted name."""
    module, _, name = path.rpartition(".")
    found: type[BaseModel] = getattr(import_module(module), name)
    return found


def fields(model: type[BaseModel]) -> Iterator[str]:
    """A table with the fields of a model, in its order: name, default, description."""
    yield from ("| field | default | description |", "|---|---|---|")
    described = descriptions(model)
    for name, field in model.model_fields.items():
        if field.exclude:
            continue
        shown = "required" if field.is_required() else _default(field.default)
        yield f"| `{field.alias or name}` | {shown} | {_cell(described.get(name, ''))} |"


def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """Descriptions of fields in the docstrings of a model and of those that it is made from."""
    found: dict[str, str] = {}
    for parent in reversed(model.__mro__):
        for section in _SECTION.findall(inspect.cleandoc(parent.__dict__.get("__doc__") or "")):
            found |= {name: " ".join(text.split()) for name, text in _FIELD.findall(section)}
    return found


def _default(value: Any) -> str:
    if value in (None, "", PydanticUndefined, [], {}):
        return ""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, AskedPolicy):
        return f"`{value.name}`"
    if isinstance(value, BaseModel):
        return "see below"
    return f"`{value}`"


def commands() -> Iterator[str]:
    """A section for each command and each command of a group, with its arguments and options."""
    for verb in sorted(VERBS, key=lambda one: one.name):
        command = verb.load()
        inner = getattr(command, "commands", {})
        yield from (f"## ebbtide {verb.name}", "", _paragraphs(command.help), "")
        for name, part in inner.items():
            yield from (f"### ebbtide {verb.name} {name}", "", _paragraphs(part.help), "", *_options(part), "")
        if not inner:
            yield from (*_options(command), "")


def _options(command: Any) -> Iterator[str]:
    yield from ("| argument or option | default | description |", "|---|---|---|")
    for option in command.params:
        if getattr(option, "hidden", False) or option.name == "help":
            continue
        names = [*option.opts, *option.secondary_opts]
        name = option.metavar or option.name.upper() if option.param_type_name == "argument" else ", ".join(names)
        default = option.default if isinstance(option.default, str | int | float) else ""
        shown = "" if isinstance(default, bool) or default == "" else f"`{default}`"
        escaped = name.replace("|", "\\|")
        yield f"| `{escaped}` | {shown} | {_cell(getattr(option, 'help', '') or '')} |"


def _paragraphs(text: str | None) -> str:
    """Help as Markdown: lines with commands are code."""
    lines = [line.strip() for line in (text or "").splitlines()]
    return "\n".join(f"    {line}" if line.startswith("ebbtide ") else _plain(line) for line in lines)


def _plain(text: str) -> str:
    """A text without what Markdown would take for marks, outside of code."""
    pieces = text.split("`")
    pieces[::2] = [re.sub(r"([\\*_<>\[\]$~])", r"\\\1", piece) for piece in pieces[::2]]
    # Sphinx would make a dash of two hyphens.
    pieces[::2] = [re.sub(r"--[a-z][a-z-]+", r"`\g<0>`", piece) for piece in pieces[::2]]
    return "`".join(pieces)


def _cell(text: str) -> str:
    return _plain(" ".join(text.split())).replace("|", "\\|")
