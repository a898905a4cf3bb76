"""Imports only go down, through the layers of docs/design.md; and no module is there for the tests alone."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from ebbtide.cli.commands import VERBS
from tests.house import circles

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "ebbtide"

# From the bottom up. Modules of `ebbtide` that lie in none of its folders (errors, trial) are below them all.
ROOMS = [
    "base",
    "frameworks",
    "market",
    "forecasts",
    "jobs",
    "policies",
    "engine",
    "storage",
    "agent",
    "replay",
    "clouds",
    "controller",
    "runs",
    "search",
    "testing",
    "backtesting",
    "planning",
    "tracking",
    "ui",
    "cli",
]
LAYERS = [*(f"ebbtide.{room}" for room in ROOMS), "ebbtide.types", "ebbtide_papers", "flows", "pipelines"]


def modules() -> dict[str, Path]:
    """Every module of the four packages, by its dotted name; a package by the name of its folder."""
    found = {}
    packages = ((ROOT / "src", "ebbtide"), (ROOT / "src", "ebbtide_papers"), (ROOT, "flows"), (ROOT, "pipelines"))
    for base, package in packages:
        for path in (base / package).rglob("*.py"):
            parts = path.relative_to(base).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def module_of(name: str) -> str | None:
    """The longest beginning of a dotted name that is a module."""
    parts = name.split(".")
    beginnings = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((beginning for beginning in beginnings if beginning in MODULES), None)


@cache
def tree_of(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


@cache
def imports(name: str) -> frozenset[str]:
    """The modules that a module imports, at its top, within functions, or relative to its package."""
    path = MODULES[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    wanted: set[str] = set()
    for node in ast.walk(tree_of(name)):
        if isinstance(node, ast.Import):
            wanted |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            wanted |= {f"{source}.{alias.name}" for alias in node.names}
    return frozenset(found for found in map(module_of, wanted) if found)


def layer_of(name: str) -> int:
    """The place of a module's layer, from the bottom; -1 for what is below all of them."""
    return next((place for place, layer in enumerate(LAYERS) if f"{name}.".startswith(f"{layer}.")), -1)


def test_imports_only_go_down() -> None:
    upward = {name: [other for other in imports(name) if layer_of(other) > layer_of(name)] for name in MODULES}
    assert {name: others for name, others in upward.items() if others} == {}


def test_every_folder_is_a_layer() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(ROOMS)


def test_nothing_in_the_library_imports_the_papers() -> None:
    """The command line finds them by a name in `ebbtide.cli.commands.VERBS`."""
    named = [name for name in MODULES if name.split(".")[0] == "ebbtide" and "ebbtide_papers" in mentions(name)]
    assert named == ["ebbtide.cli.commands"]


@pytest.mark.parametrize("layer", LAYERS)
def test_parts_of_a_layer_import_each_other_one_way(layer: str) -> None:
    """A part is a sub-package, or a module beside the sub-packages; `make house` finds circles of modules."""
    depth = layer.count(".") + 2
    graph: dict[str, set[str]] = {}
    for name in MODULES:
        if name.startswith(f"{layer}."):
            part = ".".join(name.split(".")[:depth])
            others = {
                ".".join(other.split(".")[:depth]) for other in imports(name) if other.startswith(f"{layer}.")
            }
            graph.setdefault(part, set()).update(others - {part})
    packages = {part for part in graph if MODULES.get(part, PACKAGE).name == "__init__.py"}
    assert [circle for circle in circles(graph) if packages & set(circle)] == []


@cache
def mentions(name: str) -> set[str]:
    """Dotted names of our packages in the texts of a module, docstrings left out, and in what it imports."""
    tree = tree_of(name)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            found |= {word.rstrip(".") for word in re.findall(r"\bebbtide(?:_papers)?[\w.]*", node.value)}
    return {package for word in found for package in (word, word.split(".")[0])} | {
        other.split(".")[0] for other in imports(name) if other.split(".")[0] != "ebbtide"
    }


def entry_points() -> set[str]:
    """What a user, DVC, Prefect or a machine starts or imports by name."""
    found = {f"ebbtide.{name}" for name in ("cli.main", "trial", "trial_torch", "trial_sharded", "types")}
    found |= {verb.module if "." in verb.module else f"ebbtide.cli.{verb.module}" for verb in VERBS}
    found |= {
        name for name in MODULES if re.fullmatch(r"ebbtide_papers\.\w+\.command|(flows|pipelines)\.\w+", name)
    }
    # Programs of users import them, by the framework that they use, and tests of users' own clouds.
    rooms = ("ebbtide.frameworks.", "ebbtide.search.", "ebbtide.testing.")
    found |= {name for name in MODULES if name.startswith(rooms)}
    for public in ("ebbtide", "ebbtide.policies", "ebbtide.testing"):
        found.add(public)
        stub = MODULES[public].with_suffix(".pyi").read_text(encoding="utf-8")
        found |= {f"{public}.{name}" for name in re.findall(r"^from \.([\w.]+) import", stub, re.MULTILINE)}
    pages = [ROOT / "README.md", ROOT / "Makefile", ROOT / "dvc.yaml", ROOT / ".ci" / "run"]
    pages += [path for folder in ("docs", "examples", "src") for path in (ROOT / folder).rglob("*")]
    for path in pages:
        if path.suffix in ("", ".md", ".yaml") and path.is_file():
            text = path.read_text(encoding="utf-8")
            found |= set(re.findall(r"-m ((?:ebbtide|flows|pipelines)\w*[\w.]*)", text))
    return {name for name in map(module_of, found) if name}


@cache
def reached() -> set[str]:
    """What entry points import or name, and what that does in turn."""
    found: set[str] = set()
    waiting = entry_points()
    while waiting:
        name = waiting.pop()
        found.add(name)
        named = {module_of(word) for word in mentions(name) if "." in word}
        near = {name.rpartition(".")[0], f"{name}.__main__"} & MODULES.keys()
        waiting |= {other for other in (*imports(name), *named, *near) if other} - found
    return found


def test_no_module_is_there_for_the_tests_alone() -> None:
    assert sorted(MODULES.keys() - reached()) == []
