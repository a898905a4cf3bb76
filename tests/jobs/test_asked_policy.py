"""The policy in a job's file: a name, or a name with parameters."""

from __future__ import annotations

import math
from datetime import date
from pathlib import Path

import pytest
import yaml

from ebbtide.errors import InputError
from ebbtide.jobs.asked_policy import AskedPolicy
from ebbtide.jobs.job_files import read_sweep
from ebbtide.jobs.sweep import Sweep


def written(folder: Path, policy: object) -> Path:
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump({"command": "python train.py", "policy": policy}))
    return file


def test_a_name_alone_or_with_parameters(tmp_path: Path) -> None:
    assert read_sweep(written(tmp_path, "reactive")).policy == AskedPolicy(name="reactive")
    asked = read_sweep(written(tmp_path, {"name": "dynamic-pricing-cost", "slo_h": 30, "quotas": {"a": 2}})).policy
    assert asked is not None
    assert asked.name == "dynamic-pricing-cost"
    assert asked.parameters == {"slo_h": 30, "quotas": {"a": 2}}


def test_it_is_kept_with_a_sweep(tmp_path: Path) -> None:
    sweep = read_sweep(written(tmp_path, {"name": "reactive", "max_price_ratio": 0.5, "most": math.inf}))
    assert sweep.policy == AskedPolicy(name="reactive", max_price_ratio=0.5, most=math.inf)
    assert Sweep.model_validate(sweep.model_dump(mode="json")).policy == sweep.policy


def test_a_file_of_its_own_is_found_beside_the_job(tmp_path: Path) -> None:
    (tmp_path / "mine.py").touch()
    (tmp_path / "mine.yaml").touch()
    for name in ("mine.py:Mine", "mine.yaml"):
        asked = read_sweep(written(tmp_path, name)).policy
        assert asked is not None
        assert asked.name == f"{tmp_path}/{name}"
    asked = read_sweep(written(tmp_path, {"name": "package.module:Mine", "level": 1})).policy
    assert asked == AskedPolicy(name="package.module:Mine", level=1)


def test_a_name_that_no_path_has_is_none_of_a_file(tmp_path: Path) -> None:
    for name in ("a" * 5000, "a\0b"):
        assert AskedPolicy(name=name).beside(tmp_path / "job.yaml").name == name


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ({"slo_h": 30}, "field policy.name: missing"),
        (["reactive"], r"field policy: is \['reactive'\]; a policy's name is needed, or a mapping"),
        (5, "field policy: is 5; a policy's name is needed"),
        ("", "field policy.name"),
        ({"name": "reactive", "a": date(2026, 1, 1)}, r"a is datetime.date\(2026, 1, 1\); numbers, text, lists"),
        ({"name": "reactive", "a": {"b": [b"\xff"]}}, r"a is \{'b': \[b'.xff'\]\}; numbers, text, lists"),
    ],
)
def test_what_is_no_policy_is_told(tmp_path: Path, policy: object, told: str) -> None:
    with pytest.raises(InputError, match=told):
        read_sweep(written(tmp_path, policy))
