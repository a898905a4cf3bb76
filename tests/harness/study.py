"""Frame of the studies: options, a folder for runs, a report in JSON, and an error if a check failed."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Protocol

from ebbtide.base.files import write_text
from ebbtide.errors import InputError


class Report(Protocol):
    """Report of a study: a dataclass that knows which of its checks failed."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def problems(self) -> Sequence[str]:
        """Failed checks, in words; empty if all hold."""
        ...


def failed(checks: Mapping[str, bool]) -> list[str]:
    """Select the checks that do not hold, from whether each holds by its problem in words."""
    return [problem for problem, holds in checks.items() if not holds]


def run_study(doc: str, out: str, study: Callable[..., Report | Sequence[Report]], **numbers: int | float) -> None:
    """Run a study from the command line.

    Args:
        doc: Docstring of the study's module.
        out: File of the report, unless `--out` names another.
        study: Runs it, given a folder for its runs and the numbers by name; gives one report, or several whose first
            fields are their names.
        **numbers: Numbers that may be given as options, and their defaults.

    Raises:
        InputError: A check failed.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(out))
    parser.add_argument("--runs", type=Path, help="folder in which the runs are kept; by default a temporary one")
    for name, default in numbers.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        given = {name: getattr(asked, name) for name in numbers}
        found = study(asked.runs or Path(temporary), **given)
    reports = list(found) if isinstance(found, Sequence) else [found]
    rows = [asdict(report) for report in reports]
    write_text(asked.out, json.dumps(rows if isinstance(found, Sequence) else rows[0], indent=2) + "\n")
    for row in rows:
        print(json.dumps(row))
    names = [f"{next(iter(row.values()))}: " if isinstance(found, Sequence) else "" for row in rows]
    wrong = [name + problem for name, report in zip(names, reports, strict=True) for problem in report.problems]
    if wrong:
        raise InputError("; ".join(wrong))
