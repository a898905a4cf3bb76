"""The described market's rates: near the paper's four figures, and nearer than where the search began."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ebbtide_papers.cumulon.calibration import calibrated, distance
from ebbtide_papers.cumulon.market import TransitionRates


@pytest.mark.long
def test_the_rates_bring_the_papers_four_figures_out() -> None:
    assert distance(TransitionRates(), traces=10_000) < 0.01
    for name in ("rise", "fall", "spike", "end"):
        assert (
            distance(replace(TransitionRates(), **{name: 2.0 * getattr(TransitionRates(), name)}), traces=10_000)
            > 0.01
        )


@pytest.mark.long
def test_the_search_goes_towards_them() -> None:
    begun, gone = calibrated(evaluations=1, traces=500), calibrated(evaluations=12, traces=500)
    assert distance(gone, traces=500) < distance(begun, traces=500)
