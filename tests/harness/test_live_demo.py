"""The live demo, as run by `make demo-live`: a real network, trained on machines that are revoked often."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from tests.harness.live_demo import live_demo

EXAMPLE = Path(__file__).parents[2] / "examples" / "live"


@pytest.mark.long
@pytest.mark.usefixtures("processes")
def test_nothing_is_lost_and_weights_are_those_of_an_undisturbed_training(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    shutil.copy(EXAMPLE / "train.py", code)
    content = yaml.safe_load((EXAMPLE / "sweep.yaml").read_text())
    # Four of the sixteen settings.
    content["grid"] |= {"lr": [0.1, 0.03], "width": [8]}
    (code / "sweep.yaml").write_text(yaml.safe_dump(content))
    # Long enough a notice on a busy machine.
    report = live_demo(code / "sweep.yaml", tmp_path / "runs", notice_s=12.0)
    assert report.trials == 4
    assert report.revocations > 0
    assert report.identical_weights
    assert (report.steps_lost, report.steps_counted_twice) == (0, 0), report
    assert report.instances_left_running == 0
    assert report.ledger_difference_usd == pytest.approx(0, abs=1e-12)
    assert report.cost_usd > 0
    assert report.saved_share > 0
