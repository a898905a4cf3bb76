"""What a night tells."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from ebbtide.market.ingestion import BatchVerdict
from ebbtide.tracking.due_runs import DueResult
from ebbtide.tracking.night_state import NightReport, NightState
from ebbtide.tracking.nightly import (
    Night,
    PipelineFigures,
    costs_picture,
    keep_figures,
    kept_figures,
    read_figures,
)

BEFORE = PipelineFigures(
    {"revpred (Brier)": 0.2},
    {"day": {"on-demand": 5.0, "reactive": 1.0}},
    {"day": {"reactive": 0}},
    {"revpred": "1"},
)
AFTER = PipelineFigures(
    {"revpred (Brier)": 0.1},
    {"day": {"on-demand": 5.0, "reactive": 1.5, "wild": 0.2}, "sweep": {"wild": 0.1}},
    {"day": {"wild": 3}},
    {"revpred": "2"},
    {"revpred": "version 2 is the new champion: cheaper"},
)
NIGHT = Night(
    [BatchVerdict(Path("in/day.parquet"), 12)],
    [BatchVerdict(Path("in/bad.csv"), 0, "has no column")],
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
    assert "- revpred: version 2 is the new champion: cheaper." in told
    assert "Data and models are pushed." in told
    assert costs_picture(NIGHT).startswith(b"\x89PNG")


def test_it_tells_what_was_trained_and_what_failed_and_which_models_changed() -> None:
    done = DueResult("small", "2026-11-22T02:00:00Z", "small-1", "finished", "", 5, 0.5, 0.1, 2.0)
    wrong = DueResult("lost", "2026-11-22T02:00:00Z", problem="nowhere.py is not there")
    before, after = (
        replace(BEFORE, versions={"revpred": "1"}),
        replace(AFTER, versions={"revpred": "2", "spells": "1"}),
    )
    told = replace(NIGHT, jobs=[done, wrong], before=before, after=after, promoted=["revpred"]).summary()
    assert "Trained for 0.5000 USD; on demand 2.0000 USD." in told
    assert "- `small`: 0.5000 USD, 5 revocations, finished" in told
    assert "- **`lost` did not finish**: nowhere.py is not there" in told
    assert "- `revpred`: 1, now 2\n- `spells`: none, now 1" in told
    assert "Promoted: revpred." in told
    assert "No job was due." in NIGHT.summary()


def test_a_night_that_was_killed_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "night.json"
    assert NightState.read(path) is None
    night = NightState(1.5, 7).with_verdicts(
        [BatchVerdict(Path("a.csv"), 3), BatchVerdict(Path("b.csv"), 0, "bad")]
    )
    night = night.with_stages(["ingest"]).with_due([("jobs/a.yaml", 60.0)])
    assert night.write(path) == NightState.read(path) == night
    # Started again, it checks nothing twice, and what is due is due once.
    again = night.with_verdicts([BatchVerdict(Path("b.csv"), 0, "bad")]).with_stages(["ingest", "interpolate"])
    again = again.with_due([("jobs/a.yaml", 60.0), ("jobs/b.yaml", 60.0)])
    assert [verdict.file.name for verdict in again.batches(accepted=True)] == ["a.csv"]
    assert [verdict.problem for verdict in again.batches(accepted=False)] == ["bad"]
    assert (again.stages, len(again.due)) == (("ingest", "interpolate"), 2)
    # Of a job that was not begun, the newest time counts.
    begun = again.with_due([("jobs/a.yaml", 120.0), ("jobs/b.yaml", 120.0)], lambda file, _: file == "jobs/a.yaml")
    assert begun.due == (("jobs/a.yaml", 60.0), ("jobs/a.yaml", 120.0), ("jobs/b.yaml", 120.0))
    report = NightReport(1, 5, 0.5, 2.0, {"revpred": "2"}, ["revpred"], 3.0)
    report.write(tmp_path / "nightly.json")
    told = json.loads((tmp_path / "nightly.json").read_text())
    assert list(told) == [
        "jobs_done",
        "revocations",
        "cost_usd",
        "on_demand_usd",
        "models",
        "promoted",
        "seconds",
        "jobs",
    ]
    assert report.metrics["cost_usd"] == 0.5


def test_figures_are_read_from_what_stages_wrote_and_kept(tmp_path: Path) -> None:
    assert read_figures(tmp_path) == PipelineFigures()
    reports = {
        "metrics": {
            "jobs": {
                "day": {"policies": {"reactive": {"cost_usd": {"mean": 0.5}, "unfinished": 1}}},
                "late": {"policies": {"deadline": {"cost_usd": {"mean": 0.7}, "unfinished": 0, "missed": 2}}},
            }
        },
        "revpred": {"pooled": {"published": {"brier": 0.2}, "5%": {"brier": 0.4}}},
        "price-chains": {"scores": {"log_likelihood": -0.25}},
        "promotion": {
            "kinds": {
                "revpred": {"version": "3", "champion_after": "2", "reason": "remains a challenger"},
                "speeds": {"version": "1", "champion_after": None, "reason": "is not asked"},
            }
        },
        "earlycurve": {"methods": {"earlycurve": {"0.7": {"relative_error_mean": 0.01}}, "slaq": {}}},
    }
    for name, content in reports.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    found = read_figures(tmp_path)
    assert found.champions == {"revpred": "2"}
    assert found.verdicts["revpred"] == "version 3 remains a challenger"
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
    assert kept_figures(tmp_path / "none.json") == PipelineFigures()
