"""Several jobs in one file: what each runs, what it needs, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ebbtide.errors import InputError
from ebbtide.jobs.job import Coupling
from ebbtide.jobs.job_files import FileKind, kind_of, read_runnable, read_sweep, read_work
from ebbtide.jobs.job_list import JobList, runnable
from ebbtide.market.catalogue import default_catalogue
from ebbtide.market.generator import demo_markets, generate_auction_prices

KNOWN = {"steps": 1000, "steps_per_hour": {"c3.xlarge": 500, "m3.medium": 200}}
PREPARE = {"name": "prepare", "tasks": 4, "command": "python prepare.py {task}"}
TRAIN = {"name": "train", "needs": "prepare", "command": "python train.py", "machines": 2, **KNOWN}
SWEEP = {
    "name": "sweep",
    "command": "python t.py {lr}",
    "grid": {"lr": [1, 2]},
    "metric": "loss",
    "max_trial_steps": 10,
}
EVALUATE = {"needs": ["train", "sweep"], "command": "python evaluate.py", "policy": "on-demand"}


def file(tmp_path: Path, *jobs: Any, **fields: Any) -> Path:
    path = tmp_path / "nightly.yaml"
    path.write_text(yaml.safe_dump({"jobs": list(jobs), **fields}))
    return path


def read(tmp_path: Path, *jobs: Any, **fields: Any) -> JobList:
    found = read_runnable(file(tmp_path, *jobs, **fields), to_run=True)
    assert isinstance(found, JobList)
    return found


def test_each_job_is_of_its_own_kind(tmp_path: Path) -> None:
    found = read(tmp_path, PREPARE, TRAIN, SWEEP, EVALUATE, budget_usd=20)
    assert found.name == "nightly"
    assert found.job_names == ("prepare", "train", "sweep-0", "sweep-1", "evaluate")
    assert found.setting_names == ("prepare", "train", "sweep: lr=1", "sweep: lr=2", "evaluate")
    assert found.ids_of("sweep") == (2, 3)
    assert found.part_of(3)[1].values == {"lr": 2}
    array, gang, *_ = found.live_jobs()
    assert (array.coupling, array.steps, gang.machines) == (Coupling.INDEPENDENT, 4, 2)
    assert [job.needs for job in found.listed] == [(), ("prepare",), (), ("train", "sweep")]
    assert found.listed[3].policy is not None
    assert found.listed[3].policy.name == "on-demand"


def test_it_is_kept_as_plain_values(tmp_path: Path) -> None:
    found = read(tmp_path, PREPARE, TRAIN, SWEEP, EVALUATE, deadline_h=30, policy={"name": "reactive"})
    assert runnable(found.model_dump(mode="json")) == found


def test_a_job_runs_only_on_machines_with_what_it_asks_for(tmp_path: Path) -> None:
    wide = {"name": "wide", "command": "a", "cpus": 4, **KNOWN}
    typed = {"name": "typed", "command": "a", "markets": {"instance_types": ["m3.medium"]}}
    found = read(tmp_path, wide, typed, {"command": "b", "name": "any", **KNOWN})
    of_wide, of_typed, of_any = found.live_jobs()
    assert list(of_wide.steps_per_hour) == ["c3.xlarge"]
    assert list(of_typed.steps_per_hour) == ["m3.medium"]
    assert set(of_any.steps_per_hour) == {"c3.xlarge", "m3.medium"}


def test_markets_are_those_that_suit_a_job(tmp_path: Path) -> None:
    prices, known = generate_auction_prices(demo_markets(), days=3, seed=1), default_catalogue()
    typed = {"name": "typed", "command": "a", "markets": {"instance_types": ["m3.medium"]}}
    found = read(tmp_path, typed, markets={"regions": ["us-east-1"]})
    assert {market.instance_type for market in found.allowed(prices, known)} == {"m3.medium"}
    with pytest.raises(InputError, match=r"job typed allows none of the 3 markets"):
        read(tmp_path, typed, markets={"instance_types": ["c3.xlarge"]}).allowed(prices, known)
    with pytest.raises(InputError, match="markets of nightly allow none of the"):
        read(tmp_path, typed, markets={"regions": ["eu-west-9"]}).allowed(prices, known)


def test_a_deadline_leaves_time_for_those_that_come_after(tmp_path: Path) -> None:
    first = {"name": "first", "command": "a", **KNOWN}  # 2 h on the fastest machine it names
    second = {"name": "second", "command": "a", "needs": "first", **KNOWN}
    third = {"name": "third", "command": "a", "needs": "second", "deadline_h": 9, **KNOWN}
    found = read(tmp_path, first, second, third, deadline_h=10)
    assert [found.deadline_of(job) for job in found.listed] == [5.0, 7.0, 9.0]
    assert read(tmp_path, first).deadline_of(found.listed[0]) is None
    late = read(tmp_path, first, second, deadline_h=2)
    with pytest.raises(InputError, match=r"deadline_h: job first has no time: those that need it take 0 h more"):
        late.deadline_of(late.listed[0])


@pytest.mark.parametrize(
    ("jobs", "fields", "problem"),
    [
        ([], {}, r"field jobs: is empty, or no list"),
        (["train"], {}, r"field jobs\.0: is 'train'; a job is needed"),
        ([{"name": "x"}], {}, r"field jobs\.0\.command: missing"),
        ([PREPARE, PREPARE], {}, r"two jobs are named 'prepare'"),
        ([TRAIN], {}, r"job train needs 'prepare', and the jobs are train"),
        ([TRAIN, PREPARE], {}, r"job train stands before prepare, which it needs"),
        ([{**TRAIN, "needs": ["train"]}], {}, r"job train needs itself"),
        (
            [
                {**TRAIN, "needs": ["b"]},
                {**PREPARE, "name": "b", "needs": "c"},
                {**PREPARE, "name": "c", "needs": "train"},
            ],
            {},
            r"jobs need each other in a circle: train needs b, b needs c, c needs train; none of them could begin",
        ),
        ([{**PREPARE, "budget_usd": 3}], {}, r"field jobs\.0\.budget_usd: holds for all jobs"),
        (
            [{**PREPARE, "markets": {"regions": ["a"]}}],
            {},
            r"jobs\.0\.markets: of one job can name instance_types",
        ),
        ([{**PREPARE, "name": "../up"}], {}, r"letters, digits, dots"),
        ([{"name": "x", "jobs": [PREPARE]}], {}, r"jobs\.0\.jobs: is a list itself; lists do not nest"),
        ([{**TRAIN, "stepz": 3}], {}, r"jobs\.0\.stepz: unknown"),
        ([{**TRAIN, "needs": 3}], {}, r"field jobs\.0\.needs: is 3; the name of a job is needed"),
        ([PREPARE, {**TRAIN, "needs": ["prepare", "prepare"]}], {}, r"job train needs a job twice"),
        ([PREPARE, {**PREPARE, "name": "Prepare"}], {}, r"two jobs are named 'Prepare'"),
        ([SWEEP, {**PREPARE, "name": "sweep-0"}], {}, r"two trainings are named 'sweep-0'"),
        ([PREPARE], {"listed": []}, r"field listed: unknown"),
        ([PREPARE], {"budget_usd": -1}, r"field budget_usd"),
        ([PREPARE], {"buget_usd": 1}, r"field buget_usd: unknown"),
        ([PREPARE], {"command": "x"}, r"field command: .* as a list of jobs because of `jobs`; `command` is for"),
        ([PREPARE], {"decides": "capacity"}, r"decides: capacity needs a deadline_h"),
        ([{**TRAIN, "needs": [], "steps_per_hour": {"nope": 1}}], {}, r"jobs\.0\.steps_per_hour\.nope"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(
    tmp_path: Path, jobs: list[Any], fields: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InputError, match=problem) as found:
        read(tmp_path, *jobs, **fields)
    assert str(tmp_path) in str(found.value)


def test_other_commands_say_that_they_take_one_job(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a list of jobs, and one job is needed"):
        read_sweep(file(tmp_path, PREPARE))
    assert kind_of({"jobs": [{"name": "a", "work_h": 3}]}) is FileKind.WORKFLOW
    assert kind_of({"jobs": [PREPARE]}) is FileKind.LIST


def test_a_list_is_replayed_where_all_is_known(tmp_path: Path) -> None:
    work = read_work(file(tmp_path, {**TRAIN, "needs": []}, {**TRAIN, "name": "again", "needs": ["train"]}))
    assert [job.name for job in work.jobs] == ["train", "again"]
    with pytest.raises(InputError, match="the speed of job prepare is not measured"):
        read_work(file(tmp_path, PREPARE))


def test_a_job_s_own_deadline_is_one_for_those_that_it_needs(tmp_path: Path) -> None:
    first = {"name": "first", "command": "a", **KNOWN}
    second = {"name": "second", "command": "a", "needs": "first", "deadline_h": 5, **KNOWN}
    found = read(tmp_path, first, second)
    assert [found.deadline_of(job) for job in found.listed] == [3.0, 5.0]


def test_long_lists_are_read_and_planned_quickly(tmp_path: Path) -> None:
    """Layers in which each job needs all of the layer before, and a chain."""
    jobs: list[dict[str, Any]] = []
    for layer in range(60):
        needs = [f"j{layer - 1}-{side}x" for side in "ab"] if layer else []
        jobs += [{"name": f"j{layer}-{side}x", "command": "a", "needs": needs, **KNOWN} for side in "ab"]
    found = read(tmp_path, *jobs, deadline_h=200)
    assert found.deadline_of(found.listed[0]) == pytest.approx(200 - 59 * 2)
    chain = [{"name": f"c{n}x", "command": "a", "needs": [f"c{n - 1}x"] if n else [], **KNOWN} for n in range(600)]
    long = read(tmp_path, *chain, deadline_h=2000)
    assert long.deadline_of(long.listed[0]) == pytest.approx(2000 - 599 * 2)


def test_a_job_that_no_market_can_run_is_refused(tmp_path: Path) -> None:
    prices = generate_auction_prices(demo_markets(), days=3, seed=1)
    only = {"name": "only", "command": "a", "markets": {"instance_types": ["m3.medium"]}, "steps": 10}
    found = read(tmp_path, {**only, "steps_per_hour": {"c3.xlarge": 5}})
    with pytest.raises(
        InputError, match=r"job only has a speed on c3\.xlarge alone, and its markets have m3\.medium"
    ):
        found.allowed(prices, default_catalogue())


def test_measured_speeds_are_those_of_the_job_in_this_list(tmp_path: Path) -> None:
    path = file(tmp_path, {"name": "train", "command": "a", "steps": 5}, name="mine")
    speeds = {
        "train": {"steps_per_hour": {"c3.xlarge": 1.0}},
        "mine/train": {"steps_per_hour": {"c3.xlarge": 7.0}},
    }
    assert read_runnable(path, speeds=speeds).parts[0].steps_per_hour == {"c3.xlarge": 7.0}
