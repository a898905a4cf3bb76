"""`backtest` and `compare`: who is asked unless told, one's own policies, workers, and how far it is."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import ebbtide as eb
from ebbtide.backtesting import replays
from ebbtide.backtesting.comparison import FLOOR
from ebbtide.cli.main import main
from ebbtide.policies.registry import USUAL

ROOT = Path(__file__).parents[2]
JOB = str(ROOT / "examples" / "one-day.yaml")

OWN = """
from ebbtide.policies.baselines import Reactive

def mine():
    return Reactive(max_price_ratio=0.9, name="mine")

class Costly:
    name, wakes_on = "costly", frozenset()
    def __init__(self, budget_usd):
        pass
    def decide(self, view):
        return []
"""


@pytest.fixture(scope="module")
def prices(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("prices") / "prices.parquet"
    eb.generate_prices(days=20, seed=1, kind="auction").write(path)
    return str(path)


@pytest.fixture(autouse=True)
def own_search_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of policy files are searched for what they import: in these tests alone."""
    monkeypatch.setattr(sys, "path", list(sys.path))


def ran(*words: str) -> object:
    """The exit code of the command, run in this process."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    return ended.value.code


def test_unless_told_a_few_policies_are_asked(prices: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert ran("compare", JOB, "--prices", prices, "--starts", "1", "--json", str(out)) == 0
    assert list(json.loads(out.read_text())["policies"]) == list(USUAL)


def test_a_deadline_brings_a_policy_that_knows_it(prices: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert ran("compare", JOB, "--prices", prices, "--starts", "2", "--deadline", "30", "--json", str(out)) == 0
    rows = {row["policy"]: row for row in json.loads(out.read_text())["rows"]}
    assert {*USUAL, "deadline", FLOOR} == set(rows)
    assert rows["deadline"]["misses"] == 0
    assert rows["deadline"]["makespan_h"] <= 30.0
    # On the cheapest machine a day's work takes four.
    assert rows["cheapest-spot"]["misses"] == 2


@pytest.mark.usefixtures("processes")
def test_ones_own_policy_is_compared_whatever_the_workers(
    prices: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_policy.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(replays, "_ALONE_S", 0.0)
    texts = []
    for workers in ("1", "2"):
        out = tmp_path / f"{workers}.json"
        words = [
            "--policies",
            "my_policy.py:mine,reactive",
            "--starts",
            "4",
            "--workers",
            workers,
            "--json",
            str(out),
        ]
        assert ran("compare", JOB, "--prices", prices, *words) == 0
        texts.append(out.read_bytes())
    assert texts[0] == texts[1]
    assert list(json.loads(texts[0])["policies"]) == ["mine", "reactive"]


def test_mistakes_in_ones_own_policy_are_one_line(
    prices: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_policy.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    for name, told in {
        "other.py:Mine": "other.py: no such file",
        "my_policy.py:nine": "did you mean 'mine'?",
        "my_policy.py:Costly": "needs arguments (budget_usd)",
        "reactiv": "did you mean 'reactive'?",
    }.items():
        assert ran("compare", JOB, "--prices", prices, "--policies", name) == 2
        captured = capsys.readouterr()
        assert told in captured.err
        assert captured.err.count("\n") == 1
        assert captured.out == ""


def test_what_is_over_soon_says_nothing_of_how_far_it_is(prices: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ran("compare", JOB, "--prices", prices, "--starts", "2", "--policies", "reactive") == 0
    assert capsys.readouterr().err == ""
