"""Sections of params.yaml, as every stage and the nightly flow read them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from flows.parameters import parameters

from ebbtide.errors import InputError

ROOT = Path(__file__).parents[2]


def test_a_section_is_a_mapping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("nightly: {push: true}\nseed: 1\n")
    assert parameters("nightly") == {"push": True}
    for section in ("seed", "absent"):
        with pytest.raises(InputError, match=section):
            parameters(section)
    Path("params.yaml").write_text("nightly: [")
    with pytest.raises(InputError, match="is not YAML"):
        parameters("nightly")


@pytest.mark.usefixtures("processes")
def test_a_stage_elsewhere_ends_with_one_line(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "pipelines.interpolate"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 2
    assert ran.stderr == "ebbtide: params.yaml: there is no such file; run from the project's folder\n"
