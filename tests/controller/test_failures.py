"""Failure says so: exit codes, last lines, warnings, and no machines rented for what cannot run."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.runs.commands import User, user
from tests.runs.sweeps import sweep
from tests.waiting import LIMIT_S, eventually

from ebbtide.controller import controller
from ebbtide.controller.controller import Controller
from ebbtide.controller.journal.journal import Journal
from ebbtide.controller.run_state import StopRequest, request_stop
from ebbtide.errors import InputError
from ebbtide.jobs.cluster import Cluster
from ebbtide.runs.command_check import check_command

pytestmark = pytest.mark.usefixtures("processes")

FAILS = """
import sys, time
if float(sys.argv[3]) < 0.15:
    print("so far so good", flush=True)
    raise SystemExit("bad setting [red]")
time.sleep(0.1)
"""

# Reports nothing, begins from nothing each time, and is taken before its end now and then.
FORGETS = """
import json, pathlib, sys, time
lives = pathlib.Path("LIVES"); lives.write_text(lives.read_text() + "x" if lives.exists() else "x")
for step in range(40):
    time.sleep(0.25 if len(lives.read_text()) < 2 else 0.01)
    REPORT
open("model.pt", "w").write(sys.argv[3])
"""


@pytest.fixture
def someone(tmp_path: Path) -> Iterator[User]:
    with user(tmp_path) as one:
        yield one


def run(someone: User, *words: object) -> tuple[int, str, str]:
    return someone.do(
        "run",
        someone.folder / "sweep.yaml",
        "--prices",
        someone.folder / "prices.parquet",
        "--policy",
        "exosphere",
        *words,
    )


def test_a_run_in_which_a_trial_failed_ends_with_1_and_its_last_lines(someone: User) -> None:
    someone.write(trials=2, program=FAILS)
    code, out, _ = run(someone)
    assert code == 1
    assert re.search(r"trial 0 \(lr=0.1\) failed: failed 5 times, last with exit code 1", out)
    assert "    so far so good\n    bad setting [red]\n" in out
    assert out.strip().splitlines()[-1] == "failed: 1 of 2 trials"
    code, again, _ = someone.do("status", someone.run.path.name)
    assert code == 0
    assert "bad setting [red]" in again
    # No checkpoint, no reported step: nothing is counted as saved.
    # The name of the run has the time in it, which may have these digits.
    assert re.search(r"\b150\b", out) is None


def test_a_command_line_that_its_program_refuses_is_tried_twice(someone: User) -> None:
    someone.write(trials=1, program="import argparse\nargparse.ArgumentParser().parse_args(['--epoch', '3'])\n")
    code, out, _ = run(someone)
    assert code == 1
    assert "failed 2 times, last with exit code 2" in out
    assert "unrecognized arguments: --epoch 3" in out


def test_a_failed_training_is_told_which_metric_it_reports(someone: User) -> None:
    someone.write(trials=1, program='import sys\nprint(\'{"step": 1, "lossy": 0.5}\', flush=True)\nsys.exit(2)\n')
    code, out, _ = run(someone)
    assert code == 1
    assert "metric 'loss' was never reported; the program reports: lossy" in out


@pytest.mark.parametrize("line", ['{"step": 1, "loss": NaN}', '{"step": 1, "loss": null, "not_finite": ["loss"]}'])
def test_a_metric_that_is_never_finite_is_told_as_such(someone: User, line: str) -> None:
    someone.write(trials=1, program=f"import sys\nprint({line!r}, flush=True)\nsys.exit(2)\n")
    code, out, _ = run(someone)
    assert code == 1
    said = "metric 'loss' was never reported as a finite number: the program reports it as nan or infinity"
    assert said in " ".join(out.split())


WORDS = """
import sys, time
for epoch in range(1, 6):
    print(f"step {epoch}/150 loss {float(sys.argv[3]) + 1 / epoch}", flush=True)
    time.sleep(0.05)
open("model.pt", "w").write(sys.argv[3])
"""


def test_a_sweep_reads_the_words_of_its_programs(someone: User) -> None:
    someone.write(trials=2, program=WORDS, steps=150)
    code, out, err = run(someone)
    assert code == 0
    assert "no metric" not in out
    said = [line for line in err.splitlines() if "progress:" in line]
    assert len(said) == 1
    assert "of 150 from `step 1/150 loss" in said[0]
    log = someone.run.log_of(f"{someone.run.path.name}-001").read_text()
    assert "ebbtide: progress: step 1 of 150 from `step 1/150 loss" in log


def test_a_command_that_is_not_there_is_tried_once_for_all_trials(someone: User) -> None:
    """One that only the machine can find out: a script calls it."""
    someone.write(trials=3)
    (someone.folder / "wrap.sh").write_text("no-such-trainer --lr $1\n")
    path = someone.folder / "sweep.yaml"
    content = path.read_text()
    start, end = content.index("command:"), content.index("direction:")
    path.write_text(content[:start] + "command: bash wrap.sh {lr}\n" + content[end:])
    code, out, _ = run(someone)
    assert code == 1
    assert out.count("cannot be started") == 3
    assert "no-such-trainer" in out
    kept = Journal(someone.run.journal).run()
    assert len(kept["engine"]["leases"]) <= 3
    assert max(trial["attempt"] for trial in kept["provider"]["trials"]) == 1


def test_one_that_forgets_all_is_warned_of_at_its_first_revocation(
    someone: User, caplog: pytest.LogCaptureFixture
) -> None:
    someone.write(
        trials=1, program=FORGETS.replace("LIVES", str(someone.folder / "lives")).replace("REPORT", "pass")
    )
    code, out, _ = run(someone, "--start", "2015-06-02T00:00:00Z")
    assert code == 0
    kept = Journal(someone.run.journal).run()
    assert any(moment[1] == "notice" for moment in Journal(someone.run.journal).moments())
    assert "it has saved nothing" in caplog.text
    assert "metric 'loss' was never reported: the program prints no line of JSON" in caplog.text
    assert "done (no metric, nothing saved)" in out
    assert "thrown away" in out
    # The second life alone counts as work.
    (trial,) = kept["provider"]["trials"]
    shares = [stretch["is_final"] or stretch["has_saved"] for stretch in trial["stretches"]]
    assert shares == [False] * (len(shares) - 1) + [True]
    assert (
        "ebbtide: warning: it has saved nothing"
        in (someone.run.path / "logs" / f"{trial_id(someone)}.log").read_text()
    )


def test_a_metric_that_is_misspelt_is_told_with_those_there_are(someone: User) -> None:
    report = 'print(json.dumps({"step": step, "val_loss": 1 / (step + 1), "lr": 0.1, "ok": True, "name": "x"}), flush=True)'
    program = (
        FORGETS.replace("LIVES", str(someone.folder / "lives")).replace("REPORT", report).replace("0.25", "0.01")
    )
    someone.write(trials=1, program=program, metric="val_los", every_h=5.0)
    code, out, _ = run(someone)
    assert code == 0
    said = "metric 'val_los' was never reported; the program reports: lr, val_loss (did you mean 'val_loss'?)"
    assert said in " ".join(out.split())


def test_two_that_write_one_name_keep_both(someone: User) -> None:
    program = 'import sys\nopen("model.pt", "w").write(sys.argv[3])\n'
    someone.write(trials=2, program=program, every_h=5.0)
    assert run(someone)[0] == 0
    assert not (someone.folder / "model.pt").exists()
    name = someone.run.path.name
    code, out, _ = someone.do("fetch", name, "--all", "--into", someone.folder / "got")
    assert code == 0, out
    found = {
        path.parent.parent.name[-3:]: path.read_text()
        for path in (someone.folder / "got").glob("*/outputs/model.pt")
    }
    assert found == {"000": "0.1", "001": "0.2"}
    assert "trial 0: no checkpoint; its outputs (model.pt, 3 bytes), in " in out
    # Again is no harm; another content in its place is not written over.
    code, out, _ = someone.do("fetch", name, 1, "--into", someone.folder / "got")
    assert (code, "already in" in out) == (0, True)
    (someone.folder / "got" / f"{name}-001" / "outputs" / "model.pt").write_text("mine")
    code, _, errors = someone.do("fetch", name, 1, "--into", someone.folder / "got")
    assert code == 2
    assert "holds something else" in errors
    assert (someone.folder / "got" / f"{name}-001" / "outputs" / "model.pt").read_text() == "mine"
    assert someone.do("fetch", name, 7)[0] == 2
    # None reported the metric: which is the best nobody can say.
    code, _, errors = someone.do("fetch", name)
    assert (code, "none is the best" in errors) == (2, True)


def trial_id(someone: User, number: int = 0) -> str:
    return f"{someone.run.path.name}-{number:03d}"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("pyhton train.py", "executable 'pyhton' is not found: did you mean 'python'?"),
        ("python trian.py", "trian.py is not in"),
        ("torchrun trian.py", "trian.py is not in"),
        ("torchrun --standalone --nproc_per_node 2 --nnodes=1 trian.py", "trian.py is not in"),
        ("./train.sh", "there is no ./train.sh"),
        ("./program.py", "chmod +x"),
        ("program.py", "write `python program.py`"),
    ],
)
def test_what_is_not_there_is_told_before_anything_is_rented(someone: User, command: str, said: str) -> None:
    wanted = sweep(someone.folder, trials=1, command=command + " {lr}")
    with pytest.raises(InputError, match=re.escape(said)):
        check_command(wanted, someone.folder, here=True)


def test_what_is_there_passes(tmp_path: Path) -> None:
    for command in (
        "python program.py {lr}",
        "python -m json.tool {lr}",
        "bash -c {lr}",
        "python3 program.py {lr}",
        "torchrun --standalone --nproc-per-node 2 program.py --like trian.py {lr}",
        "torchrun --nproc-per-node 2 -m json.tool trian.py {lr}",
        "torchrun --no-python ./train trian.py {lr}",
    ):
        check_command(sweep(tmp_path, trials=1, command=command), tmp_path, here=True)
    check_command(sweep(tmp_path, trials=1, command="torchrun-of-the-image {lr}"), tmp_path, here=False)


def test_a_policy_that_rents_nothing_is_told_of(
    someone: User, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "_IDLE_S", 1.0)
    (someone.folder / "idle.py").write_text(
        "class Idle:\n    name = 'idle'\n    wakes_on = frozenset()\n\n    def decide(self, view):\n        return []\n"
    )
    someone.write(trials=1)
    looks_s: list[float] = []
    watched = Controller._watch_idleness

    def watch(self: Controller, now_s: float) -> None:
        watched(self, now_s)
        looks_s.append(now_s)

    monkeypatch.setattr(Controller, "_watch_idleness", watch)

    def stop() -> None:
        """Long enough after the first warning that a second one would have come."""
        try:
            eventually(lambda: "has had no machine" in caplog.text)
            warned_s = looks_s[-1]
            eventually(lambda: looks_s[-1] > warned_s + 3.0)
        finally:
            request_stop(someone.run.path, StopRequest.STOP)

    stopping = threading.Thread(target=stop)
    stopping.start()
    code, _, _ = someone.do(
        "run",
        someone.folder / "sweep.yaml",
        "--prices",
        someone.folder / "prices.parquet",
        "--policy",
        f"{someone.folder / 'idle.py'}:Idle",
    )
    stopping.join()
    assert code == 130
    assert caplog.text.count("policy idle has had no machine for 1 s") == 1


STUMBLES = """
import ebbtide as eb
from ebbtide.policies.baselines import CheapestSpot
from ebbtide.policies.api.actions import WakeAt

class Stumbles(CheapestSpot):
    def decide(self, view):
        if any(job.steps_run > 3 for job in view.jobs):
            raise KeyError("no such zone")
        yield from super().decide(view)
        yield WakeAt(view.now_s + 60)

def stumbles():
    return Stumbles(name="stumbles")
"""


@pytest.mark.long
def test_a_policy_s_mistake_ends_its_machines_at_once(someone: User) -> None:
    someone.write(trials=2, steps=300, every_h=5.0)
    (someone.folder / "mine.py").write_text(STUMBLES)
    controller = someone.start_run(policy="mine.py:stumbles")
    _, errors = controller.communicate(timeout=LIMIT_S)
    assert controller.returncode == 2
    assert "it raised KeyError: 'no such zone' (mine.py, line " in errors
    assert "Traceback" not in errors
    assert not someone.machines()
    _, out, _ = someone.do("status", someone.run.path.name)
    assert "rented 2 machines in all, none now" in out


@pytest.mark.parametrize("framework", ["spark", "dask"])
def test_a_program_of_a_cluster_that_is_not_there_is_told_before_anything_is_rented(
    framework: str, tmp_path: Path
) -> None:
    words = ["--name", "x", "app.py", "--rows", "3"] if framework == "spark" else ["app.py", "--rows", "3"]
    wanted = Cluster(name="app", command=words, framework=framework)
    with pytest.raises(InputError, match=f"field {framework}: app.py is not in"):
        check_command(wanted, tmp_path, here=True)
    (tmp_path / "app.py").touch()
    check_command(wanted, tmp_path, here=True)
    # One of Ebbtide's own, as a matrix program is.
    check_command(
        wanted.model_copy(update={"command": ["-m", "ebbtide.agent.tiled.driver", "x"]}), tmp_path, here=True
    )
