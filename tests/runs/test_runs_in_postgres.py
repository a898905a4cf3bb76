"""`ebbtide run --journal postgresql://...` on a real server: from the first machine to the month's report."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
from tests.postgres import PostgresServer, ended_sessions, free_port
from tests.runs.commands import User, heard, user
from tests.waiting import LIMIT_S

import ebbtide as eb
from ebbtide.clouds.local.server import bills_of
from ebbtide.controller.journal.address import JOURNAL, PostgresPlace
from ebbtide.controller.journal.journal import journal_of
from ebbtide.controller.run_state import State, controller_pid
from ebbtide.ui.server import _stamp


@pytest.fixture
def someone(tmp_path: Path) -> Iterator[User]:
    with user(tmp_path) as one:
        yield one


@pytest.mark.long
def test_a_run_is_killed_looked_at_and_resumed(someone: User, postgres: PostgresServer) -> None:
    someone.write(trials=2, steps=150, every_h=5.0)
    controller = someone.start_run("--journal", postgres.address)
    someone.wait(lambda: someone.trains(2))
    name = someone.run.path.name
    controller.kill()
    controller.wait()
    code, out, _ = someone.do("status", name, "--json")
    assert (code, json.loads(out)["state"]) == (0, "controller gone")
    code, out, _ = someone.do("why", name)
    assert (code, f"`ebbtide why {name} LEASE` explains one" in out) == (0, True)
    resumed = someone.start("resume")
    _, errors = resumed.communicate(timeout=LIMIT_S)
    assert resumed.returncode == 0, errors
    assert not someone.machines()
    # All of it is in the database.
    assert not list(someone.run.path.glob("*.sqlite*"))
    code, out, _ = someone.do("status", name, "--json")
    found = json.loads(out)
    assert (code, found["state"], found["done"]) == (0, "finished", 2)
    assert found["money"]["paid_usd"] == pytest.approx(
        sum(bill["usd"] for bill in bills_of(someone.run.path / "cloud"))
    )
    journal = journal_of(someone.run, read_only=True)
    assert sum(moment[1] == "finished" for moment in journal.moments()) == 2
    assert journal.prices()
    code, out, errors = someone.do("report", "--month", f"{datetime.now(UTC):%Y-%m}")
    assert code == 0, errors
    assert f"{found['money']['paid_usd']:.4f} USD in {datetime.now(UTC):%Y-%m}" in out
    # The page reads again what was written since.
    stamp = _stamp(someone.run)
    assert stamp == _stamp(someone.run) != ()
    journal_of(someone.run).keep({"unended": {}})
    assert _stamp(someone.run) != stamp


@pytest.mark.long
def test_a_server_that_goes_away_for_a_while_is_waited_for(someone: User, postgres: PostgresServer) -> None:
    someone.write(trials=1, steps=600, every_h=5.0)
    controller = someone.start_run("--journal", postgres.address)
    someone.wait(lambda: someone.trains())
    name = someone.run.path.name
    postgres.stop()
    try:
        said = heard(controller.stderr, "the run's journal cannot be written")
        assert controller.poll() is None
        assert someone.machines()
        away = PostgresPlace.of(postgres.address).name
        for words in (("status", name), ("why", name), ("status", name, "--json")):
            code, _, errors = someone.do(*words)
            assert (code, errors.count("\n")) == (69, 1), errors
            assert errors.startswith(f"ebbtide: the journal's database at {away} does not answer: ")
        # Of several runs it is told in a line of each.
        code, out, _ = someone.do("status")
        assert code == 0
        assert f"{name} cannot be read: the journal's database at {away} does not answer" in out
        assert controller.poll() is None
    finally:
        postgres.start()
    _, errors = controller.communicate(timeout=LIMIT_S)
    errors = said + errors
    assert controller.returncode == 0, errors
    assert f"the run's journal cannot be written: the journal's database at {away} does not answer" in errors
    journal = journal_of(someone.run, read_only=True)
    moments = journal.moments()
    assert len(set(moments)) == len(moments)
    assert [sum(moment[1] == what for moment in moments) for what in ("requested", "finished")] == [1, 1]
    kept = journal.run()
    assert kept is not None
    assert kept["engine"]["jobs"][0]["steps_done"] == 600


@pytest.mark.long
def test_a_run_is_stopped_while_its_server_is_away(someone: User, postgres: PostgresServer) -> None:
    someone.write(trials=1, steps=100_000, every_h=5.0)
    controller = someone.start_run("--journal", postgres.address)
    someone.wait(lambda: someone.trains())
    postgres.stop()
    try:
        said = heard(controller.stderr, "the run's journal cannot be written")
        controller.send_signal(signal.SIGINT)
        _, errors = controller.communicate(timeout=LIMIT_S)
        errors = said + errors
        assert controller.returncode == os.EX_UNAVAILABLE, errors
        assert "Traceback" not in errors
        # That is said once, and last.
        assert "start its server" in errors.splitlines()[-1]
        assert not someone.machines()
        # `down` needs no journal to see that none is left; `resume` does.
        code, out, _ = someone.do("down")
        assert (code, out.partition(": ")[2]) == (0, "0 machines given back, none left\n")
        code, _, errors = someone.do("resume")
        assert (code, errors.count("\n")) == (69, 1), errors
    finally:
        postgres.start()


def test_nothing_is_rented_where_the_server_is_away_at_the_start(
    someone: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    someone.write(trials=1)
    words = ("run", str(someone.folder / "sweep.yaml"), "--prices", str(someone.folder / "prices.parquet"))
    address = f"postgresql://127.0.0.1:{free_port()}/runs"
    monkeypatch.setenv(JOURNAL, address)
    code, _, errors = someone.do(*words, "--policy", "cheapest-spot")
    assert (code, errors.count("\n")) == (69, 1), errors
    assert errors.startswith(
        f"ebbtide: the journal's database at {PostgresPlace.of(address).name} does not answer: "
    )
    assert not someone.runs.exists()
    code, _, errors = someone.do(*words, "--journal", "postgresql://ann:secret@127.0.0.1/runs")
    assert (code, errors.count("\n"), "secret" in errors) == (2, 1, False)
    assert errors.startswith("ebbtide: field journal: holds a password")
    assert not someone.runs.exists()


@pytest.mark.long
def test_a_second_controller_is_refused_and_one_that_lost_its_session_is_taken_over(
    someone: User, postgres: PostgresServer
) -> None:
    """By a copy of the folder: as on another host, which does not see the lock of the folder."""
    someone.write(trials=1, steps=600, every_h=5.0)
    controller = someone.start_run("--journal", postgres.address)
    someone.wait(lambda: someone.trains())
    name = someone.run.path.name
    other = User(someone.folder / "other")
    shutil.copytree(someone.run.path, other.runs / name, ignore=shutil.ignore_patterns("cloud", "controller.*"))
    assert controller_pid(other.run.path) is None
    code, out, _ = other.do("status", name, "--json")
    assert (code, json.loads(out)["state"]) == (0, "running")
    code, _, errors = other.do("resume")
    assert (code, f"run {name} has a controller already (on another host" in errors) == (2, True)
    with pytest.raises(eb.InputError, match="has a controller already"):
        eb.resume(name, runs=other.runs)
    # Its host is suspended, the server ends its session, and another host goes on.
    controller.send_signal(signal.SIGSTOP)
    try:
        ended_sessions(postgres, someone.run.settings.unique_name)
        code, out, _ = other.do("status", name, "--json")
        assert (code, json.loads(out)["state"]) == (0, "controller gone")
        code, out, errors = other.do("resume")
        assert code == 0, errors
    finally:
        controller.send_signal(signal.SIGCONT)
        # Its policy's machines are of another local cloud than those of the copy.
        _, errors = controller.communicate(timeout=LIMIT_S)
    assert controller.returncode == 2
    assert "another controller has taken this run over" in errors.splitlines()[-1]
    journal = journal_of(someone.run, read_only=True)
    assert journal.state("outcome")["finished"]
    assert journal.state("phase")["state"] == "finished"
    moments = journal.moments()
    assert len(set(moments)) == len(moments)
    code, _, errors = someone.do("down")
    assert code == 0, errors


def test_python_begins_two_runs_of_one_name_there(
    someone: User, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    someone.write(trials=1, steps=20, every_h=5.0)
    options = {"prices": eb.PriceHistory.read(someone.folder / "prices.parquet"), "folder": someone.folder}
    monkeypatch.setenv(JOURNAL, postgres.address)
    name = f"mine-{os.getpid()}-{secrets.token_hex(4)}"
    run = eb.run(someone.folder / "sweep.yaml", "cheapest-spot", runs=someone.runs, name=name, **options)  # type: ignore[call-overload]
    elsewhere = someone.folder / "elsewhere"
    other = eb.run(someone.folder / "sweep.yaml", "cheapest-spot", runs=elsewhere, name=name, **options)  # type: ignore[call-overload]
    for each in (run, other):
        each.result(LIMIT_S)
        assert each.status().state is State.FINISHED
        assert each.kept.settings.journal == postgres.address
    with psycopg.connect(postgres.address) as connection:
        found = connection.execute(
            "select run, controller, version from ebbtide.runs where run like %s", (f"{name}-%",)
        ).fetchall()
    names = [each.kept.settings.unique_name for each in (run, other)]
    assert sorted(found) == sorted((unique, 1, 2) for unique in names)
    assert len(set(names)) == 2
