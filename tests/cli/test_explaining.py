"""`ebbtide why` of a real run: what is told is what was decided, and a person can check the sum."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import yaml
from tests.cli.test_running import command
from tests.runs.sweeps import flapping, sweep

import ebbtide as eb
from ebbtide.cli.explaining import decisions_table, explained
from ebbtide.cli.main import main
from ebbtide.clouds.settings import RunFolder
from ebbtide.controller.journal.journal import Journal
from ebbtide.engine.decisions import REQUESTED, Decision
from ebbtide.engine.explanation import Explanation
from ebbtide.errors import InputError
from ebbtide.jobs.job import UNKNOWN_STEPS
from ebbtide.market.billing import billing_preset
from ebbtide.market.markets import Market
from ebbtide.policies.api.reasons import Alternative
from ebbtide.replay.scenario import Scenario


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, processes: None) -> Path:
    """A folder with one run, two trials under prices that revoke now and then."""
    folder = tmp_path_factory.mktemp("why")
    wanted = sweep(folder, trials=2, steps=60)
    (folder / "sweep.yaml").write_text(yaml.safe_dump(wanted.model_dump(mode="json", exclude_none=True)))
    flapping().write(folder / "prices.parquet")
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "run",
                str(folder / "sweep.yaml"),
                "--prices",
                str(folder / "prices.parquet"),
                "--runs",
                str(folder / "runs"),
            ]
        )
    assert ended.value.code == 0
    return folder / "runs"


def test_all_decisions_are_listed_and_one_is_explained(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, errors = command(capsys, "why", "--runs", runs)
    assert (code, errors) == (0, "")
    assert "requested" in out
    name = next(path.name for path in runs.iterdir())
    for lease in ("0", "m0000", f"{name}-m0000"):
        code, out, _ = command(capsys, "why", name, lease, "--runs", runs)
        assert code == 0
        assert "why: it is expected to cost least until the job is done" in out
        assert "asked because of: start" in out
        assert re.search(r"^ \* ", out, re.MULTILINE)
        assert "lease 0 came to: " in out


def test_of_a_job_without_a_number_of_steps_costs_are_told_for_an_hour() -> None:
    """The first session of the README: no cost is of steps that nobody has."""
    market = Market("aws", "us-east-1", "us-east-1a", "c3.xlarge", "Linux/UNIX")
    made = Decision(
        1, 0.0, REQUESTED, 0, (0,), market, False, 1.0, ("start",), UNKNOWN_STEPS - 30.0, 0.0, "why",
        (Alternative("spot", 0.17, "x", market, True),), (), 1,
    )  # fmt: skip
    one = Explanation(made, "plain", (), 0.0, 1)
    lines = [part for part in explained(one) if isinstance(part, str)]
    unknown = "how many steps it has is not known: costs are for the work that what was chosen does in an hour"
    assert unknown in lines
    assert not any("steps left" in line for line in lines)
    (expected,) = (column for column in decisions_table([one]).columns if column.header == "expected USD")
    assert list(expected.cells) == ["0.170000 an hour"]
    plain = one.as_plain()["decision"]
    assert plain["has_steps"] is False
    assert math.isnan(plain["steps_left"])


@pytest.mark.parametrize("name", ["ebbtide", "spottune", "deepspotcloud-migrate", "cheapest-spot", "on-demand"])
def test_no_policy_tells_totals_of_a_job_without_a_number_of_steps(name: str) -> None:
    """By any policy a decision's costs are near the prices of an hour, and no sum has more steps than any job."""
    job = eb.Job(name="plain", steps=UNKNOWN_STEPS, other_steps_per_hour_per_vcpu=500.0)
    prices = eb.generate_prices(days=5, seed=1, kind="auction")
    scenario = Scenario((job,), prices, billing_preset("ec2-second"))
    outcome = scenario.run(eb.policy(name), prices.start_s + 4 * 86_400.0, record=True)
    asked = [one for one in outcome.made if one.action == REQUESTED]
    assert asked
    for one in asked:
        assert not one.has_steps
        chosen = next(offer for offer in one.offered if offer.market == one.market)
        assert (chosen.work_h, chosen.spot_usd) == (1.0, pytest.approx(chosen.spot_usd_per_hour))
        for weighed in one.alternatives:
            assert math.isnan(weighed.expected_usd) or 0.0 < weighed.expected_usd < 50.0
            assert not re.search(r"\d{6,}(\.\d+)? (steps|s|h)\b|e\+\d", weighed.how)


def test_what_is_told_as_json_adds_up(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = next(path.name for path in runs.iterdir())
    code, out, _ = command(capsys, "why", name, "--json", "--runs", runs)
    assert code == 0
    found = json.loads(out)
    requests = [one for one in found if one["decision"]["action"] == "requested"]
    paid = sum(machine["paid_usd"] for one in requests for machine in one["machines"])
    status = json.loads(command(capsys, "status", name, "--json", "--runs", runs)[1])
    assert paid == pytest.approx(status["money"]["paid_usd"])
    first = {one["job"]: one["later_usd"] for one in reversed(requests)}
    assert sum(first.values()) == pytest.approx(paid)
    for one in requests:
        for offer in one["decision"]["offered"]:
            assert offer["spot_usd"] == pytest.approx(offer["spot_usd_per_hour"] * offer["work_h"])
        # What a person comes to from the figures that are told: a step's cost times the steps that are left.
        for weighed in one["decision"]["alternatives"]:
            told = re.match(r"([\d.e-]+) USD a step x ([\d.e+]+) steps", weighed["how"])
            if told is not None and "paid so far" not in weighed["how"]:
                assert float(told[1]) * float(told[2]) == pytest.approx(weighed["expected_usd"], rel=1e-6)


def test_decisions_are_numbered_and_those_about_a_trial_can_be_asked_for(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = next(path.name for path in runs.iterdir())
    found = json.loads(command(capsys, "why", name, "--json", "--runs", runs)[1])
    assert [one["number"] for one in found] == list(range(1, len(found) + 1))
    last = json.loads(command(capsys, "why", name, "--decision", len(found), "--json", "--runs", runs)[1])
    assert last == found[-1:]
    for trial in (0, 1):
        about = json.loads(command(capsys, "why", name, "--trial", trial, "--json", "--runs", runs)[1])
        assert about == [one for one in found if one["decision"]["job_id"] == trial]
        assert about
    for wrong, problem in (
        (("--decision", 999), "the run has decisions 1 to"),
        (("--trial", 9), "the run has trials 0 to 1, not 9"),
        (("0", "--trial", 1), "give one of LEASE, --trial and --decision"),
    ):
        code, _, errors = command(capsys, "why", name, *wrong, "--runs", runs)
        assert code == 2
        assert problem in errors


@pytest.mark.parametrize(
    ("lease", "problem"),
    [
        ("99", "the run has leases 0 to"),
        ("x", "'x' is no machine of run"),
        ("other-m0001", "is no machine of run"),
    ],
)
def test_a_machine_that_is_none_is_an_error(
    runs: Path, lease: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, errors = command(capsys, "why", "latest", lease, "--runs", runs)
    assert (code, out) == (2, "")
    assert problem in errors


def test_the_same_from_python(runs: Path) -> None:
    (folder,) = runs.iterdir()
    run = eb.types.Run(RunFolder(folder))
    assert run.why(0)[0].decision.lease_ids == (0,)
    assert len(run.why()) >= len(run.why("m0000"))


def test_a_backtest_is_explained_once_it_is_replayed() -> None:
    job = eb.Job(name="one", steps=2_000, other_steps_per_hour_per_vcpu=500.0)
    result = eb.backtest(job, [eb.policy("ebbtide")], eb.generate_prices(days=5, seed=1, kind="auction"), starts=1)
    outcome = result.replay("ebbtide")
    told = eb.explain(outcome)
    assert sum(one.machines[0].paid_usd for one in told if one.decision.action == "requested") == pytest.approx(
        outcome.ledger.total_usd - outcome.egress_usd
    )
    assert eb.explain(outcome, 0)[0].decision.lease_ids == (0,)
    with pytest.raises(InputError, match="were not recorded"):
        eb.explain(result.outcomes["ebbtide"][0])


def test_who_shows_a_run_does_not_read_its_decisions(runs: Path) -> None:
    (folder,) = runs.iterdir()
    journal = Journal(RunFolder(folder).journal, read_only=True)
    whole, without = journal.run(), journal.run(decisions=False)
    assert whole is not None
    assert without is not None
    assert whole["engine"]["decisions_made"]
    assert without["engine"].pop("decisions_made") == []  # type: ignore[misc]
    assert without["provider"].keys() == whole["provider"].keys()
    assert without["engine"]["leases"] == whole["engine"]["leases"]


def test_a_long_list_of_decisions_has_pages(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, out, _ = command(capsys, "why", "--json", "--runs", runs)
    count = len(json.loads(out))
    assert count > 1
    monkeypatch.setattr("ebbtide.cli.explaining._PAGE", 1)
    _, out, _ = command(capsys, "why", "--runs", runs)
    name = next(path.name for path in runs.iterdir())
    assert f"decisions {count} to {count} of {count}; `ebbtide why {name} --page 2` shows those before" in out
    _, out, _ = command(capsys, "why", "--page", count, "--runs", runs)
    assert f"decisions 1 to 1 of {count}; --all" in out
    _, out, _ = command(capsys, "why", "--page", 2, "--json", "--runs", runs)
    assert [one["number"] for one in json.loads(out)] == [count - 1]
    _, out, _ = command(capsys, "why", "--all", "--runs", runs)
    assert "decisions 1 to" not in out
    code, _, errors = command(capsys, "why", "--page", count + 1, "--runs", runs)
    assert (code, f"the list has {count} pages" in errors) == (2, True)
