"""Results of mapped tasks, kept until their stage is done: a stage that was killed goes on where it was.

A kept result is found by a digest of everything that it depends on, this project's code included. Results are
JSON, so that nothing is unpickled. A file that a kill left incomplete counts as missing.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any
from urllib.parse import quote

import ebbtide
from ebbtide.forecasts.bundle import version_of

# A folder for each stage that is under way.
KEPT = Path(".prefect/stages")


@dataclass(frozen=True)
class Item:
    """An item over which a stage maps a task.

    Attributes:
        name: Its name in the stage.
        key: The key of its kept result.
    """

    name: str
    key: str


def _cache_key(_context: object, arguments: Mapping[str, Any]) -> str:
    return str(arguments["item"].key)


# Options of a task whose result is kept; its parameter `item` is one that `resumable` yields.
KEEP_RESULT: dict[str, Any] = {
    "persist_result": True,
    "result_storage": KEPT,
    "result_serializer": "json",
    "cache_key_fn": _cache_key,
}


@contextmanager
def resumable(
    stage: str, names: Iterable[str], values: object, files: Iterable[Path] = ()
) -> Iterator[list[Item]]:
    """Yield the items of a stage, and delete their kept results once the stage is done.

    Args:
        stage: Name of the stage.
        names: Names of its items.
        values: Plain values that results depend on: parameters, versions of models.
        files: Files and folders that results depend on.
    """
    folder, digest = KEPT / stage, inputs_digest(values, files)
    for other in folder.glob("*"):
        if other.name != digest:
            shutil.rmtree(other, ignore_errors=True)
    # Names may be paths, as those of own policies are.
    yield [Item(name, f"{stage}/{digest}/{number}-{quote(name, safe='')}") for number, name in enumerate(names)]
    shutil.rmtree(folder, ignore_errors=True)
    for failed in KEPT.glob("*"):
        # Prefect keeps the exception of a task that failed beside the folders of stages.
        if failed.is_file():
            failed.unlink(missing_ok=True)


def inputs_digest(values: object, files: Iterable[Path]) -> str:
    """Digest of some values, of the content of some files, of this project, and of the installed packages."""
    installed = sorted({f"{each.name} {each.version}" for each in distributions()})
    given = [values, [(file.name, version_of(file)) for file in files], sys.version, installed]
    told = hashlib.sha256(json.dumps(given, sort_keys=True).encode())
    for package in (Path(ebbtide.__file__).parent, Path(__file__).parent):
        for file in sorted(package.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                told.update(file.read_bytes())
    return told.hexdigest()[:32]
