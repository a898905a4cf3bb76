"""The HTML report of a record: one file that needs no network."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

import ebbtide
from ebbtide.backtesting.policy_table import MeanAndDeviation, policy_marks
from ebbtide.backtesting.record import BacktestRecord
from ebbtide.backtesting.report_answers import ANSWERS_NOTE, answer_of
from ebbtide.backtesting.report_pictures import record_picture
from ebbtide.backtesting.summary import SPREAD_NOTE, best_first, models_note, spread_of
from ebbtide.base.files import write_text


def write_report(
    record: BacktestRecord | Mapping[str, BacktestRecord],
    path: str | Path,
    *,
    solved: Sequence[Mapping[str, str]] = (),
) -> Path:
    """Write the report of a record or of several, atomically; returns its path.

    Args:
        record: Record of a backtest; or several by name, each a section of the page.
        path: The file to write.
        solved: Rows of what was solved: `system`, `job`, `decision`, `expected` and `deviation`.
    """
    path = Path(path)
    write_text(path, render(record, solved=solved))
    return path


def render(
    record: BacktestRecord | Mapping[str, BacktestRecord],
    *,
    solved: Sequence[Mapping[str, str]] = (),
) -> str:
    """The report as HTML; the arguments are those of `write_report`."""
    environment = Environment(
        loader=PackageLoader("ebbtide.backtesting", "."),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    records = {"": record} if isinstance(record, BacktestRecord) else record
    only = next(iter(records.values())).about if len(records) == 1 else {}
    sections = [
        _section(name, one, place, is_one_of_many=len(records) > 1)
        for place, (name, one) in enumerate(records.items())
    ]
    return environment.get_template("report.html.jinja").render(
        title=sections[0]["title"] if len(sections) == 1 else f"What to rent for {len(sections)} jobs",
        sections=sections,
        answers=[text for name, one in records.items() if (text := answer_of(name, one))],
        answers_note=ANSWERS_NOTE,
        solved=solved,
        comparison=[{name: _cell(kept) for name, kept in row} for row in only.get("comparison", ())],
        notes=only.get("notes", ()),
        spread_note=SPREAD_NOTE,
        version=ebbtide.__version__,
        inf=math.inf,
    )


def _cell(kept: str | Sequence[float | None]) -> str | MeanAndDeviation:
    """Return a cell of the table of a comparison, as the record has kept it."""
    if isinstance(kept, str):
        return kept
    mean, std, digits = (math.nan if value is None else value for value in kept)
    return MeanAndDeviation(mean, std, int(digits))


def _section(name: str, record: BacktestRecord, place: int, *, is_one_of_many: bool) -> dict[str, Any]:
    return {
        "name": name,
        "title": name if is_one_of_many else record.title,
        "about": record.about,
        "rows": _rows(record),
        "leases": _leases(record),
        "models": models_note(record.about.get("models", {})),
        "deadline_h": record.about.get("deadline_h"),
        "figure": Markup(record_picture(record, f"picture-{place}")),
    }


def _leases(record: BacktestRecord) -> list[dict[str, Any]]:
    """A row for each lease: policies in the order of the table above, the leases of each in their order."""
    place = {name: number for number, (name, _) in enumerate(best_first(record.summary()))}
    rows = [{str(key): value for key, value in row.items()} for row in record.leases.to_dict("records")]
    return sorted(rows, key=lambda row: place[str(row["policy"])])


def _rows(record: BacktestRecord) -> list[dict[str, Any]]:
    """A row for each policy, the best first, with its cost relative to the highest mean, for the bar."""
    summary = record.summary()
    finished = record.outcomes[record.outcomes["finished"].astype(bool)]
    worst = finished.groupby("policy", observed=True)["cost_usd"].max()
    highest = max((row["cost_usd"]["mean"] or 0.0 for row in summary.values()), default=0.0) or 1.0
    on_demand = summary.get("on-demand", {}).get("cost_usd", {}).get("mean")
    marks = policy_marks(list(summary))
    rows = []
    for name, row in best_first(summary):
        mean = row["cost_usd"]["mean"]
        rows.append(
            {
                "policy": name,
                "mark": marks[name],
                "share": 0.0 if mean is None else 100 * mean / highest,
                "cells": [
                    spread_of(row, "cost_usd", 3),
                    "-" if mean is None else f"{worst[name]:.3f}",
                    "-" if mean is None or not on_demand else _saved(1.0 - mean / on_demand),
                    *([str(row["missed"])] if "missed" in row else []),
                    spread_of(row, "makespan_h", 1),
                    spread_of(row, "revocations", 2),
                    spread_of(row, "refund_usd", 3),
                    spread_of(row, "checkpoints", 1),
                    spread_of(row, "steps_lost", 1),
                    str(row["unfinished"]),
                ],
            }
        )
    return rows


def _saved(share: float) -> str:
    return f"{share:.0%}" if share >= 0.0 else f"{-share:.0%} more"
