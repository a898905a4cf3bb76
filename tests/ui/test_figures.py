"""What the page draws agrees with the run's own books."""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ui.made_run import STEPS, made_run

from ebbtide.clouds.settings import RunFolder
from ebbtide.controller.journal.journal import Journal
from ebbtide.controller.run_state import controlling
from ebbtide.runs.status import standing_of
from ebbtide.ui.figures import RunFigures, _spread, _thinned


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return made_run(tmp_path_factory.mktemp("ui") / "runs", 8, stops_after_h=2.2)


def test_spend_ends_where_the_books_are(folder: RunFolder) -> None:
    found = RunFigures.of(folder).spend()
    figures = Journal(folder.journal, read_only=True).figures()
    assert figures is not None
    assert found["spent_usd"][-1] == pytest.approx(figures["spent_usd"])
    assert found["times_s"] == sorted(found["times_s"])
    assert found["times_s"][-1] == figures["time_s"]
    assert all(one <= other + 1e-12 for one, other in itertools.pairwise(found["on_demand_usd"]))
    assert found["on_demand_usd"][-1] > found["spent_usd"][-1] > 0.0
    assert found["budget_usd"] == 40.0
    # Refunds are what makes it fall.
    assert any(one > other for one, other in itertools.pairwise(found["spent_usd"]))


def test_machines_lie_on_the_price_lines(folder: RunFolder) -> None:
    found = RunFigures.of(folder).machines()
    lines = {line["market"]: line["points"] for line in found["markets"]}
    with controlling(folder.path):
        standing = standing_of(folder, folder.catalogue)
    assert len(found["machines"]) >= standing.rented_ever > 8
    assert math.fsum(one["usd"] for one in found["machines"]) == pytest.approx(standing.money.paid_usd, rel=1e-3)
    for machine in found["machines"]:
        if machine["on_demand"] or machine["started_s"] is None:
            continue
        points = lines[machine["market"]]
        for time_s, usd in machine["line"][:-1]:
            assert usd == [price for at_s, price in points if at_s <= time_s][-1]
        assert machine["line"][0][0] == machine["started_s"]


def test_curves_are_whole_and_unfinished_ones_have_an_end(folder: RunFolder) -> None:
    found = RunFigures.of(folder).curves()
    assert (found["metric"], found["max_steps"], len(found["trials"])) == ("loss", STEPS, 8)
    for trial in found["trials"]:
        assert len(trial["steps"]) == len(trial["values"]) <= 200
        if trial["predicted"] is not None:
            assert trial["predicted"]["lower"] <= trial["predicted"]["value"] <= trial["predicted"]["upper"]
            assert trial["predicted"]["step"] == STEPS
    assert sum(trial["predicted"] is not None for trial in found["trials"]) > 3


def test_a_trial_that_was_ended_early_shows_where_it_would_have_ended(folder: RunFolder) -> None:
    figures = RunFigures.of(folder)
    kept = copy.deepcopy(figures.kept)
    assert kept is not None
    for job in kept["engine"]["jobs"]:
        job["finished_s"], job["stopped"] = 1e9, job is kept["engine"]["jobs"][0]
    found = replace(figures, kept=kept).curves()["trials"]
    assert [trial["predicted"] is not None for trial in found] == [True] + [False] * 7


def test_a_run_that_has_not_begun_has_no_figures(folder: RunFolder, tmp_path: Path) -> None:
    empty = RunFolder(tmp_path / "new")
    empty.begin(folder.settings)
    figures = RunFigures.of(empty)
    assert figures.curves()["trials"] == []
    assert figures.machines() == {"now_s": None, "machines": [], "markets": []}
    assert figures.spend()["spent_usd"] == []


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 50), st.floats(-5, 5)), max_size=20))
def test_amounts_are_spread_over_their_time(given_spans: list[tuple[float, float, float]]) -> None:
    spans = [(start, start + length, usd) for start, length, usd in given_spans]
    times = np.array([-1.0, 25.0, 75.0, 200.0])
    for at, total in zip(times.tolist(), _spread(times, spans).tolist(), strict=True):
        recount = 0.0
        for start, end, usd in spans:
            if at >= end:
                recount += usd
            elif at > start:
                recount += usd * (at - start) / (end - start)
        assert total == pytest.approx(recount, abs=1e-9)


@given(st.integers(0, 5000))
def test_a_thinned_line_keeps_its_ends(count: int) -> None:
    line = [(float(place), 0.5 * place) for place in range(count)]
    kept = _thinned(line)
    assert len(kept) == min(count, 200)
    assert kept[:1] == line[:1]
    assert kept[-1:] == line[-1:]
    assert kept == sorted(kept)
