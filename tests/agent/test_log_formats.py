"""Logs as tools print them: what is read of each, and that nothing is read of what is no progress."""

from __future__ import annotations

import pytest
from tests.agent.log_samples import LOGS, NO_LOGS, Sample

from ebbtide.agent.progress import LogLines


@pytest.mark.parametrize("sample", LOGS, ids=[sample.name for sample in LOGS])
def test_a_log_tells_step_total_and_metric(sample: Sample) -> None:
    reader = LogLines(sample.metric)
    told = [found for line in sample.lines if (found := reader.report_of(line))]
    steps = [found["step"] for found in told]
    assert steps, "nothing was recognised"
    assert (steps[-1], steps) == (sample.step, sorted(steps))
    values = [found[sample.metric] for found in told if sample.metric in found]
    assert (values[-1] if values else None) == sample.value
    assert (reader.unit, reader.total) == (sample.unit, sample.total)
    assert reader.refused == 0


@pytest.mark.parametrize("lines", NO_LOGS.values(), ids=NO_LOGS)
def test_what_is_no_progress_is_not_taken_for_it(lines: tuple[str, ...]) -> None:
    reader = LogLines("loss")
    assert [reader.report_of(line) for line in lines] == [{}] * len(lines)
    reader = LogLines("loss", 5)
    assert [reader.report_of(line) for line in lines] == [{}] * len(lines)
