"""Every command, option and file that documentation, examples and messages name exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from ebbtide.cli.commands import VERBS

ROOT = Path(__file__).parent.parent
PLACES = (
    "README.md",
    "CONTRIBUTING.md",
    "Makefile",
    "docs/",
    "examples/",
    "jobs/",
    "flows/",
    "pipelines/",
    "src/",
)
SUFFIXES = ("", ".md", ".py", ".yaml", ".yml", ".toml", ".js", ".html", ".jinja", ".sh", ".ipynb")
KNOWN = {verb.name: verb for verb in VERBS}

# What follows the name where no command is meant: in code of Python, and in prose.
_PROSE = {"as", "import", "needs", "attendant"}
# A command, to the end of its line, or of the code or text that it is quoted in.
_COMMAND = re.compile(r"(?<![\w/.$-])ebbtide ([a-z][\w-]*)((?: +[^\s`|;&#\"]+)*)")
_OPTION = re.compile(r"--[a-z][a-z0-9-]+")
# Files of other projects, and those that a reader is to write, are left out.
_FILE = re.compile(
    r"(?<![\w/.-])((?:examples|docs|jobs|flows|pipelines)/(?!my-|scaling/|launch_|training_scripts/)"
    r"[\w./-]*\w\.(?:py|yaml|yml|md|toml|json|sh|ipynb))\b"
)


def texts() -> Iterator[tuple[str, str]]:
    for place in PLACES:
        found = sorted((ROOT / place).rglob("*")) if place.endswith("/") else [ROOT / place]
        for file in found:
            if file.is_file() and file.suffix in SUFFIXES:
                yield str(file.relative_to(ROOT)), file.read_text(encoding="utf-8")


@cache
def loaded(verb: str) -> Any:
    return KNOWN[verb].load()


def test_every_command_and_option_that_is_named_exists() -> None:
    wrong = []
    for name, text in texts():
        for found in _COMMAND.finditer(text):
            verb, words = found[1], found[2].split()
            if verb not in KNOWN:
                wrong += [] if verb in _PROSE else [f"{name}: {found[0]!r}"]
                continue
            command = loaded(verb)
            if words and re.fullmatch(r"[a-z][a-z-]*", words[0]) and hasattr(command, "commands"):
                if words[0] not in command.commands:
                    wrong.append(f"{name}: {found[0]!r}")
                    continue
                command, words = command.commands[words[0]], words[1:]
            own = words[: words.index("--")] if "--" in words else words
            known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)} | {"--help"}
            named = {told[0] for word in own if (told := _OPTION.match(word))}
            if not hasattr(command, "commands"):
                wrong += [f"{name}: {found[0]!r} has no {option}" for option in sorted(named - known)]
    assert wrong == []


def test_the_table_of_commands_has_commands_alone() -> None:
    rows = re.findall(r"^\| (`[^|]+) \|", (ROOT / "docs" / "commands.md").read_text(), re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`([a-z-]+)`", row)]
    assert [name for name in listed if name not in KNOWN] == []
    # `benchmark` judges the policies themselves; CONTRIBUTING.md has it.
    assert sorted(set(KNOWN) - set(listed)) == ["benchmark"]


def test_every_file_that_is_named_exists() -> None:
    wrong = []
    for name, text in texts():
        near = (ROOT, (ROOT / name).parent, ROOT / "src" / "ebbtide")
        wrong += [
            f"{name}: {file}" for file in _FILE.findall(text) if not any((one / file).exists() for one in near)
        ]
    assert wrong == []
