"""Spending stops when it is told to: stop, down, Ctrl-C, whatever policy, cloud and program do."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.runs.commands import SILENT, User, heard, user
from tests.runs.sweeps import START_S, flapping, sweep
from tests.waiting import LIMIT_S

from ebbtide.clouds.local.server import CLOCK, bills_of
from ebbtide.clouds.settings import NewRun
from ebbtide.controller.journal.journal import Journal
from ebbtide.controller.run_state import (
    State,
    StopRequest,
    controller_pid,
    controlling,
    forget_stop,
    phase_of,
    request_stop,
    requested_stop,
    state_now,
)
from ebbtide.errors import InputError
from ebbtide.runs.start_local import LocalMarket, begin_local, end_local

pytestmark = pytest.mark.usefixtures("processes")


@pytest.fixture
def someone(tmp_path: Path) -> Iterator[User]:
    with user(tmp_path) as one:
        yield one


def test_stop_is_obeyed_though_nothing_happens(someone: User) -> None:
    """No timers, no reports: nothing would ever wake the controller before its program ends, long after the limit."""
    someone.write(trials=2, program=SILENT, every_h=5.0)
    controller = someone.start_run()
    someone.wait(lambda: someone.trains(2))
    code, out, _ = someone.do("stop")
    assert (code, f"controller pid {controller.pid}" in out) == (0, True)
    out, _ = controller.communicate(timeout=LIMIT_S)
    assert controller.returncode == 130
    assert "ebbtide resume" in out
    assert not someone.machines()
    code, out, _ = someone.do("status", someone.run.path.name)
    assert out.strip().splitlines()[-1].startswith("stopped")
    assert "rented 2 machines in all, none now; revoked 0 times" in out


def test_down_reaches_a_live_controller_which_rents_no_more(someone: User) -> None:
    someone.write(trials=2, program=SILENT, every_h=5.0)
    controller = someone.start_run()
    someone.wait(lambda: someone.trains(2))
    code, out, errors = someone.do("down")
    assert code == 0, errors
    named = rf"{someone.run.path.name} \(the newest, begun \d+ s ago\)"
    assert re.fullmatch(rf"{named}: controller ended, 2 machines given back, none left\n", out)
    assert f"controller (pid {controller.pid})" in errors
    assert controller.wait(LIMIT_S) == 130
    assert not someone.machines()
    assert not (someone.run.path / "cloud" / "cloud.json").exists()
    rented = len(Journal(someone.run.journal).run()["engine"]["leases"])
    assert rented == 2
    code, out, _ = someone.do("status", someone.run.path.name)
    assert "rented 2 machines in all, none now; revoked 0 times" in out
    assert out.strip().splitlines()[-1].startswith("down: its machines were ended")


def test_down_after_a_killed_controller_leaves_none_and_status_says_so(someone: User) -> None:
    someone.write(trials=2, program=SILENT, every_h=5.0)
    controller = someone.start_run()
    someone.wait(lambda: someone.trains(2))
    controller.kill()
    controller.wait()
    code, out, _ = someone.do("status")
    assert re.search(r"controller gone.* 0/2 +- +2 ", out)
    code, out, _ = someone.do("status", someone.run.path.name)
    assert out.strip().splitlines()[-1].startswith("controller gone, and 2 machines may run")
    code, out, _ = someone.do("stop")
    assert code == 2
    code, out, _ = someone.do("down")
    assert (code, out.partition(": ")[2]) == (0, "2 machines given back, none left\n")
    assert not someone.machines()
    code, out, _ = someone.do("status", someone.run.path.name)
    assert "rented 2 machines in all, none now; revoked 0 times" in out
    assert "down" in out.strip().splitlines()[-1]
    # What the machines cost after the controller's death is counted, as the cloud has it.
    bills = bills_of(someone.run.path / "cloud")
    assert len(bills) == 2
    code, out, _ = someone.do("status", someone.run.path.name, "--json")
    assert json.loads(out)["money"]["paid_usd"] == pytest.approx(sum(bill["usd"] for bill in bills))


def test_machines_that_ended_without_a_controller_cost_no_more(
    someone: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    someone.write(trials=2, program=SILENT, every_h=5.0)
    controller = someone.start_run()
    someone.wait(lambda: someone.trains(2))
    controller.kill()
    controller.wait()
    someone.do("status", someone.run.path.name)
    # As they end themselves when they miss it for long.
    assert end_local(someone.run) == 2
    bills = bills_of(someone.run.path / "cloud")
    # Looked at an hour later.
    later = SimpleNamespace(time=lambda: time.time() + 3600.0)
    for module in ("status", "cost_summary"):
        monkeypatch.setattr(f"ebbtide.runs.{module}.time", later)
    code, out, _ = someone.do("status", someone.run.path.name, "--json")
    found = json.loads(out)
    assert (code, found["state"], found["rented"], found["money"]["usd_per_hour"]) == (
        0,
        "controller gone",
        0,
        0.0,
    )
    assert found["money"]["paid_usd"] == pytest.approx(sum(bill["usd"] for bill in bills))
    _, out, _ = someone.do("status", someone.run.path.name)
    assert out.strip().splitlines()[-1].startswith("controller gone, and no machine runs")


@pytest.mark.long
def test_ctrl_c_stops_and_a_run_goes_on_where_it_was(someone: User) -> None:
    someone.write(trials=1, steps=600, every_h=5.0)
    controller = someone.start_run()
    someone.wait(lambda: someone.trains() and someone.steps() > 0)
    controller.send_signal(signal.SIGINT)
    _, errors = controller.communicate(timeout=LIMIT_S)
    assert controller.returncode == 130
    assert "Ctrl-C again ends at once" in errors
    assert not someone.machines()
    first = Journal(someone.run.journal).run()["engine"]["leases"]
    resumed = someone.start("resume")
    someone.wait(lambda: controller_pid(someone.run.path) == resumed.pid and not requested_stop(someone.run.path))
    # It trains, and nothing says that it was stopped.
    _, told, _ = someone.do("status", someone.run.path.name)
    assert told.strip().splitlines()[-1] == f"running (pid {resumed.pid})"
    follows = someone.start("logs", "-f")
    assert resumed.wait(LIMIT_S) == 0
    followed, _ = follows.communicate(timeout=LIMIT_S)
    assert "total" in followed
    # The market went on from where it was.
    leases = Journal(someone.run.journal).run()["engine"]["leases"]
    assert len(leases) > len(first)
    assert leases[len(first)]["requested_s"] >= first[-1]["ended_s"]


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_from_a_service_manager_or_a_closed_terminal_stops_as_ctrl_c_does(
    number: signal.Signals, someone: User
) -> None:
    someone.write(trials=1, program=SILENT, every_h=5.0)
    controller = someone.start_run()
    someone.wait(lambda: someone.trains())
    controller.send_signal(number)
    heard(controller.stderr, "stopping: everything is saved and given back")
    # `timeout` sends it twice.
    if controller.poll() is None:
        controller.send_signal(number)
    out, errors = controller.communicate(timeout=LIMIT_S)
    assert controller.returncode == 130, errors
    assert "stopped" in out.strip().splitlines()[-1]
    assert not someone.machines()


def test_ctrl_c_twice_ends_at_once_though_the_program_does_not_leave(someone: User) -> None:
    someone.write(
        trials=1,
        every_h=5.0,
        program=(
            "import signal, time\n"
            "signal.signal(signal.SIGTERM, lambda *_: None)\n"
            "print('it is deaf', flush=True)\n"
            "time.sleep(300)\n"
        ),
    )
    controller = someone.start_run()
    someone.wait(lambda: someone.trains())
    someone.wait(lambda: any("it is deaf" in log.read_text() for log in (someone.run.path / "logs").glob("*.log")))
    controller.send_signal(signal.SIGINT)
    heard(controller.stderr, "Ctrl-C again ends at once")
    assert controller.poll() is None
    controller.send_signal(signal.SIGINT)
    _, errors = controller.communicate(timeout=LIMIT_S)
    assert controller.returncode == 130
    assert f"`ebbtide down {someone.run.path.name}` ends them now" in errors
    code, out, _ = someone.do("down", someone.run.path.name)
    assert (code, out) == (0, f"{someone.run.path.name}: 1 machine given back, none left\n")
    assert not someone.machines()


HANGS = """
import sys, time
from pathlib import Path
import typer
import ebbtide.cli.live_console as foreground
from ebbtide.clouds.settings import RunFolder
from ebbtide.policies.registry import policy
from ebbtide.jobs.sweep import Sweep

folder = RunFolder(Path(sys.argv[1]))
decides = policy("cheapest-spot")
class Hangs:
    name, wakes_on, period_lead_s = "hangs", decides.wakes_on, 0.0
    def decide(self, view):
        if any(lease.is_charged for lease in view.leases):
            print("hangs", flush=True)
            while True:
                try:
                    if sys.argv[2] == "sleeps":
                        time.sleep(60)
                except Exception:
                    pass
        return decides.decide(view)
try:
    foreground.run_in_foreground(folder, Hangs(), Sweep.model_validate(folder.settings.sweep))
except typer.Exit as end:
    sys.exit(end.exit_code)
"""


def hanging(someone: User, how: str, speed: float = 30.0, **options: object) -> subprocess.Popen[str]:
    """A run whose policy never answers again, once it has a machine."""
    wanted = sweep(someone.folder, trials=1, program=SILENT, **options)  # type: ignore[arg-type]
    market = LocalMarket(flapping(5.0), START_S, speed)
    run = begin_local(wanted, someone.folder, NewRun(someone.runs), market, policy="cheapest-spot")
    hangs = subprocess.Popen(
        [sys.executable, "-c", HANGS, str(run.path), how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    someone.started.append(hangs)
    assert hangs.stdout is not None
    while "hangs" not in hangs.stdout.readline():
        assert hangs.poll() is None
    return hangs


@pytest.mark.long
def test_ctrl_c_ends_a_run_whose_policy_sleeps_for_ever(someone: User) -> None:
    hangs = hanging(someone, "sleeps")
    hangs.send_signal(signal.SIGINT)
    _, errors = hangs.communicate(timeout=LIMIT_S)
    assert hangs.returncode == 130
    assert "the policy has not answered for 8 s" in errors


@pytest.mark.long
def test_down_ends_a_run_whose_policy_sleeps_for_ever(someone: User) -> None:
    hangs = hanging(someone, "sleeps")
    code, out, _ = someone.do("down")
    assert (code, out.partition(": ")[2]) == (0, "controller ended, 1 machine given back, none left\n")
    assert hangs.wait(LIMIT_S) == 130
    assert not someone.machines()


@pytest.mark.long
def test_stop_interrupts_a_policy_that_thinks_for_ever_and_gives_all_back(someone: User) -> None:
    hangs = hanging(someone, "loops")
    assert someone.do("stop")[0] == 0
    # The program reports nothing and has nothing to save.
    _, errors = hangs.communicate(timeout=LIMIT_S)
    assert hangs.returncode == 130
    assert "the policy was interrupted" in errors
    # Not by the watch that ends the controller and leaves its machines.
    assert "has not answered for" not in errors
    assert state_now(someone.run, phase_of(Journal(someone.run.journal)))[0] is State.STOPPED
    assert not someone.machines()


@pytest.mark.long
def test_the_budget_interrupts_a_policy_that_thinks_for_ever(someone: User) -> None:
    hangs = hanging(someone, "loops", speed=600.0, budget_usd=0.06)
    _, errors = hangs.communicate(timeout=LIMIT_S)
    assert "the policy was interrupted" in errors
    outcome = Journal(someone.run.journal).state("outcome")
    assert outcome["gave_up"] == "budget of 0.06 USD reached while the policy thought"
    assert not someone.machines()
    # It is looked at twice a second, which is five minutes of this market.
    assert sum(bill["usd"] for bill in bills_of(someone.run.path / "cloud")) < 0.06 + 3 * 0.21 * 300 / 3600


def test_a_request_finds_room_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_stop(tmp_path)
    assert requested_stop(tmp_path) is None

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("ebbtide.controller.run_state.write_text", full)
    size_bytes = (tmp_path / "stop.json").stat().st_size
    request_stop(tmp_path, StopRequest.STOP)
    assert requested_stop(tmp_path) is StopRequest.STOP
    request_stop(tmp_path, StopRequest.DOWN)
    assert requested_stop(tmp_path) is StopRequest.DOWN
    assert (tmp_path / "stop.json").stat().st_size == size_bytes


def states(someone: User) -> list[str]:
    """The leases of the newest run, from its journal."""
    return [lease["state"] for lease in Journal(someone.run.journal).run()["engine"]["leases"]]


@pytest.mark.long
def test_machines_that_ended_while_nobody_looked_are_charged_as_the_cloud_has_them(someone: User) -> None:
    someone.write(trials=1, steps=100_000, every_h=5.0)
    controller = someone.start_run()
    someone.wait(lambda: someone.trains())
    controller.kill()
    controller.wait()
    # The market goes on for a few minutes, then the cloud ends with its machines.
    clock = someone.run.path / "cloud" / CLOCK
    seen_s = json.loads(clock.read_text())["now_s"]
    someone.wait(lambda: json.loads(clock.read_text())["now_s"] > seen_s + 300.0)
    address = someone.run.path / "cloud" / "cloud.json"
    os.kill(json.loads(address.read_text())["pid"], signal.SIGTERM)
    someone.wait(lambda: not address.exists())
    resumed = someone.start("resume")
    someone.wait(lambda: controller_pid(someone.run.path) == resumed.pid and states(someone)[1:] == ["running"])
    resumed.send_signal(signal.SIGINT)
    assert resumed.wait(LIMIT_S) == 130
    bills = bills_of(someone.run.path / "cloud")
    assert len(bills) == 2
    outcome = Journal(someone.run.journal).state("outcome")
    assert outcome["cost_usd"] == pytest.approx(sum(bill["usd"] for bill in bills))


@pytest.mark.long
def test_a_local_cloud_that_was_killed_hinders_neither_down_nor_resume(someone: User) -> None:
    someone.write(trials=1, steps=600, every_h=5.0)
    controller = someone.start_run()
    someone.wait(lambda: someone.trains() and someone.steps() > 0)
    address = someone.run.path / "cloud" / "cloud.json"
    os.kill(json.loads(address.read_text())["pid"], signal.SIGKILL)
    _, errors = controller.communicate(timeout=LIMIT_S)
    assert controller.returncode == 69
    assert "the local cloud has ended" in errors
    assert errors.count("ebbtide resume") == 1
    assert "Traceback" not in errors
    assert address.exists()
    code, out, errors = someone.do("status", someone.run.path.name)
    assert "broken off: the local cloud has ended" in out
    assert out.count("ebbtide resume") == 1
    code, out, errors = someone.do("resume")
    assert (code, errors) == (0, "")
    assert "done" in out
    assert not someone.machines()


def test_down_finds_what_the_machines_of_a_killed_cloud_left(someone: User) -> None:
    someone.write(trials=1, program=SILENT, every_h=5.0)
    controller = someone.start_run()
    someone.wait(lambda: someone.trains() and len(someone.machines()) >= 2)
    controller.kill()
    controller.wait()
    os.kill(json.loads((someone.run.path / "cloud" / "cloud.json").read_text())["pid"], signal.SIGKILL)
    code, out, errors = someone.do("down")
    assert (code, out.partition(": ")[2], errors) == (0, "1 machine given back, none left\n", "")
    assert not someone.machines()


@pytest.mark.long
def test_down_ends_the_machines_of_a_cloud_that_is_frozen_and_has_lost_its_prices(someone: User) -> None:
    someone.write(trials=1, program=SILENT, every_h=5.0)
    controller = someone.start_run()
    someone.wait(lambda: someone.trains() and len(someone.machines()) >= 2)
    controller.kill()
    controller.wait()
    os.kill(json.loads((someone.run.path / "cloud" / "cloud.json").read_text())["pid"], signal.SIGSTOP)
    (someone.run.path / "prices.parquet").unlink()
    code, out, errors = someone.do("down")
    assert (code, out.partition(": ")[2], errors) == (0, "1 machine given back, none left\n", "")
    assert not someone.machines()


def test_no_process_outlives_its_machine(someone: User) -> None:
    """Neither one that a script started, nor one in a session of its own."""
    someone.write(trials=1, every_h=5.0)
    (someone.folder / "wrap.sh").write_text("setsid sleep 300 &\nsleep 301\n")
    content = (someone.folder / "sweep.yaml").read_text()
    before = next(line for line in content.splitlines() if line.startswith("command:"))
    end = content.index("direction:")
    content = content[: content.index(before)] + "command: bash wrap.sh {lr}\n" + content[end:]
    (someone.folder / "sweep.yaml").write_text(content)
    controller = someone.start_run()
    # The agent, the shell, and two that sleep.
    someone.wait(lambda: someone.trains() and len(someone.machines()) >= 4)
    code, _, errors = someone.do("down")
    assert code == 0, errors
    assert controller.wait(LIMIT_S) == 130
    assert not someone.machines()


def test_a_request_is_read_while_the_journal_is_locked(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    journal.keep({"run": 1})
    with sqlite3.connect(tmp_path / "journal.sqlite") as locked:
        locked.execute("begin immediate")
        request_stop(tmp_path, StopRequest.STOP)
        assert requested_stop(tmp_path) is StopRequest.STOP
        assert Journal(tmp_path / "journal.sqlite", read_only=True).state("run") == 1
        locked.execute("rollback")


def test_down_is_never_weakened_to_stop(tmp_path: Path) -> None:
    assert requested_stop(tmp_path) is None
    request_stop(tmp_path, StopRequest.DOWN)
    request_stop(tmp_path, StopRequest.STOP)
    assert requested_stop(tmp_path) is StopRequest.DOWN
    (tmp_path / "stop.json").write_text("torn {")
    assert requested_stop(tmp_path) is StopRequest.STOP
    forget_stop(tmp_path)
    assert requested_stop(tmp_path) is None


def test_whoever_has_a_run_is_known_by_its_process(tmp_path: Path) -> None:
    assert controller_pid(tmp_path) is None
    with controlling(tmp_path):
        assert controller_pid(tmp_path) == os.getpid()
        with pytest.raises(InputError, match="another controller is under way"), controlling(tmp_path):
            pass
    assert controller_pid(tmp_path) is None


def test_down_names_a_controller_that_does_not_end_and_ends_its_machines_all_the_same(
    someone: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebbtide.cli.runs._CONTROLLER_ENDS_S", 0.5)
    someone.write(trials=1, program=SILENT, every_h=5.0)
    controller = someone.start_run()
    someone.wait(lambda: someone.trains())
    controller.send_signal(signal.SIGSTOP)
    code, out, errors = someone.do("down")
    assert (code, out.partition(": ")[2]) == (1, "controller still runs, 1 machine given back, none left\n")
    assert f"`kill -9 {controller.pid}` ends it" in errors
    assert not someone.machines()


@pytest.mark.long
def test_ctrl_c_ends_a_run_whose_cloud_is_frozen(someone: User) -> None:
    someone.write(trials=1, steps=100_000, every_h=5.0)
    controller = someone.start_run()
    someone.wait(lambda: someone.trains() and someone.steps() > 0)
    cloud = json.loads((someone.run.path / "cloud" / "cloud.json").read_text())["pid"]
    os.kill(cloud, signal.SIGSTOP)
    heard(controller.stderr, "the local cloud does not answer")
    controller.send_signal(signal.SIGINT)
    # Else saves would be waited for, for longer than the limit.
    _, errors = controller.communicate(timeout=LIMIT_S)
    assert controller.returncode == 130, errors
    assert not someone.machines()
    # What was saved came through storage.
    journal = Journal(someone.run.journal)
    assert journal.run()["engine"]["jobs"][0]["steps_saved"] > 0
    assert not journal.state("unended")


def test_a_disk_that_does_not_answer_asks_for_no_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request_stop(tmp_path, StopRequest.DOWN)

    def unanswered(*_: object, **__: object) -> str:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_text", unanswered)
        assert requested_stop(tmp_path) is None
    assert requested_stop(tmp_path) is StopRequest.DOWN
