"""Journals in a database of Postgres: runs kept apart, one controller at a time, and a server that goes away.

What both databases have in common is tested where journals are: `test_changes`, `test_price_log`,
`test_schema_versions`.
"""

from __future__ import annotations

import math
import secrets
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
from tests.postgres import PostgresServer, ended_sessions, free_port
from tests.waiting import eventually

from ebbtide.clouds.settings import LiveSettings, RunFolder
from ebbtide.controller.journal import postgres as journal_postgres
from ebbtide.controller.journal import postgres_connection
from ebbtide.controller.journal.address import JOURNAL, PostgresPlace, journal_address
from ebbtide.controller.journal.changes import Changes, StatePart
from ebbtide.controller.journal.database import METRICS
from ebbtide.controller.journal.journal import Journal, check_database, journal_of, reserve
from ebbtide.controller.journal.postgres import LAYOUT_VERSION, PostgresDatabase
from ebbtide.controller.leadership import SupersededError
from ebbtide.errors import (
    InputError,
    JournalAwayError,
    JournalError,
    JournalWentBackError,
    UnusableJournalError,
)


def new_run() -> str:
    return f"run-{secrets.token_hex(6)}"


@pytest.fixture
def place(postgres: PostgresServer) -> PostgresPlace:
    return PostgresPlace.of(postgres.address, new_run())


def test_runs_of_one_database_are_kept_apart(postgres: PostgresServer) -> None:
    places = [PostgresPlace.of(postgres.address, new_run()) for _ in range(2)]
    journals = [Journal(place) for place in places]
    for number, journal in enumerate(journals):
        changes = Changes([StatePart("engine", 0, {"number": number})], [(0, 1, number + 0.5)])
        journal.keep({"outcome": number}, [(0.0, "start", 0, 0, f"of {number}")], changes, [("a", 1.0, number)])
    for number, journal in enumerate(journals):
        assert journal.state("outcome") == number
        assert journal.moments() == [(0.0, "start", 0, 0, f"of {number}")]
        assert journal.prices() == {"a": [(1.0, float(number))]}
        with PostgresDatabase(places[number]).reading() as session:
            assert session is not None
            assert session.rows(METRICS) == [(0, 1, number + 0.5)]


def test_a_database_without_tables_has_no_run(postgres: PostgresServer) -> None:
    place = PostgresPlace.of(postgres.make(f"empty-{secrets.token_hex(4)}"), new_run())
    journal = Journal(place, read_only=True)
    with journal.connected():
        assert (journal.run(), journal.state("phase"), journal.moments(), journal.prices()) == (None, None, [], {})
        assert (journal.is_controlled(), journal.stamp()) == (False, ())
    Journal(place).keep({"phase": 1})
    assert journal.state("phase") == 1


def test_what_is_read_together_needs_one_connection(place: PostgresPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    Journal(place).keep({"phase": 1})
    made, connect = [], psycopg.connect
    monkeypatch.setattr(psycopg, "connect", lambda *args, **options: made.append(1) or connect(*args, **options))
    journal = Journal(place, read_only=True)
    with journal.connected():
        assert (journal.state("phase"), journal.figures(), journal.run()) == (1, None, None)
    assert len(made) == 1
    assert journal.state("phase") == 1
    assert len(made) == 2


def test_a_run_that_is_removed_is_gone_from_every_table(postgres: PostgresServer, place: PostgresPlace) -> None:
    journal = Journal(place)
    journal.keep(
        {"phase": 1}, [(0.0, "start", 0, 0, "")], Changes([StatePart("engine", 0, {})]), [("a", 1.0, 2.0)]
    )
    with psycopg.connect(postgres.address) as connection:
        connection.execute("delete from ebbtide.runs where run = %s", (place.run,))
    assert (journal.state("phase"), journal.moments(), journal.run(), journal.prices()) == (None, [], None, {})
    with pytest.raises(UnusableJournalError, match=f"run {place.run} was removed"):
        journal.keep({"phase": 2})


def test_what_text_and_numbers_may_be(place: PostgresPlace) -> None:
    journal = Journal(place)
    detail = "50 % of {it}, naïve ☃ %s ?"
    journal.keep({"one": {"nan": math.nan, "text": "a\0b"}}, [(math.inf, "start", -1, -1, f"{detail}\0")])
    assert journal.moments() == [(math.inf, "start", -1, -1, detail)]
    one = journal.state("one")
    assert math.isnan(one["nan"])
    assert one["text"] == "a\0b"


@pytest.mark.parametrize("read_only", [True, False])
def test_tables_of_a_newer_ebbtide_are_refused_in_one_line(postgres: PostgresServer, *, read_only: bool) -> None:
    address = postgres.make(f"newer-{secrets.token_hex(4)}")
    place = PostgresPlace.of(address, new_run())
    Journal(place).keep({"phase": 1})
    with psycopg.connect(address) as connection:
        connection.execute("insert into ebbtide.layout values (%s)", (LAYOUT_VERSION + 1,))
    with pytest.raises(InputError) as caught:
        Journal(place, read_only=read_only).state("phase")
    refused = f"has schema version {LAYOUT_VERSION + 1}, and this Ebbtide reads versions up to {LAYOUT_VERSION}"
    assert str(caught.value) == f"journal at {place.name}: {refused}; upgrade ebbtide"
    with pytest.raises(InputError, match="upgrade ebbtide"):
        check_database(address)


def test_runs_of_one_id_have_places_of_their_own(postgres: PostgresServer, tmp_path: Path) -> None:
    run = new_run()
    folders = [RunFolder(tmp_path / name / run) for name in ("mine", "other")]
    for folder in folders:
        folder.path.mkdir(parents=True)
        reserve(folder, postgres.address)
    with psycopg.connect(postgres.address) as connection:
        found = connection.execute("select run from ebbtide.runs where run like %s", (f"{run}-%",)).fetchall()
    assert {name for (name,) in found} == {folder.unique_name for folder in folders}
    assert len(found) == 2


def test_a_place_is_for_one_folder_and_its_copies(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run()
    mine, other = RunFolder(tmp_path / "mine" / run), RunFolder(tmp_path / "other" / run)
    for folder in (mine, other):
        folder.path.mkdir(parents=True)
    # Eight digits of a hash may be the same by chance.
    monkeypatch.setattr("ebbtide.clouds.settings.fingerprint_of", lambda _key: "0123abcd")
    reserve(mine, postgres.address)
    # A process that was killed before its run was begun is started once more.
    reserve(mine, postgres.address)
    shutil.copytree(mine.path, tmp_path / "copies" / run)
    reserve(RunFolder(tmp_path / "copies" / run), postgres.address)
    with pytest.raises(InputError) as caught:
        reserve(other, postgres.address)
    name = PostgresPlace.of(postgres.address).name
    assert str(caught.value) == (
        f"field name: journal at {name} has another run {run}-0123abcd; give this one another name"
    )


def test_a_run_without_an_address_has_its_journal_in_its_folder(postgres: PostgresServer, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "one")
    folder.begin(LiveSettings("one", "local", "reactive", {}, "/", "/store", {}))
    journal_of(folder).keep({"phase": 1})
    assert folder.journal.exists()
    kept = RunFolder(tmp_path / "two")
    kept.begin(LiveSettings(new_run(), "local", "reactive", {}, "/", "/store", {}, journal=postgres.address))
    journal_of(kept).keep({"phase": 2})
    assert not kept.journal.exists()
    assert [journal_of(one, read_only=True).state("phase") for one in (folder, kept)] == [1, 2]


def test_one_controller_at_a_time_and_everybody_sees_it(
    place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_postgres, "_HELD_FOR_S", 0.2)
    first, second = Journal(place), Journal(place)
    assert not second.is_controlled()
    with first.controlled():
        assert Journal(place, read_only=True).is_controlled()
        with pytest.raises(InputError, match=f"run {place.run} has a controller already"), second.controlled():
            pass
        first.keep({"phase": 1})
        # Of another run nobody says so.
        assert not Journal(PostgresPlace.of(place.address, new_run())).is_controlled()
    # The server releases the lock of a closed session a moment later.
    eventually(lambda: not second.is_controlled())
    with second.controlled():
        second.keep({"phase": 2})


def test_a_controller_whose_session_is_lost_takes_another(postgres: PostgresServer, place: PostgresPlace) -> None:
    journal = Journal(place)
    with journal.controlled():
        journal.keep({"phase": 1})
        ended_sessions(postgres, place.run)
        with pytest.raises(JournalAwayError):
            journal.keep({"phase": 2})
        assert not Journal(place, read_only=True).is_controlled()
        journal.keep({"phase": 2})
        assert Journal(place, read_only=True).is_controlled()
    assert Journal(place).state("phase") == 2


def test_of_two_controllers_the_older_one_writes_nothing_more(
    postgres: PostgresServer, place: PostgresPlace
) -> None:
    """Its session was lost, the other one took the run over, and has even ended since."""
    older, newer = Journal(place), Journal(place)
    with older.controlled():
        older.keep({"phase": "older"}, [(0.0, "start", 0, 0, "older")])
        ended_sessions(postgres, place.run)
        with newer.controlled():
            newer.keep({"phase": "newer"})
        with suppress(JournalAwayError):
            older.keep({"phase": "older"})
        with pytest.raises(SupersededError, match="another controller has taken this run over"):
            older.keep({"phase": "older"}, [(1.0, "start", 0, 0, "older")])
    assert newer.state("phase") == "newer"
    assert len(newer.moments()) == 1


def test_events_whose_answer_was_lost_are_there_once(
    place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(place)
    kept = PostgresDatabase._transaction

    @contextmanager
    def unanswered(self: PostgresDatabase, *, reads: bool = False) -> Iterator[psycopg.Connection]:
        with kept(self, reads=reads) as connection:
            yield connection
        raise JournalAwayError("its answer was lost")

    moments = [(float(number), "start", 0, 0, f"{number}") for number in range(3)]
    with journal.controlled():
        journal.keep({}, moments[:1])
        with monkeypatch.context() as lost:
            lost.setattr(PostgresDatabase, "_transaction", unanswered)
            with pytest.raises(JournalAwayError):
                journal.keep({}, moments[1:2])
        assert journal.moments() == moments[:2]
        # The controller tells of them again, with what came since.
        journal.keep({}, moments[1:])
    assert Journal(place).moments() == moments


@contextmanager
def relay(port: int, passes: threading.Event) -> Iterator[int]:
    """A port that passes all on to another; without the event it takes everything and passes on nothing."""
    listening = socket.create_server(("127.0.0.1", 0))
    ends: list[socket.socket] = [listening]

    def passed(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while content := source.recv(65536):
                passes.wait()
                target.sendall(content)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                near, _ = listening.accept()
                far = socket.create_connection(("127.0.0.1", port))
                ends.extend((near, far))
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=passed, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listening.getsockname()[1]
    finally:
        passes.set()
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def test_a_network_that_hangs_is_like_a_server_that_is_away(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # None of these may be waited for.
    monkeypatch.setattr(postgres_connection, "STATEMENT_S", 3600.0)
    monkeypatch.setattr(postgres_connection, "SEND_S", 3600.0)
    monkeypatch.setattr(postgres_connection, "AWAY_S", 3600.0)
    made, connect = [], psycopg.connect
    monkeypatch.setattr(psycopg, "connect", lambda *args, **options: made.append(1) or connect(*args, **options))
    passes = threading.Event()
    passes.set()
    with relay(postgres.port, passes) as port:
        place = PostgresPlace.of(f"postgresql://ebbtide@127.0.0.1:{port}/postgres", new_run())
        journal = Journal(place)
        with journal.controlled():
            journal.keep({"phase": 1})
            before = len(made)
            passes.clear()
            with monkeypatch.context() as impatient:
                impatient.setattr(postgres_connection, "ANSWER_S", 0.5)
                impatient.setattr(postgres_connection, "CONNECT_S", 2)
                # In the session that there is, and where a new one is begun.
                for connections in (0, 1):
                    with pytest.raises(JournalAwayError, match="does not answer"):
                        journal.keep({"phase": 2})
                    assert len(made) == before + connections
                # Who looks at many runs does not ask for each.
                with pytest.raises(JournalAwayError, match="does not answer"):
                    Journal(place, read_only=True).state("phase")
                assert len(made) == before + 1
            passes.set()
            journal.keep({"phase": 3})
        assert journal.state("phase") == 3


def test_a_row_that_another_process_has_locked_is_asked_for_again(
    postgres: PostgresServer, place: PostgresPlace
) -> None:
    journal = Journal(place)
    journal.keep({"phase": 1})
    with psycopg.connect(postgres.address) as locked:
        locked.execute("select from ebbtide.runs where run = %s for update", (place.run,))
        with pytest.raises(JournalError, match="lock timeout") as caught:
            journal.keep({"phase": 2})
        assert caught.value.is_passing
        assert not isinstance(caught.value, JournalAwayError)
        # Who reads does not wait.
        assert Journal(place, read_only=True).state("phase") == 1


def test_what_roles_may_do(postgres: PostgresServer) -> None:
    """As docs/how-to/postgres.md says: to look needs no more than to read, and to run no more than to write."""
    address = postgres.make(f"roles-{secrets.token_hex(4)}")
    reader, writer = (f"{kind}_{secrets.token_hex(4)}" for kind in ("reader", "writer"))
    owned, run = PostgresPlace.of(address, new_run()), new_run()
    read, written = (
        PostgresPlace.of(address.replace("ebbtide@", f"{role}@"), owned.run) for role in (reader, writer)
    )
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f"create role {reader} login; create role {writer} login".encode())
        # Nothing may be made.
        with pytest.raises(UnusableJournalError, match="permission denied") as caught:
            check_database(read.address)
        assert not caught.value.is_passing
        Journal(owned).keep({"phase": 1}, [(0.0, "start", 0, 0, "")])
        connection.execute(
            f"grant usage on schema ebbtide to {reader}, {writer}; "
            f"grant select on all tables in schema ebbtide to {reader}, {writer}; "
            f"grant insert, update, delete on all tables in schema ebbtide to {writer}".encode()
        )
    looked = Journal(read, read_only=True)
    assert (looked.state("phase"), len(looked.moments()), looked.is_controlled()) == (1, 1, False)
    with pytest.raises(UnusableJournalError, match="permission denied"):
        Journal(PostgresPlace.of(read.address, run))
    journal = Journal(PostgresPlace.of(written.address, run))
    with journal.controlled():
        journal.keep(
            {"phase": 2}, [(0.0, "start", 0, 0, "")], Changes([StatePart("engine", 0, {})]), [("a", 1.0, 2.0)]
        )
        assert Journal(PostgresPlace.of(read.address, run), read_only=True).is_controlled()


def test_a_server_that_is_away_is_named_in_one_line() -> None:
    port = free_port()
    place = PostgresPlace.of(f"postgresql://127.0.0.1:{port}/runs", "one")
    for read_only in (True, False):
        with pytest.raises(JournalAwayError) as caught:
            Journal(place, read_only=read_only).state("phase")
        told = str(caught.value)
        assert told.startswith(f"the journal's database at 127.0.0.1:{port}/runs does not answer: ")
        assert "\n" not in told


def test_a_server_that_refuses_is_told_of_as_it_says(postgres: PostgresServer) -> None:
    place = PostgresPlace.of(postgres.address_of("none-of-that-name"), "one")
    with pytest.raises(JournalAwayError, match=f"at {place.name} lets nobody in: .* does not exist$"):
        Journal(place)


SECRET = "h8rdToGuess"


@pytest.mark.parametrize(
    "address",
    [
        f"postgresql://ann:{SECRET}@db.example.org/runs",
        f"postgresql://db.example.org/runs?user=ann&password={SECRET}",
        f"postgresql://db.example.org/runs?sslpassword={SECRET}",
        f"postgresql://db.example.org/runs?pass%77ord={SECRET}",
        f"postgresql://ann:{SECRET}/x@db.example.org/runs",
        f"postgresql://ann:{SECRET}#x@db.example.org/runs",
        f"postgresql://ann:{SECRET}?x@db.example.org/runs",
        f"host=db.example.org password={SECRET} dbname=runs",
        f"postgresql://db.example.org/runs?options=-c%20my.passwd%3D{SECRET}",
        f"postgresql:///runs?host=ann:{SECRET}@db.example.org",
    ],
)
def test_a_password_is_refused_and_not_repeated(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError) as caught:
        journal_address(address)
    assert SECRET not in str(caught.value)
    monkeypatch.setenv(JOURNAL, address)
    with pytest.raises(InputError, match=f"field {JOURNAL}: ") as caught:
        journal_address()
    assert SECRET not in str(caught.value)


def test_a_password_has_other_places() -> None:
    with pytest.raises(InputError) as caught:
        journal_address(f"postgresql://ann:{SECRET}@db.example.org/runs")
    assert str(caught.value) == (
        "field journal: holds a password, which would be kept with the run; leave it out, and give it by the "
        "environment variable PGPASSWORD, in ~/.pgpass, or in a service file (postgresql://?service=NAME)"
    )


def test_passwords_are_found_where_libpq_looks(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = f"ann_{secrets.token_hex(4)}"
    with psycopg.connect(postgres.address, autocommit=True) as connection:
        connection.execute(f"create role {role} login password '{SECRET}' superuser".encode())
        rules = postgres.folder / "pg_hba.conf"
        rules.write_text(f"host all {role} 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        connection.execute("select pg_reload_conf()")
    address = f"postgresql://{role}@127.0.0.1:{postgres.port}/postgres"
    run = new_run()
    place = PostgresPlace.of(address, run)

    def refusal() -> str:
        with pytest.raises(JournalAwayError, match="lets nobody in|no password supplied") as caught:
            Journal(place)
        return str(caught.value)

    def is_refused() -> bool:
        with suppress(AssertionError, pytest.fail.Exception):
            return bool(refusal())
        return False

    eventually(is_refused)
    monkeypatch.setenv("PGPASSWORD", f"not-{SECRET}")
    assert SECRET not in refusal()
    monkeypatch.setenv("PGPASSWORD", SECRET)
    Journal(place).keep({"phase": 1})
    monkeypatch.delenv("PGPASSWORD")
    passwords = tmp_path / "passwords"
    passwords.write_text(f"127.0.0.1:*:*:{role}:{SECRET}\n")
    passwords.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(passwords))
    assert Journal(place, read_only=True).state("phase") == 1
    monkeypatch.delenv("PGPASSFILE")
    services = tmp_path / "services"
    words = {"host": "127.0.0.1", "port": postgres.port, "dbname": "postgres", "user": role, "password": SECRET}
    services.write_text("\n".join(["[ours]", *(f"{name}={value}" for name, value in words.items())]) + "\n")
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    served = PostgresPlace.of(journal_address("postgresql://?service=ours"), run)
    assert SECRET not in repr(served)
    assert Journal(served, read_only=True).state("phase") == 1


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("mysql://host/runs", "is no address of a Postgres database"),
        ("postgresql://host", "names no database"),
        ("postgresql://host:high/runs", "is no address of a Postgres database"),
        ("postgresql://host/runs?colour=red", "is no address of a Postgres database"),
        ("postgresql://host/runs?connect_timeout=abc", "is no address of a Postgres database"),
    ],
)
def test_another_address_is_refused(address: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as caught:
        journal_address(address)
    assert "postgresql://HOST[:PORT]/DATABASE" in str(caught.value)


def test_an_address_is_named_by_host_and_database(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {
        "postgresql://ann@db.example.org:5433/runs?sslmode=verify-full": "db.example.org:5433/runs",
        "postgres://db.example.org/runs": "db.example.org/runs",
        "postgresql:///runs": "localhost/runs",
        "postgresql://a,b:5433,c:5434/runs": "a,b:5433,c:5434/runs",
        "postgresql://a,b/runs?port=5433": "a:5433,b:5433/runs",
        "postgresql://?service=ebbtide": "service ebbtide",
    }
    assert {address: PostgresPlace.of(address).name for address in names} == names
    monkeypatch.setenv(JOURNAL, "postgres://db.example.org/runs")
    assert journal_address() == "postgres://db.example.org/runs"
    # An empty one stands for the file in the run's folder.
    assert journal_address("") == ""


def test_a_controller_notices_that_the_database_has_gone_back_and_writes_on(
    postgres: PostgresServer, place: PostgresPlace
) -> None:
    """It failed over to a replica that had not received the last transactions."""
    journal = Journal(place)
    event = (0.0, "start", 0, 0, "")
    with journal.controlled():
        journal.keep({"phase": 1}, [event])
        with psycopg.connect(postgres.address) as connection:
            before = connection.execute(
                "select controller, writes from ebbtide.runs where run = %s", (place.run,)
            ).fetchone()
        journal.keep({"phase": 2}, [event, event])
        journal.keep({"phase": 3}, [event])
        with psycopg.connect(postgres.address) as connection:
            connection.execute(
                "update ebbtide.runs set controller = controller - 1, writes = %s where run = %s",
                (before[1] if before else 0, place.run),
            )
            connection.execute("delete from ebbtide.moments where run = %s and place > 1", (place.run,))
            connection.execute("update ebbtide.state set content = '1' where run = %s", (place.run,))
        with pytest.raises(JournalWentBackError, match="failed over to an older copy") as told:
            journal.keep({"phase": 4}, [event])
        assert told.value.lost_events == 3
        assert told.value.is_passing
        journal.keep({"phase": 4}, [event] * 4)
        journal.keep({"phase": 5})
    assert journal.state("phase") == 5
    assert len(journal.moments()) == 5


def test_one_whose_run_another_controller_took_has_not_gone_back(place: PostgresPlace) -> None:
    journal = Journal(place)
    with journal.controlled():
        journal.keep({"phase": 1})
        with psycopg.connect(place.address) as connection:
            connection.execute(
                "update ebbtide.runs set controller = controller + 1, writes = 0 where run = %s", (place.run,)
            )
        with pytest.raises(SupersededError):
            journal.keep({"phase": 2})


def test_an_empty_database_says_how_the_run_can_go_on(postgres: PostgresServer) -> None:
    address = postgres.make(f"emptied-{secrets.token_hex(4)}")
    place = PostgresPlace.of(address, new_run())
    journal = Journal(place)
    with journal.controlled():
        journal.keep({"phase": 1})
        with psycopg.connect(address) as connection:
            connection.execute("delete from ebbtide.runs")
        with pytest.raises(
            UnusableJournalError,
            match=r"was removed from .*failed over to an empty one; `ebbtide resume RUN --from-storage`",
        ):
            journal.keep({"phase": 2})
        with psycopg.connect(address) as connection:
            connection.execute("drop schema ebbtide cascade")
        with pytest.raises(UnusableJournalError, match=r"has no journals any more: .*--from-storage"):
            journal.keep({"phase": 2})


def test_what_there_is_of_a_run_is_kept_aside(place: PostgresPlace) -> None:
    for number in (1, 2):
        journal = Journal(place)
        with journal.controlled():
            journal.keep({"phase": number}, [(0.0, "start", 0, 0, "")])
        name = PostgresDatabase(place).set_aside()
        assert name == f"{place.run}~lost-{number}"
        assert (journal.state("phase"), journal.moments()) == (None, [])
        assert Journal(PostgresPlace.of(place.address, name), read_only=True).state("phase") == number
