"""Imports only go down: the layers of docs/design.md."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "ebbtide"

# From the bottom up. What is not a folder here (errors, files, utc) is below them all.
LAYERS = [
    "market",
    "forecasts",
    "jobs",
    "policies",
    "engine",
    "simulation",
    "live",
    "testing",
    "analysis",
    "cli",
]


def layer_of(module: str) -> int:
    parts = module.split(".")
    return LAYERS.index(parts[1]) if len(parts) > 1 and parts[1] in LAYERS else -1


def imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("ebbtide."):
            found.append(node.module)
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.startswith("ebbtide.")]
    return found


@pytest.mark.parametrize(
    "path",
    [path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"],
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_imports_only_go_down(path: Path) -> None:
    own = layer_of(".".join(("ebbtide", *path.relative_to(PACKAGE).with_suffix("").parts)))
    upward = [name for name in imports(path) if layer_of(name) > own]
    assert not upward


def test_every_folder_is_a_layer() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(LAYERS)
