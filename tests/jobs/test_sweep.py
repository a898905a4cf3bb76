"""Sweeps as users write them: every setting, safe arguments, errors that name the field."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import ebbtide as eb
from ebbtide.errors import InputError
from ebbtide.jobs.common_fields import Direction
from ebbtide.jobs.one_training import literal
from ebbtide.jobs.sweep import Sweep

EXAMPLE = Path(__file__).parents[2] / "examples" / "sweep.yaml"

BASE: dict[str, Any] = {
    "name": "s",
    "command": "python train.py --lr {lr}",
    "grid": {"lr": [0.1, 0.01]},
    "metric": "loss",
    "max_trial_steps": 100,
}


def read(tmp_path: Path, **changes: Any) -> Sweep:
    content = {key: value for key, value in (BASE | changes).items() if value is not ...}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return Sweep.read(tmp_path / "sweep.yaml")


def test_the_example_is_a_sweep() -> None:
    sweep = Sweep.read(EXAMPLE)
    assert len(sweep.trials()) == len(sweep.jobs()) == 16
    assert sweep.direction is Direction.MINIMIZE
    assert sweep.arguments(sweep.trials()[3])[2:] == ("--lr", "0.1", "--depth", "32", "--batch-size", "128")


def test_a_grid_is_every_combination_in_order(tmp_path: Path) -> None:
    sweep = read(tmp_path, command="x {lr} {depth}", grid={"lr": [1, 2], "depth": ["a", "b", "c"]})
    rows = [(trial.values["lr"], trial.values["depth"]) for trial in sweep.trials()]
    assert rows == [(1, "a"), (1, "b"), (1, "c"), (2, "a"), (2, "b"), (2, "c")]
    assert [trial.number for trial in sweep.trials()] == list(range(6))


def test_random_settings_are_the_same_for_the_same_seed(tmp_path: Path) -> None:
    drawn = {
        "lr": {"log_uniform": [1e-4, 1e-1]},
        "n": {"integers": [2, 4]},
        "act": {"choice": ["relu", "gelu"]},
        "p": {"uniform": [0.0, 0.5]},
    }
    ways = {"samples": 200, "seed": 3, "parameters": drawn}
    command = "x {lr} {n} {act} {p}"
    one, two = (read(tmp_path, grid=..., random=ways, command=command).trials() for _ in range(2))
    assert one == two
    other = read(tmp_path, grid=..., random=ways | {"seed": 4}, command=command).trials()
    assert other != one
    assert all(1e-4 <= float(trial.values["lr"]) <= 1e-1 for trial in one)
    assert {trial.values["n"] for trial in one} == {2, 3, 4}
    # Evenly by the logarithm: a third of three decades each.
    assert 40 < sum(float(trial.values["lr"]) < 1e-3 for trial in one) < 95


def test_a_value_is_one_argument_and_never_shell_text(tmp_path: Path) -> None:
    sweep = read(tmp_path, grid=..., list=[{"lr": "1; rm -rf / $(x) {y}"}])
    assert sweep.arguments(sweep.trials()[0]) == ("python", "train.py", "--lr", "1; rm -rf / $(x) {y}")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"command": "x {lr} {depth}"}, r"command asks for \{depth\}; there are lr"),
        ({"command": "x {lr.__class__} {lr}"}, r"command asks for \{lr.__class__\}"),
        ({"command": "x"}, r"parameter lr is not in the command; write \{lr\}"),
        ({"command": "x '{lr}"}, "command is malformed: No closing quotation"),
        ({"entry_point": "a.b:c"}, "needs either command or entry_point"),
        ({"command": ..., "entry_point": "a.b"}, "not of the form package.module:function"),
        ({"list": [{"lr": 1}]}, "needs one of grid, list, random, not grid and list"),
        ({"grid": {"lr": []}}, "field grid.lr"),
        ({"theta": 1.5}, "field theta: Input should be less than or equal to 1"),
        ({"budget": 3}, "field budget: unknown field; did you mean budget_usd"),
        ({"steps_per_hour": {"c3.xlage": 10}}, "field steps_per_hour.c3.xlage"),
        (
            {"grid": ..., "random": {"samples": 2, "parameters": {"lr": {"uniform": [2, 1]}}}},
            "a lower and a higher",
        ),
        *(
            (
                {"grid": ..., "random": {"samples": 2, "parameters": {"lr": drawn}}},
                "needs bounds between -1e[+]15 and 1e[+]15",
            )
            for drawn in ({"uniform": [-1.7e308, 1.7e308]}, {"uniform": [0, math.inf]}, {"integers": [0, 10**30]})
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_field(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem) as told:
        read(tmp_path, **changes)
    assert str(tmp_path / "sweep.yaml") in str(told.value)


def test_speed_not_measured_makes_no_jobs(tmp_path: Path) -> None:
    sweep = read(tmp_path)
    assert not sweep.is_measured
    with pytest.raises(InputError, match="speed of sweep s is not measured"):
        sweep.jobs()


def test_markets_are_filtered(tmp_path: Path) -> None:
    prices = eb.generate_prices(days=1, seed=1, kind="auction")
    sweep = read(tmp_path, markets={"instance_types": ["c3.xlarge"]})
    assert {market.instance_type for market in sweep.allowed(prices)} == {"c3.xlarge"}
    with pytest.raises(InputError, match="allows none of the"):
        read(tmp_path, markets={"clouds": ["gcp"]}).allowed(prices)


def test_more_trials_than_anyone_tries_are_refused_before_any_is_made(tmp_path: Path) -> None:
    names = [f"p{n}" for n in range(10)]
    command = "x " + " ".join(f"{{{name}}}" for name in names)
    # All of them would take hours to make, and more memory than there is.
    with pytest.raises(InputError, match="has 10,000,000,000 trials; 10,000 at most"):
        read(tmp_path, command=command, grid={name: list(range(10)) for name in names})


@pytest.mark.parametrize("asked", ["{lr!r}", "{lr:d}", "{lr: >8}", "{lr.real}", "{lr[0]}", "{0}", "{}", "{ lr}"])
def test_only_a_name_stands_between_braces(tmp_path: Path, asked: str) -> None:
    with pytest.raises(InputError, match="command asks for {.*only a parameter's name may stand|is malformed"):
        read(tmp_path, command=f"x {{lr}} {asked}")


def test_braces_are_written_twice(tmp_path: Path) -> None:
    sweep = read(tmp_path, command="x {lr} '{{\"a\": 1}}'")
    assert sweep.arguments(sweep.trials()[0]) == ("x", "0.1", '{"a": 1}')


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), min_size=1))
def test_a_list_of_arguments_is_never_split_or_joined(arguments: list[str]) -> None:
    command = ["x", *(literal(argument) for argument in arguments)]
    sweep = Sweep(name="s", command=command)
    assert sweep.arguments(sweep.trials()[0]) == ("x", *arguments)
    assert Sweep.model_validate_json(sweep.model_dump_json()) == sweep


def test_trials_are_made_once_and_anew_where_they_are_others(tmp_path: Path) -> None:
    sweep = read(tmp_path)
    assert sweep.trials() is sweep.trials()
    other = sweep.model_copy(update={"grid": {"lr": [0.5]}})
    assert [trial.values for trial in other.trials()] == [{"lr": 0.5}]
    assert len(sweep.trials()) == 2


def test_speed_not_measured_is_no_obstacle_to_a_run(tmp_path: Path) -> None:
    (job, _) = read(tmp_path).live_jobs()
    assert (job.name, job.steps) == ("s-0", 100)
    assert job.steps_per_hour["c3.xlarge"] > job.steps_per_hour["m3.medium"] > 0


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"max_trial_steps": int("9" * 300)}, "max_trial_steps"),
        ({"command": "python train.py \0x"}, "command has a NUL character"),
        ({"command": ["python", "a\0b"]}, "command has a NUL character"),
        (
            {"command": "python {lr}", "list": [{"lr": "a\0b"}], "metric": "loss"},
            "parameter lr has a NUL character",
        ),
    ],
)
def test_what_no_run_could_begin_with_is_refused_at_the_door(changed: dict[str, Any], problem: str) -> None:
    values = {"name": "s", "command": "python train.py", "max_trial_steps": 10, **changed}
    with pytest.raises(InputError, match=problem):
        Sweep.parse(values, "sweep.yaml")
