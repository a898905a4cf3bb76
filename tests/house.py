"""The shape of the source, in figures: `make house`, or `python -m tests.house [FOLDER] [FILE.json]`.

Files and lines by package, the largest file, functions with more than eight parameters or sixty lines, the longest
chain of imports and their circles, `fmt: skip` comments, field descriptions of three words or fewer, `isinstance` on
kinds of work, and waits for a time in tests. `python -m tests.house --check`, a part of `make lint`, ends with exit
code 1 if a docstring begins with a question word, two public classes share a name, or a word of `UNPLAIN` is used.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MOST_PARAMETERS, FEWEST_WORDS = 8, 4

# Words that no docstring begins with: it begins with a noun or a verb.
QUESTIONS = frozenset(
    {"How", "It", "One", "That", "What", "When", "Where", "Whether", "Which", "Who", "Whose", "Why"}
)
# Names of public classes that several modules may have, each with the reason.
SHARED_NAMES = {
    "SpotCallback": "the callback of each training framework, which a program imports from one of them"
}
# Phrases that have a plainer word.
UNPLAIN = {
    r"\bmends?\b": "fix",
    r"\bto be had\b": "available",
    r"\bcomes to \d": "costs, is",
    r"\bof such an? (machine|job|run)\b": "the noun itself",
}
# Of pages for users, too: the glossary has the word to use.
UNPLAIN_ON_PAGES = UNPLAIN | {
    r"\b(give|gives|given|giving|gave) back\b": "release",
    r"\b(go|goes|going|gone|went) on\b": "continue",
    r"\bone's own\b": "your own",
    r"\bwhat (it|they) came to\b": "the actual cost",
    r"\brivals?\b": "baselines",
    r"\bheld back\b": "held out",
    r"\blearnt\b": "trained",
    r"\btold apart\b": "distinguished",
    r"\b[Ww]ho only looks?\b": "read-only users",
    r"\b\w*(recogniz|organiz|behavior|neighbor|favor(?!it))\w*": "British spelling",
}
LONGEST_FUNCTION = 60
_KINDS_OF_WORK = re.compile(
    r"isinstance\([^()]*\b(JobList|Sweep|Array|Cluster|SingleJob|Runnable|Job|Workflow|MatrixProgram)\b"
)

# What waits for a time or measures one, by the name that is called: tests use `tests/waiting.py`.
WAITS = ("sleep", "monotonic", "perf_counter")
# Files and folders below tests/ that may call them, each with the reason.
MAY_WAIT = {
    "waiting.py": "it is where tests wait",
    "benchmarks": "what they report are times",
    "ci.py": "it reports how long each stage of the checks takes",
    "cases/harness.py": "it ends runs that never would, and reports how long they took",
    "cases/programs": "programs that tests start take as long as they are told to",
    "first_steps.py": "it reports how long each block of the documentation takes",
    "harness": "it measures runs, and its virtual clock has sleeps that take no time",
}
# Programs that tests start take as long as they are told to.
_STARTED = "_program.py"

_SECTION = re.compile(r"^\s*(Args|Attributes|Returns|Raises|Yields):\s*$")
_FIELD = re.compile(r"^(\s+)([*\w]+)(?: \([^)]*\))?:\s+(.*)$")


def modules(source: Path) -> dict[str, Path]:
    """Every module below a folder of packages, by its dotted name."""
    found = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(tree: ast.Module, known: dict[str, Path]) -> set[str]:
    """The known modules that a module imports when it is imported itself."""
    found: set[str] = set()
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (inner & known.keys()) or ({node.module} & known.keys())
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & known.keys()
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
        elif isinstance(node, ast.If | ast.Try | ast.With):
            waiting += [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.stmt)]
    return found


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected modules, two or more together (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            together = []
            while not together or together[-1] != name:
                together.append(stack.pop())
            if len(together) > 1:
                found.append(sorted(together))

    sys.setrecursionlimit(10_000)
    for name in graph:
        if name not in index:
            visit(name)
    return found


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """How many a function takes, `self` left out."""
    given = function.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    return len([one for one in every if one.arg not in ("self", "cls")])


def descriptions(docstring: str) -> Iterator[tuple[str, str]]:
    """Names of fields or arguments with what a docstring says of each."""
    lines = docstring.splitlines()
    section_indent: int | None = None
    name, said, indent = "", "", 0
    for line in [*lines, "end"]:
        bare = len(line) - len(line.lstrip())
        field = _FIELD.match(line) if section_indent is not None else None
        if field and name and len(field[1]) > indent:
            field = None
        leaves = section_indent is not None and line.strip() and bare <= section_indent
        if name and (field or leaves):
            yield name, said
            name = ""
        if leaves:
            section_indent = None
        if (section := _SECTION.match(line)) and section[1] in ("Args", "Attributes"):
            section_indent = bare
        elif field:
            name, said, indent = field[2], field[3], len(field[1])
        elif name and line.strip():
            said = f"{said} {line.strip()}"


def waits(folder: Path) -> list[str]:
    """Calls of `WAITS` in a folder of tests, as "file:line: name"; those of `MAY_WAIT` are left out."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        place = path.relative_to(folder)
        may_wait = any(place.is_relative_to(each) for each in MAY_WAIT)
        if may_wait or place.name.endswith(_STARTED):
            continue
        text = path.read_text(encoding="utf-8")
        if not any(name in text for name in WAITS):
            continue
        calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
        for call in sorted(calls, key=lambda node: (node.lineno, node.col_offset)):
            called = call.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name in WAITS:
                found.append(f"{place}:{call.lineno}: {name}")
    return found


def question_docstrings(source: Path) -> list[str]:
    """Docstrings that begin with a question word, as "module.name: first word"."""
    found = []
    for name, path in modules(source).items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
                first = re.match(r"\w*", ast.get_docstring(node) or "")
                if first and first[0] in QUESTIONS:
                    found.append(f"{name}.{getattr(node, 'name', '')}: {first[0]}")
    return found


def shared_class_names(source: Path) -> dict[str, list[str]]:
    """Names that public classes of several modules have, with these modules; those of `SHARED_NAMES` are left out."""
    homes: dict[str, list[str]] = {}
    for name, path in modules(source).items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and node.name not in SHARED_NAMES:
                homes.setdefault(node.name, []).append(name)
    return {name: places for name, places in homes.items() if len(places) > 1}


def unplain_words(files: Iterable[Path], plainer_words: Mapping[str, str] = UNPLAIN) -> list[str]:
    """Phrases that have a plainer word in some files, as "file:line: phrase: what is plainer"."""
    found = []
    for path in files:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for pattern, plainer in plainer_words.items():
                if match := re.search(pattern, line):
                    found.append(f"{path}:{number}: {match[0]}: {plainer}")
    return found


def check(root: Path) -> list[str]:
    """Breaches of the rules on docstrings, names and words in a checkout, a line each."""
    source = root / "src"
    pages = [*(root / "docs").rglob("*.md"), root / "README.md", *source.glob("*/*/README.md")]
    # Written by `ebbtide reproduce`, from the sources.
    pages = [page for page in pages if page.is_file() and page.name != "claims.md"]
    shared = shared_class_names(source)
    return [
        *(f"{one}: a docstring begins with a noun or a verb" for one in question_docstrings(source)),
        *(f"{name}: classes of {', '.join(homes)} share this name" for name, homes in shared.items()),
        *unplain_words(sorted(source.rglob("*.py"))),
        *unplain_words(sorted(pages), UNPLAIN_ON_PAGES),
    ]


def depth(graph: dict[str, set[str]]) -> list[str]:
    """The longest chain of modules, each of which imports the next; modules in circles count once."""
    longest: dict[str, list[str]] = {}

    def chain(name: str, above: frozenset[str]) -> list[str]:
        if name not in longest:
            others = sorted(graph[name] - above)
            below = max((chain(other, above | {name}) for other in others), key=len, default=[])
            longest[name] = [name, *below]
        return longest[name]

    return max((chain(name, frozenset({name})) for name in graph), key=len, default=[])


def measured(source: Path) -> dict[str, Any]:
    """All figures of a folder of packages."""
    known = modules(source)
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in known.items()}
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in known.items()}
    rooms: dict[str, list[int]] = {}
    for name, count in lines.items():
        room = (
            ".".join(name.split(".")[:2])
            if known[name].parent != source / name.split(".")[0]
            else name.split(".")[0]
        )
        rooms.setdefault(room, []).append(count)
    functions = [
        (f"{name}.{node.name}", parameters(node))
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    fields = [
        (f"{name}: {field}", said)
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module)
        for field, said in descriptions(ast.get_docstring(node, clean=False) or "")
    ]
    graph = {name: imported(tree, known) - {name} for name, tree in trees.items()}
    largest = max(lines, key=lambda name: lines[name])
    longer = [count for count in lines.values() if count > 10]
    return {
        "files": len(lines),
        "lines": sum(lines.values()),
        "lines_a_file_mean": round(sum(longer) / len(longer)),
        "packages": {room: {"files": len(each), "lines": sum(each)} for room, each in sorted(rooms.items())},
        "largest_file": {"module": largest, "lines": lines[largest]},
        "functions_with_more_than_8_parameters": sorted(
            name for name, count in functions if count > MOST_PARAMETERS
        ),
        "functions_with_more_than_60_lines": sorted(
            f"{name}.{node.name}"
            for name, tree in trees.items()
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and (node.end_lineno or node.lineno) - node.lineno >= LONGEST_FUNCTION
        ),
        "import_circles": circles(graph),
        "longest_chain_of_imports": depth(graph),
        "isinstance_on_kinds_of_work": sum(
            len(_KINDS_OF_WORK.findall(path.read_text(encoding="utf-8"))) for path in known.values()
        ),
        "fmt_skips": sum(path.read_text(encoding="utf-8").count("# fmt: skip") for path in known.values()),
        "field_descriptions": len(fields),
        "short_field_descriptions": [
            f"{name}: {said}" for name, said in fields if len(said.split()) < FEWEST_WORDS
        ],
    }


def main() -> None:
    """Print the figures, and write them if a file is named; or check the rules."""
    if sys.argv[1:] == ["--check"]:
        breaches = check(ROOT)
        sys.exit("\n".join(breaches) or 0)
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "src"
    found = measured(source) | {"waits_in_tests": waits(ROOT / "tests")}
    for name, value in found.items():
        if name == "packages":
            for room, counts in value.items():
                print(f"  {room:34} {counts['files']:4} files {counts['lines']:6} lines")
        else:
            print(f"{name}: {len(value) if isinstance(value, list) else value}")
    if len(sys.argv) > 2:
        Path(sys.argv[2]).parent.mkdir(parents=True, exist_ok=True)
        Path(sys.argv[2]).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
