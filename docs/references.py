"""What Sphinx is told about this project: links that leave the pages, modules, the style of docstrings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]

_LINK = re.compile(r"\]\((\.\./[^)#\s]*)\)")
_NAMED = re.compile(r"\[[\w-]+\.md\](\((?!\.\./\.\./)[^)]+\))")
_MODULES = re.compile(r"<!-- modules: ([\w.]+) -->")
_SECTION = re.compile(r"(?:Args|Attributes|Example|Examples|Note|Raises|Returns|Type Parameters|Yields):")


def lead_on(app: Sphinx, page: str, text: list[str]) -> None:
    """Make what works on GitHub work on the site; called by Sphinx with each page's text.

    Folders have no page here, so links to them lead to the page of examples, and to the project's README.md to the
    page of results, which shows its tables.
    """
    folder = (Path(app.srcdir) / page).parent
    up = "../" * page.count("/")

    def link(found: re.Match[str]) -> str:
        target = (folder / found[1]).resolve()
        if target.parents[1].name == "ebbtide_papers":
            return f"]({up}papers/{target.parent.name.replace('_', '-')}.md)"
        if target == ROOT / "README.md":
            return f"]({up}papers/index.md)"
        if target.is_dir():
            return f"]({up}examples.md#{target.name})"
        return found[0]

    changed = _LINK.sub(link, text[0])
    # A link by a file's name gets the title of the page, or of the section, instead.
    changed = _NAMED.sub(r"[]\1", changed)
    text[0] = _MODULES.sub(lambda found: "\n".join(_modules(found[1])), changed)


def _modules(package: str) -> Iterator[str]:
    """Every public module of a package: the first lines of its docstring and of those of its public names.

    It reads the sources and imports nothing: some modules need what only a cloud or a cluster has.
    """
    source = ROOT / "src"
    for file in sorted((source / package.replace(".", "/")).rglob("*.py")):
        parts = file.relative_to(source).with_suffix("").parts
        if any(part.startswith("_") for part in parts):
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        yield from (f"## {'.'.join(parts)}", "", _first(tree), "")
        for node in tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                yield f"- `{node.name}`: {_first(node)}"
        yield ""


def _first(node: ast.Module | ast.ClassDef | ast.FunctionDef) -> str:
    """The first paragraph of a docstring, as Markdown."""
    text = " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())
    # What stands in backticks is code, and the same in Markdown.
    pieces = text.split("`")
    pieces[::2] = [re.sub(r"([\\*_<>\[\]$])", r"\\\1", piece) for piece in pieces[::2]]
    return "`".join(pieces)


def plain_signature(
    _app: Sphinx,
    _what: str,
    _name: str,
    thing: object,
    _options: Any,
    arguments: str | None,
    returns: str | None,
) -> tuple[str | None, str | None]:
    """Signatures as they are written in the sources; called by Sphinx with each as Python prints it."""
    if getattr(thing, "_is_protocol", False):
        # Nobody makes one.
        return None, None
    return _plain(arguments), _plain(returns)


def _plain(text: str | None) -> str | None:
    if text is None:
        return None
    text = re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", text).replace("<factory>", "...")
    while found := re.search(r"(?:~?typing\.)?\bAnnotated\[", text):
        first, end = _first_and_end(text, found.end())
        text = text[: found.start()] + first + text[end:]
    return text


def _first_and_end(text: str, begin: int) -> tuple[str, int]:
    """The first of the arguments in brackets that begin there, and where the text goes on after the bracket."""
    depth, comma = 0, None
    for place in range(begin, len(text)):
        if text[place] in "([{":
            depth += 1
        elif text[place] in ")]}":
            if depth == 0:
                return text[begin:comma], place + 1
            depth -= 1
        elif text[place] == "," and depth == 0 and comma is None:
            comma = place
    raise ValueError(f"brackets without an end: {text}")


def as_restructured_text(
    _app: Sphinx, _what: str, _name: str, _thing: object, _options: Any, lines: list[str]
) -> None:
    """Mark the indented blocks of a docstring as code; called by Sphinx with each docstring."""
    lines[:] = _marked(lines)


def _marked(lines: Sequence[str]) -> Iterator[str]:
    in_section, in_code, before = False, False, ""
    for index, line in enumerate(lines):
        indented = line.startswith("    ")
        if line.strip() and not indented:
            in_section, in_code = _SECTION.fullmatch(line) is not None, False
        if indented and not in_section and not in_code and index and not lines[index - 1].strip():
            in_code = True
            if not before.endswith("::"):
                yield from ("::", "")
        if line.strip():
            before = line
        yield line
