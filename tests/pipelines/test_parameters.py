"""Sections of params.yaml, as every stage and the nightly flow read them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from flows.nightly import nightly
from flows.parameters import SECTIONS, Execute, Interpolate, Workload, check_parameters, parameters

from ebbtide.errors import InputError
from ebbtide.forecasts.learning_curves.methods import table_two_curves

ROOT = Path(__file__).parents[2]


def section(text: str) -> Interpolate:
    """Section `interpolate` of a params.yaml with this text."""
    Path("params.yaml").write_text(text)
    return parameters(Interpolate)


def test_a_section_is_a_checked_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert section("interpolate: {step_s: 60, method: step, max_gap_s: null}\nother: 1\n").step_s == 60.0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("interpolate: 1\n", "params.yaml, field interpolate: is missing or is not a mapping"),
        ("other: {}\n", "params.yaml, field interpolate: is missing or is not a mapping"),
        ("interpolate: [", "params.yaml, row 1: is not YAML"),
        ("interpolate: {step_s: 60, method: linea, max_gap_s: null}", "field interpolate.method: Input should be"),
        ("interpolate: {step_s: 60, method: step}", "field interpolate.max_gap_s: missing"),
        ("interpolate: {steps_s: 6, step_s: 6, method: step, max_gap_s: 1}", "did you mean step_s"),
        ("interpolate: {step_s: 0, method: cubic, max_gap_s: 1}", "2 problems"),
    ],
)
def test_what_is_wrong_in_a_section_is_told_by_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=problem):
        section(text)


def test_a_night_checks_all_sections_before_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    content = yaml.safe_load((ROOT / "params.yaml").read_text())
    content["evaluate"] = {}
    Path("params.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(InputError, match="field evaluate.experiment: missing"):
        nightly.fn()
    assert [path.name for path in tmp_path.iterdir()] == ["params.yaml"]


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("execute.runs.array.policies", ["exospere"], "array.policies: .*'exospere'.*did you mean 'exosphere'"),
        ("execute.runs.array.policies", ["cookbook"], "array.policies: cookbook is for workflows, and .* is none"),
        ("execute.runs.array.policies", [" "], "array.policies.0: .*name of a policy is missing"),
        (
            "execute.runs.array.job",
            "jobs/none.yaml",
            "field execute.runs.array.job: there is no file jobs/none.yaml",
        ),
        ("solve.deadline.job", "jobs/none.yaml", "field solve.deadline.job: there is no file jobs/none.yaml"),
        ("promote.jobs.hazard", "jobs/none.yaml", "field promote.jobs.hazard: there is no file jobs/none.yaml"),
        ("execute.runs.workflow.every_h", float("inf"), "field execute.runs.workflow.every_h: .*finite"),
        (
            "measure_curves.workloads",
            ["svm", "resnett"],
            "field measure_curves.workloads.1: .*'alexnet' or 'resnet'",
        ),
        ("measure_curves.workloads", ["resnet"], "field measure_curves.workloads: .*at least 2"),
        (
            "measure_curves.workloads",
            ["svm", "alexnet"],
            "promote.curves: is resnet, which measure_curves.workloads",
        ),
        ("promote.curves", "resnett", "field promote.curves: .*'alexnet' or 'resnet'"),
        ("nightly.branch", "", "field nightly.branch: .*at least 1"),
    ],
)
def test_what_is_wrong_is_told_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, value: Any, problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("examples", "jobs"):
        Path(folder).symlink_to(ROOT / folder)
    content = yaml.safe_load((ROOT / "params.yaml").read_text())
    Path("params.yaml").write_text(yaml.safe_dump(content))
    check_parameters()
    *parents, name = path.split(".")
    section = content
    for parent in parents:
        section = section[parent]
    assert name in section or name == "every_h"
    section[name] = value
    Path("params.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(InputError, match=problem):
        check_parameters()


def test_curves_are_those_of_table_two() -> None:
    assert set(get_args(Workload)) == {curve.workload for curve in table_two_curves()}


def test_every_section_of_the_project_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    content = yaml.safe_load((ROOT / "params.yaml").read_text())
    assert set(content) - set(SECTIONS) == {"reproduce"}
    for model in SECTIONS.values():
        parameters(model)


@pytest.mark.usefixtures("processes")
def test_a_stage_elsewhere_ends_with_one_line(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "pipelines", "interpolate", "prices=a", "into=b"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 2
    assert ran.stderr == "ebbtide: params.yaml: there is no such file; run from the project's folder\n"


def test_own_policies_are_where_dvc_sees_them_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    content = yaml.safe_load((ROOT / "params.yaml").read_text())
    own = content["execute"]["runs"]["array"]["policies"]
    own.append("")
    for outside in ("own.py:Own", "own:Own", " own.yaml ", "pipelines/inputs/policies/../own.py:Own"):
        own[-1] = outside
        Path("params.yaml").write_text(yaml.safe_dump(content))
        with pytest.raises(InputError, match=r"is no file in pipelines/inputs/policies, .* move it there"):
            parameters(Execute)
    own[-1] = "pipelines/inputs/policies/own.py:Own"
    Path("params.yaml").write_text(yaml.safe_dump(content))
    assert parameters(Execute).runs["array"].policies[-1] == own[-1]


@pytest.mark.usefixtures("processes")
def test_a_prefect_server_that_is_gone_is_told_in_one_line(tmp_path: Path) -> None:
    environment = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    ran = subprocess.run(
        [sys.executable, "-m", "pipelines", "measure_speeds", "measured=a", "into=b", "metrics=c"],
        cwd=tmp_path,
        env={**os.environ, **environment, "PREFECT_API_URL": "http://127.0.0.1:9/api"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2
    assert ran.stderr.startswith("ebbtide: Prefect's server does not answer at http://127.0.0.1:9/api; start it")
    assert len(ran.stderr.splitlines()) == 1
