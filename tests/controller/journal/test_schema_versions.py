"""A run's files carry the version of their schema: older ones are migrated, newer ones are refused in one line."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from tests.postgres import Place, Places
from tests.runs import records
from tests.runs.sweeps import A

from ebbtide.agent.config import AgentConfig, Assignment
from ebbtide.clouds import settings as runs
from ebbtide.clouds.settings import LiveSettings, RunFolder
from ebbtide.controller.agent_provider import AgentProvider, Callbacks
from ebbtide.controller.journal import journal as journals
from ebbtide.controller.journal.changes import split
from ebbtide.controller.journal.journal import Journal, check_database
from ebbtide.controller.kinds.measured_speed import Seen, SpeedRecord
from ebbtide.controller.kinds.state import Stretch, StretchRecord, TrialRecord
from ebbtide.controller.mailboxes import MailboxRecord
from ebbtide.controller.snapshots import PROVIDER_VERSION, ProviderSnapshot, migrated
from ebbtide.engine.snapshot import SNAPSHOT_VERSION, event_values
from ebbtide.errors import InputError
from ebbtide.jobs.job import Job
from ebbtide.jobs.job_list import Runnable, runnable
from ebbtide.jobs.progress import JobProgress
from ebbtide.market.leases import Lease
from ebbtide.policies.api.events import Event, Wake
from ebbtide.storage.objects import FolderStore

SETTINGS = LiveSettings("run", "local", "spottune", {"name": "s"}, "/code", "/store", {"speed": 1.0}, 7)

# A trial and a run as a controller kept them before versions were counted.
OLD_TRIAL = records.OLD_TRIAL | {"attempt": 2, "metrics": [[5, 0.5]]}
POST = [3, 2, {"boot": 5}, [{"type": "save"}, {"type": "leave", "attempt": 2}, {"type": "leave"}]]
OLD_RUN = {
    "engine": records.ENGINE,
    "provider": {"trials": [OLD_TRIAL], "leases": [], "posts": [POST], "launching": [], "out": []},
}


def old_journal(place: Place, version: int = 0) -> Place:
    states = {"run": json.dumps(OLD_RUN), "outcome": "null"}
    if not isinstance(place, Path):
        check_database(place.address)
        with psycopg.connect(place.address) as connection:
            connection.execute("insert into ebbtide.runs (run, version) values (%s, %s)", (place.run, version))
            for name, content in states.items():
                connection.execute("insert into ebbtide.state values (%s, %s, %s)", (place.run, name, content))
        return place
    with closing(sqlite3.connect(place)) as database, database:
        database.execute("create table state (name text primary key, content text not null)")
        database.executemany("insert into state values (?, ?)", states.items())
        database.execute(f"pragma user_version = {version}")
    return place


def rows(place: Place, query: str) -> list[tuple[Any, ...]]:
    """What a query gives, as the database has it."""
    if not isinstance(place, Path):
        with psycopg.connect(place.address) as connection:
            found = connection.execute(
                query.replace("rowid", "place").replace("from ", "from ebbtide.").replace("true", "run = %s"),
                (place.run,),
            )
            return found.fetchall()
    with closing(sqlite3.connect(place)) as database:
        return database.execute(query).fetchall()


def version_of(place: Place) -> int:
    if not isinstance(place, Path):
        return int(rows(place, "select version from runs where true")[0][0])
    return int(rows(place, "pragma user_version")[0][0])


def check_migrated(run: Any) -> None:
    trial = run["provider"]["trials"][0]
    assert (trial["stretches"], trial["warnings"], trial["began_number"]) == ([], [], 0)
    assert math.isnan(trial["began_s"])
    assert (trial["attempt"], [tuple(pair) for pair in trial["metrics"]]) == (2, [(5, 0.5)])
    provider = run["provider"]
    assert (provider["version"], provider["speeds"], provider["seen"]) == (PROVIDER_VERSION, {}, [])
    assert provider["mailboxes"] == [
        {
            "lease_id": 3,
            "read": 2,
            "received": {"boot": 5},
            "pending": [{"kind": "save"}, {"kind": "leave", "attempt": 2}],
        }
    ]
    assert set(provider) == set(ProviderSnapshot.__annotations__)
    assert set(trial) == set(TrialRecord.__annotations__)
    assert (run["engine"]["leases"], run["engine"]["version"]) == ([], SNAPSHOT_VERSION)


def test_a_journal_without_a_version_is_migrated_as_it_is_read(journal_place: Places) -> None:
    path = old_journal(journal_place("journal"))
    check_migrated(Journal(path, read_only=True).run())
    assert version_of(path) == 0


def test_a_journal_without_a_version_is_migrated_in_the_file_when_a_controller_opens_it(
    journal_place: Places,
) -> None:
    path = old_journal(journal_place("journal"))
    check_migrated(Journal(path).run())
    assert version_of(path) == journals.SCHEMA_VERSION
    # Written as this version does: a record a thing.
    assert Journal(path).state("run") is None
    kinds = rows(path, "select kind from records where true order by rowid")
    assert kinds == [("engine",), ("provider",), ("trials",), ("mailboxes",)]
    assert rows(path, "select job_id, step, value from metrics where true") == [(0, 5, 0.5)]
    assert Journal(path).state("outcome") is None
    assert Journal(path).moments() == []


def test_a_provider_s_record_without_a_version_is_migrated_as_it_is_read(journal_place: Places) -> None:
    """Journals of this schema version, from before the provider's part had a version of its own."""
    path = journal_place("journal")
    Journal(path).keep({"run": OLD_RUN})
    check_migrated(Journal(path, read_only=True).run())


@pytest.mark.parametrize(("part", "version"), [("provider", PROVIDER_VERSION), ("engine", SNAPSHOT_VERSION)])
def test_a_newer_part_of_a_run_is_refused_in_one_line(journal_place: Places, part: str, version: int) -> None:
    path = journal_place("journal")
    Journal(path).keep({"run": OLD_RUN | {part: OLD_RUN[part] | {"version": version + 1}}})
    with pytest.raises(InputError) as caught:
        Journal(path).run()
    assert str(caught.value) == (
        f"{path}: the {part}'s snapshot has version {version + 1}, and this Ebbtide reads versions up to {version}; "
        "upgrade ebbtide"
    )


def test_a_provider_s_state_survives_a_file(tmp_path: Path, journal_place: Places) -> None:
    lease = Lease(0, A, 0.21, on_demand=False, requested_s=1.0)
    kept = migrated(json.loads(json.dumps(OLD_RUN["provider"]))) | {
        "leases": [0],
        "mailboxes": [
            {"lease_id": 0, "read": 2, "received": {"boot": 5}, "pending": [{"kind": "save", "trial": ""}]}
        ],
        "launching": [0],
        "speeds": {"0": {"c3.xlarge": {"steps": 5, "duration_s": 2.0, "told": True}}},
        "unended": [[0, "refused"]],
        "seen": [[7.0, [0]]],
        "quarantined": 1,
        "quarantine": [{"machine": "run-m0000", "key": "k", "why": "is torn", "content": "{"}],
        "out": [event_values(Event(Wake.SAVED, 3.0, job_id=0))],
    }
    Journal(journal_place("journal")).keep({}, changes=split(OLD_RUN | {"provider": kept}))
    run = Journal(journal_place("journal")).run()
    assert run is not None
    cloud: Any = SimpleNamespace(now_s=9.0)
    agent = AgentConfig("run", "", str(tmp_path), "")
    callbacks = Callbacks(lambda _: Assignment("", (), 1, "loss"))
    again = AgentProvider(cloud, FolderStore(tmp_path), agent, callbacks, key=bytes(32))
    again.resume_from(run["provider"], [lease])
    again.start([JobProgress(0, Job(name="one", steps=9, steps_per_hour={"c3.xlarge": 1.0}))], watch_prices=False)
    found = again.snapshot()
    assert json.dumps(found, sort_keys=True) == json.dumps(kept, sort_keys=True)
    # Each kind of record has the names of its fields.
    assert [set(one) for one in found["mailboxes"]] == [set(MailboxRecord.__annotations__)]
    assert set(asdict(Seen())) == set(SpeedRecord.__annotations__)
    assert {field.name for field in fields(Stretch)} == set(StretchRecord.__annotations__)


def test_a_new_journal_has_the_version(journal_place: Places) -> None:
    path = journal_place("journal")
    Journal(path).keep({"run": {"provider": {}}})
    assert version_of(path) == journals.SCHEMA_VERSION
    assert Journal(path, read_only=True).state("run") == {"provider": {}}


@pytest.mark.parametrize("read_only", [True, False])
def test_a_newer_journal_is_refused_in_one_line(journal_place: Places, *, read_only: bool) -> None:
    path = old_journal(journal_place("journal"), version=9)
    before = path.read_bytes() if isinstance(path, Path) else rows(path, "select * from state where true")
    with pytest.raises(InputError) as caught:
        Journal(path, read_only=read_only).state("run")
    assert str(caught.value) == (
        f"{path}: has schema version 9, and this Ebbtide reads versions up to {journals.SCHEMA_VERSION}; "
        "upgrade ebbtide"
    )
    after = path.read_bytes() if isinstance(path, Path) else rows(path, "select * from state where true")
    assert after == before


def test_run_json_has_the_version_and_reads_back(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.begin(SETTINGS)
    assert json.loads((folder.path / "run.json").read_text())["schema_version"] == runs.SCHEMA_VERSION
    assert folder.settings == SETTINGS


def test_run_json_without_a_version_is_migrated_as_it_is_read(tmp_path: Path) -> None:
    old = asdict(SETTINGS)
    del old["seed"], old["parameters"]
    (tmp_path / "run.json").write_text(json.dumps(old))
    assert asdict(RunFolder(tmp_path).settings) == old | {"seed": 0, "parameters": {}}
    (tmp_path / "run.json").write_text(json.dumps({"schema_version": 1, "seed": 3} | old))
    assert asdict(RunFolder(tmp_path).settings) == old | {"seed": 3, "parameters": {}}


# Fields that every saved job had until version 6, with the values of those that do not say otherwise.
OF_ALL_KINDS = {
    "entry_point": None,
    "grid": None,
    "list": None,
    "random": None,
    "metric": None,
    "direction": "minimize",
    "theta": 0.7,
    "mcnt": 3,
    "share": 1.0,
    "speedup": None,
    "checkpoints": None,
    "progress": None,
    "max_trial_steps": None,
    "checkpoint": {"save_s": 0.0, "restore_s": 0.0},
    "tasks": None,
    "cpus_per_task": 1,
    "framework": None,
    "machines": 2,
}


def test_saved_work_with_the_fields_of_all_kinds_is_read_as_its_own_kind(tmp_path: Path) -> None:
    array = {"name": "a", "command": "x {task}", "tasks": ["0", "1"], "max_trial_steps": 2, "cpus_per_task": 3}
    cluster = {"name": "c", "command": ["app.py"], "framework": "spark", "max_trial_steps": 9, "metric": "loss"}
    sweep = {"name": "s", "command": "x {lr}", "grid": {"lr": [1, 2]}, "metric": "loss", "max_trial_steps": 5}
    works = [OF_ALL_KINDS | work for work in (array, cluster, sweep)]

    def read(work: Mapping[str, Any]) -> Runnable:
        old = asdict(SETTINGS) | {"schema_version": 5, "sweep": work}
        (tmp_path / "run.json").write_text(json.dumps(old))
        return runnable(RunFolder(tmp_path).settings.sweep)

    alone = [read(work) for work in works]
    listed = [{"needs": [], "policy": None, "work": work} for work in works]
    together = read({"name": "all", "listed": listed, "budget_usd": 3.0})
    assert [work.kind for work in alone] == ["array", "cluster", "sweep"]
    assert list(together.parts) == alone
    assert [(part.steps, part.in_words) for part in together.parts] == [
        *((2, "2 tasks"), (9, "a Spark application"), (5, "2 trials")),
    ]
    # Those that are saved now have their own fields alone, and are the same when they are read.
    assert "cpus_per_task" not in alone[2].model_dump()
    assert [runnable(work.model_dump(mode="json")) for work in [*alone, together]] == [*alone, together]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            json.dumps({"schema_version": 9, "unheard": "of"}),
            f"has schema version 9, and this Ebbtide reads versions up to {runs.SCHEMA_VERSION}; upgrade ebbtide",
        ),
        ('{"schema_version": "one"}', "has no schema version: 'one' is none"),
        ('{"schema_version": 1}', "holds no settings of a run: "),
        ('{"schema_version": 2, "parameters": [1]}', "holds no settings of a run: its parameters"),
        ("[]", "holds no settings of a run: a mapping is needed"),
        ("{torn", "holds no settings of a run: "),
    ],
)
def test_another_run_json_is_refused_in_one_line(tmp_path: Path, content: str, problem: str) -> None:
    file = tmp_path / "run.json"
    file.write_text(content)
    with pytest.raises(InputError) as caught:
        _ = RunFolder(tmp_path).settings
    assert str(caught.value).startswith(f"{file}: {problem}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # Diverged at step 30; finite at step 20; never a value; never a finite one; 0 stood for no finite value.
        ((30, 20, 5), (20, 30, 5)),
        ((0, 20, 5), (20, -1, 5)),
        ((0, 0, 0), (-1, -1, 0)),
        ((-1, 0, 0), (-1, 0, 0)),
    ],
)
def test_what_version_13_knew_of_values_that_are_not_finite(
    before: tuple[int, int, int], after: tuple[int, int, int]
) -> None:
    kept = json.loads(json.dumps(migrated(json.loads(json.dumps(OLD_RUN["provider"])))))
    for trial in kept["trials"]:
        del trial["divergence"]
        trial |= dict(zip(("diverged_at", "finite_at", "finite_gap"), before, strict=True))
    (trial,) = migrated(kept | {"version": 13})["trials"]
    assert tuple(trial["divergence"].values()) == after
