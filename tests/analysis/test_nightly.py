"""What a night tells."""

from __future__ import annotations

import json
from pathlib import Path

from ebbtide.analysis.nightly import Figures, Night, costs_picture, keep_figures, kept_figures, read_figures
from ebbtide.market.ingestion import Verdict

BEFORE = Figures(
    {"revpred (Brier)": 0.2}, {"day": {"on-demand": 5.0, "reactive": 1.0}}, {"day": {"reactive": 0}}, "1"
)
AFTER = Figures(
    {"revpred (Brier)": 0.1},
    {"day": {"on-demand": 5.0, "reactive": 1.5, "wild": 0.2}, "sweep": {"wild": 0.1}},
    {"day": {"wild": 3}},
    "2",
)
NIGHT = Night(
    [Verdict(Path("in/day.parquet"), 12)],
    [Verdict(Path("in/bad.csv"), 0, "has no column")],
    (100, 112),
    ["ingest"],
    BEFORE,
    AFTER,
    pushed=True,
)


def test_it_tells_what_was_added_what_ran_and_what_became_better() -> None:
    told = NIGHT.summary()
    assert "Prices: 112 change points, 12 new." in told
    assert "- added `day.parquet`: 12 rows" in told
    assert "- **set aside** `bad.csv`: has no column" in told
    assert "Stages run: ingest." in told
    assert "| model | revpred (Brier) | 0.2 | 0.1 | better |" in told
    assert "| policy | day: on-demand | 5 | 5 | same |" in told
    assert "| policy | day: reactive | 1 | 1.5 | worse |" in told
    assert "| policy | day: wild | - | 0.2 | new |" in told
    assert "| policy | sweep: wild | - | 0.1 | new |" in told
    # What does not always finish is no saving, and without on-demand machines there is nothing to compare with.
    assert (
        "- day: cheapest policy that always finishes: reactive, 70% below on-demand (before: reactive, 80%)."
        in told
    )
    assert "- sweep:" not in told
    assert "version 2, new: better on later data" in told
    assert "pushed to the DVC remote" in told
    assert costs_picture(NIGHT).startswith(b"\x89PNG")


def test_figures_are_read_from_what_stages_wrote_and_kept(tmp_path: Path) -> None:
    assert read_figures(tmp_path, None) == Figures()
    reports = {
        "metrics": {
            "jobs": {
                "day": {"policies": {"reactive": {"cost_usd": {"mean": 0.5}, "unfinished": 1}}},
                "late": {"policies": {"deadline": {"cost_usd": {"mean": 0.7}, "unfinished": 0, "missed": 2}}},
            }
        },
        "revpred": {"pooled": {"published": {"brier": 0.2}, "5%": {"brier": 0.4}}},
        "price-chains": {"scores": {"log_likelihood": -0.25}},
        "earlycurve": {"methods": {"earlycurve": {"0.7": {"relative_error_mean": 0.01}}, "slaq": {}}},
    }
    for name, content in reports.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    found = read_figures(tmp_path, "3")
    assert found.costs == {"day": {"reactive": 0.5}, "late": {"deadline": 0.7}}
    assert found.unfinished == {"day": {"reactive": 1}, "late": {"deadline": 2}}
    assert found.best("day") == found.best("late") == ""
    assert found.saving("day") is None
    assert {name.split()[0]: round(value, 6) for name, value in found.models.items()} == {
        "revpred": 0.3,
        "price": 0.25,
        "earlycurve": 0.01,
    }
    keep_figures(found, tmp_path / "kept.json")
    assert kept_figures(tmp_path / "kept.json") == found
    assert kept_figures(tmp_path / "none.json") == Figures()
