"""The agent of a machine that trains as one with others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.agent.test_agent import PLAIN, Machine, machine, metadata  # noqa: F401 (fixtures)
from tests.waiting import eventually

from ebbtide.agent.config import Assignment
from ebbtide.agent.protocol import covered, key_of, secret_of
from ebbtide.agent.rendezvous import command_of, neighbours
from ebbtide.storage.checkpoints.store import CheckpointStore
from ebbtide.storage.objects import FolderStore
from ebbtide.testing.metadata_server import MetadataServer

pytestmark = pytest.mark.usefixtures("processes")

TWO = ("127.1.0.1", "127.1.0.2")
KEY = key_of(b"of the run", "m-1")


def test_one_machine_has_no_neighbours_and_several_find_each_other() -> None:
    alone = Assignment("t", ("true",), 1, "loss")
    assert neighbours(alone, KEY, "store") == {}
    secret = secret_of(b"of the run", "t", 4)
    of_second = Assignment("t-r1", ("true",), 1, "loss", addresses=TWO, rank=1, port=20_008, attempt=4)
    in_storage = covered(secret, KEY, "t-r1", 4)
    assert in_storage != secret
    told = neighbours(replace(of_second, secret=in_storage.hex()), KEY, "store")
    assert bytes.fromhex(told["EBBTIDE_SECRET"]) == secret
    assert "EBBTIDE_SECRET" not in neighbours(of_second, KEY, "store")
    assert told["EBBTIDE_MACHINES"] == "127.1.0.1,127.1.0.2"
    assert (told["PET_NNODES"], told["PET_NODE_RANK"]) == ("2", "1")
    assert (told["PET_MASTER_ADDR"], told["PET_MASTER_PORT"]) == ("127.1.0.1", "20008")
    assert (told["WORLD_SIZE"], told["RANK"], told["LOCAL_RANK"]) == ("2", "1", "0")


def test_mpirun_runs_on_the_first_machine_and_the_others_listen_for_it() -> None:
    given = Assignment("t", ("/usr/bin/mpirun", "-n", "8", "python", "x.py"), 1, "loss", addresses=TWO)
    assert command_of(given)[-7:] == ("run", "--", *given.arguments)
    assert command_of(replace(given, rank=1))[-1] == "listen"
    # One machine needs nobody, and another program starts by itself everywhere.
    assert command_of(replace(given, addresses=())) == given.arguments
    assert command_of(replace(given, arguments=("torchrun", "x.py"))) == ("torchrun", "x.py")


def test_an_assignment_of_several_machines_reads_back() -> None:
    given = Assignment(
        "t", ("true",), 1, "loss", addresses=TWO, rank=1, port=20_008, resume=(("t", 3), ("t-r1", 4)), aside=(2,)
    )
    assert Assignment.decode(json.loads(json.dumps(given.encode()))) == given
    assert Assignment.decode(json.loads(json.dumps(Assignment("t", ("true",), 1, "loss").encode()))).resume is None


def test_what_leaves_because_its_neighbours_do_has_not_failed(machine: Machine) -> None:  # noqa: F811
    leaves = (
        """import json; print(json.dumps({"api": 1}), flush=True); print(json.dumps({"left": 0}), flush=True)"""
    )
    machine.train("-c", leaves, addresses=TWO, keep=0, resume=())
    assert machine.until("left")["attempt"] == 1
    # On one machine nobody asked it to.
    machine.train("-c", leaves, attempt=2)
    assert machine.until("failed")["attempt"] == 2


def test_one_that_waits_for_a_machine_that_is_gone_is_killed_soon(machine: Machine) -> None:  # noqa: F811
    """With all that it started, whatever session that has."""
    child = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'], start_new_session=True)"
    deaf = f"import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); {child}; print('waits', flush=True); time.sleep(300)"
    for trial, beside in (("t-1", []), ("t-2", ["t-1"])):
        machine.train("-c", deaf, trial=trial, beside=beside, share=0.5, addresses=TWO, keep=0, resume=())
        machine.until("log")
    # The other one is asked before, and given longer.
    for trial in ("t-2", "t-1"):
        machine.order("leave", attempt=1, trial=trial)
    machine.order("leave", attempt=1, trial="t-1", alone=True)
    assert machine.until("left")["trial"] == "t-1"
    machine.order("leave", attempt=1, trial="t-2", alone=True)
    assert machine.until("left")["trial"] == "t-2"


def test_it_resumes_from_the_part_that_it_is_told(machine: Machine, tmp_path: Path) -> None:  # noqa: F811
    machine.train("-c", PLAIN, "{checkpoint_dir}", 30, steps=30)
    machine.until("finished")
    # Another machine, which has stored nothing itself, begins from there.
    machine.train(
        "-c",
        PLAIN,
        "{checkpoint_dir}",
        60,
        trial="t-1-r1",
        steps=60,
        addresses=TWO,
        rank=1,
        keep=0,
        resume=(("t-1", 1),),
    )
    restored = machine.until("restored")
    assert (restored["trial"], restored["step"]) == ("t-1-r1", 30)
    assert machine.until("finished")["step"] == 60
    stored = next(CheckpointStore(FolderStore(tmp_path / "objects"), "t-1-r1").manifests())
    assert (stored.attempt, stored.machines) == (1, 2)


@pytest.mark.long
def test_a_part_that_is_damaged_is_set_aside(tmp_path: Path, metadata: MetadataServer) -> None:  # noqa: F811
    # It is read again for as long as the machine goes on without its controller, five minutes at most.
    short = Machine(tmp_path, metadata, controller_limit_s=15.0)
    try:
        short.train("-c", PLAIN, "{checkpoint_dir}", 10, steps=10)
        short.until("finished")
        store = CheckpointStore(FolderStore(tmp_path / "objects"), "t-1")
        number = max(store.numbers("manifests"))
        (data,) = (tmp_path / "objects" / "trials" / "t-1" / "data").glob(f"{number:08d}-*/*")
        data.write_bytes(b"other")
        resume = (("t-1", number),)
        short.train("-c", PLAIN, "{checkpoint_dir}", 20, steps=20, attempt=2, addresses=TWO, keep=0, resume=resume)
        failed = short.until("failed")
        assert "is not what was saved" in failed["tail"][-1]
        assert store.numbers("aside") == {number}
    finally:
        short.process.kill()
        short.process.wait()


def test_checkpoints_stay_until_they_may_go(machine: Machine, tmp_path: Path) -> None:  # noqa: F811
    saves = """
import json, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
print(json.dumps({"api": 1}), flush=True)
for step in (1, 2, 3, 4):
    place = folder / f"step-{step:012d}"; place.mkdir(); (place / "state").write_text(str(step))
    print(json.dumps({"saved": step, "folder": place.name}), flush=True)
    while not (folder.parent / f"go-{step}").exists(): time.sleep(0.05)
print(json.dumps({"finished": 4}), flush=True)
"""
    machine.train("-c", saves, "{checkpoint_dir}", addresses=TWO, keep=0, resume=())
    store = CheckpointStore(FolderStore(tmp_path / "objects"), "t-1")
    folders = eventually(lambda: list(tmp_path.rglob("t-1-1/checkpoints")))
    (place,) = {path.parent for path in folders}
    for step in (1, 2):
        machine.until("saved", step=step)
        (place / f"go-{step}").touch()
    machine.until("saved", step=3)
    assert store.numbers("manifests") == {1, 2, 3}
    machine.order("keep", attempt=1, number=3, best=2)
    # What is answered shows that the order before it was obeyed.
    machine.order("leave", attempt=9, trial="t-9")
    machine.until("left")
    (place / "go-3").touch()
    machine.until("saved", step=4)
    (place / "go-4").touch()
    machine.until("finished")
    # The second has the best metric, as the controller says.
    assert store.numbers("manifests") == {2, 3, 4}
