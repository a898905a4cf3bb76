"""`eb.train`: functions of scripts, modules and notebooks, trained for real on the local cloud."""

from __future__ import annotations

import linecache
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.runs.notebooks import Notebook
from tests.runs.sweeps import START_S, flapping, total
from tests.waiting import LIMIT_S

import ebbtide as eb
from ebbtide.agent.entry_point import IMPORTING, call
from ebbtide.clouds.settings import RunFolder
from ebbtide.controller.run_state import State
from ebbtide.runs.start_local import end_local
from ebbtide.trial import Trial

pytestmark = pytest.mark.usefixtures("processes")

KEPT = """
class Kept:
    ends_at = None

    def __init__(self):
        self.total = 0.0

    def save(self, folder, *, within_step):
        (folder / "total").write_text(repr(self.total))

    def restore(self, folder):
        self.total = float((folder / "total").read_text())
"""
FIT = """
def fit(lr, trial, pause_s=0.02):
    kept = Kept()
    trial.keep(kept)
    for step in trial.steps():
        time.sleep(pause_s)
        kept.total += lr * (step - 1)
        trial.report(loss=lr + 1 / step)
    print("total", kept.total, flush=True)
    return {"loss": -1.0}
"""


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Path]:
    """Where runs are kept: whatever becomes of a test, no machine of theirs is left."""
    folder = tmp_path / "runs"
    yield folder
    for path in folder.glob("*/run.json"):
        end_local(RunFolder(path.parent))


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    """A notebook in a folder of its own."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    before = dict(linecache.cache)
    yield Notebook()
    linecache.cache.clear()
    linecache.cache.update(before)


def ran(script: str, folder: Path, name: str = "script.py") -> subprocess.CompletedProcess[str]:
    """Run a script there."""
    (folder / name).write_text(textwrap.dedent(script))
    command = [sys.executable, name]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=3.0 * LIMIT_S)


def test_a_script_sweeps_a_function_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("FACTOR = 2\n")
    done = ran(
        """
        import beside
        import ebbtide as eb

        def fit(lr, power=1):
            return {"loss": beside.FACTOR * lr**power, "more": 1.0}

        if __name__ == "__main__":
            run = eb.train(fit).sweep({"lr": [0.5, 0.25], "power": [2]}, metric="loss", speed=120)
            assert run.result().finished
            print(run.results().to_csv())
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:3] == [
        "trial,lr,power,best,best_step,last,steps,state,checkpoint,problem",
        "1,0.25,2,0.125,1,0.125,1,done,,",
        "0,0.5,2,0.5,1,0.5,1,done,,",
    ]


def test_a_script_without_a_guard_is_refused_before_anything_is_rented(tmp_path: Path) -> None:
    done = ran(
        """
        import ebbtide as eb

        @eb.train(metric="loss")
        def fit(lr):
            return lr

        def main():
            fit.sweep({"lr": [0.5, 0.25]})

        main()
        """,
        tmp_path,
    )
    assert done.returncode == 1
    assert 'write `if __name__ == "__main__":` above the lines that begin it' in done.stderr
    assert not (tmp_path / ".ebbtide").exists()


def test_a_guard_in_a_comment_is_none(tmp_path: Path) -> None:
    done = ran(
        """
        # __name__ is mentioned
        import ebbtide as eb

        def fit(lr):
            return lr

        eb.train(fit).sweep({"lr": [0.5]}, metric="loss")
        """,
        tmp_path,
    )
    assert done.returncode == 1
    assert 'write `if __name__ == "__main__":`' in done.stderr
    assert not (tmp_path / ".ebbtide").exists()


@pytest.mark.long
def test_a_guard_that_is_none_is_told_by_the_machine(tmp_path: Path) -> None:
    done = ran(
        """
        import ebbtide as eb

        def fit(lr):
            return lr

        if __name__:  # no guard: it holds wherever the script is imported
            run = eb.train(fit).sweep({"lr": [0.5]}, metric="loss", speed=120)
            run.wait()
            print(run.status().trials[0].tail[-1])
        """,
        tmp_path,
    )
    assert "each machine imports this script to call fit" in done.stdout, done.stderr


def test_a_revoked_training_from_a_notebook_gives_the_undisturbed_result(
    notebook: Notebook, runs: Path, tmp_path: Path
) -> None:
    (tmp_path / "work" / "data.txt").write_text("0.03")
    notebook.cell("import time\nfrom pathlib import Path\nimport ebbtide as eb\n")
    notebook.cell(KEPT)
    notebook.cell('@eb.train(metric="loss", name="fitted")' + FIT)
    notebook.cell("def slow(lr, trial): return fit(lr, trial, float(Path('data.txt').read_text()))")
    run = eb.train(notebook["slow"]).sweep(
        {"lr": [0.1, 0.2]},
        metric="loss",
        max_steps=300,
        name="slow",
        steps_per_hour={"c3.xlarge": 1_400},
        checkpoint={"save_s": 5, "restore_s": 20},
        policy="reactive",
        prices=flapping(0.3),
        start=START_S,
        speed=120.0,
        runs=runs,
    )
    assert run.id == "slow"
    outcome = run.result(3.0 * LIMIT_S)
    assert outcome.finished
    assert outcome.revocations > 0
    for number, lr in enumerate((0.1, 0.2)):
        assert f"total {total(lr, 300)!r}" in run.logs(number)
    frame = run.results()
    assert list(frame["last"]) == [0.1 + 1 / 300, 0.2 + 1 / 300]
    assert list(frame["steps"]) == [300, 300]
    assert all(f"/trials/slow-00{number}" in frame["checkpoint"][number] for number in (0, 1))
    # The program is kept with the run, with what the working folder had; that is as it was.
    assert {path.name for path in (run.folder / "code").iterdir()} == {"data.txt", "slow_program.py"}
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["data.txt"]
    assert run.kept.settings.sweep["entry_point"] == "slow_program:slow"


def test_a_decorated_function_is_called_here_and_trained_once_there(notebook: Notebook, runs: Path) -> None:
    notebook.cell(
        """
        import ebbtide as eb

        @eb.train(metric="loss", speed=120, budget_usd=5, seed=3)
        def fit(lr, seed=1):
            return lr + seed
        """
    )
    fit = notebook["fit"]
    assert fit(1.0) == fit(lr=1.0) == 2.0
    assert isinstance(fit, eb.types.TrainingFunction)
    assert (fit.__name__, repr(fit)) == ("fit", "<function fit that trains>")
    run = fit.run(lr=1.0, seed=5, runs=runs)
    assert run.result(LIMIT_S).finished
    (trial,) = run.status().trials
    assert (trial.setting, trial.last, trial.state) == ("lr=1, seed=5", 6.0, "done")
    assert run.kept.settings.sweep["budget_usd"] == 5
    assert run.kept.settings.seed == 3


@pytest.mark.long
def test_the_table_of_a_run_escapes_all_that_a_program_or_its_user_wrote(notebook: Notebook, runs: Path) -> None:
    notebook.cell("def fit(name):\n    raise ValueError('<script>' + name)\n")
    metric = "<b>loss</b>"
    run = eb.train(notebook["fit"]).sweep({"name": ["<i>&"]}, metric=metric, speed=120, runs=runs)
    with pytest.raises(eb.errors.TrainingError) as failed:
        run.result(LIMIT_S)
    assert run.status().state is State.FAILED
    for page in (run._repr_html_(), failed.value.outcome._repr_html_()):
        assert page.startswith("<div")
        assert not any(f"<{tag}" in page for tag in ("b>", "i>", "script"))
    page = run._repr_html_()
    assert "name=&lt;i&gt;&amp;" in page
    assert "best &lt;b&gt;loss&lt;/b&gt;" in page
    assert list(run.results()["state"]) == ["failed"]
    (run.folder / "run.json").write_text("<b>")
    assert "<b>" not in run._repr_html_()


SIMPLE = "def fit(lr, width=1): return lr"
WITH_TRIAL = "def fit(lr, trial): return lr"


@pytest.mark.parametrize(
    ("cell", "grid", "more", "why"),
    [
        (SIMPLE, {"lrr": [1]}, {}, "unknown parameter of fit 'lrr' .did you mean 'lr'"),
        (SIMPLE, {"width": [1]}, {}, "fit needs lr: give it values, or a default"),
        (SIMPLE, {"lr": 0.1}, {}, r"grid.lr: has values in a list: write `\[0.1\]`"),
        (SIMPLE, {"lr": "0.1"}, {}, r"grid.lr: has values in a list"),
        (SIMPLE, {"lr": []}, {}, r"grid.lr"),
        (SIMPLE, {"lr": [None]}, {}, r"grid.lr"),
        (SIMPLE, {}, {}, "a grid has values of each parameter"),
        (SIMPLE, {"lr": [1]}, {"provider": "replay"}, "unknown provider 'replay'"),
        (SIMPLE, {"lr": [1]}, {"budget": 5}, "unknown option 'budget' .did you mean 'budget_usd'"),
        (SIMPLE, {"lr": [1]}, {"command": "x"}, "unknown option 'command'"),
        (SIMPLE, {"lr": [1]}, {"budget_usd": -5}, "budget_usd"),
        (SIMPLE, {"lr": [1]}, {"policy": "nothing"}, "unknown policy 'nothing'"),
        (SIMPLE, {"lr": [1, 2]}, {"metric": None}, "write `metric: validation_loss`"),
        (SIMPLE, {"lr": [1]}, {"provider": "ec2"}, "budget_usd|needs --machines"),
        (SIMPLE, {"lr": [1]}, {"provider": "ec2", "machines": 2, "budget_usd": 1}, "needs --machines"),
        (SIMPLE, {"lr": [1]}, {"machines": 0}, "is no number of machines"),
        (WITH_TRIAL, {"lr": [1, 2]}, {}, "how many steps does fit train?"),
        (WITH_TRIAL, {"trial": [1]}, {}, "`trial` is what fit gets"),
        ("def fit(lr, /): return lr", {"lr": [1]}, {}, "fit takes lr by position alone"),
        ("fit = print", {"lr": [1]}, {}, "what trains is a function"),
        ("model = object()\ndef fit(lr): return model", {"lr": [1]}, {}, "fit uses `model`"),
    ],
)
def test_what_is_wrong_is_told_before_anything_begins(
    notebook: Notebook, runs: Path, cell: str, grid: Any, more: dict[str, Any], why: str
) -> None:
    notebook.cell(cell)
    with pytest.raises(eb.InputError, match=why):
        eb.train(notebook["fit"]).sweep(grid, **{"metric": "loss", "runs": runs, **more})
    assert not list(runs.glob("*"))


def test_a_decorator_knows_its_options(notebook: Notebook) -> None:
    notebook.cell("import ebbtide as eb\n")
    with pytest.raises(eb.InputError, match="unknown option 'metrik' .did you mean 'metric'"):
        notebook.cell("@eb.train(metrik='loss')\ndef fit(lr): return lr\n")
    with pytest.raises(eb.InputError, match="a lambda has no name"):
        eb.train(lambda lr: lr)
    notebook.cell("@eb.train\ndef fit(lr): return lr\n")
    with pytest.raises(eb.InputError, match="unknown option 'rate'"):
        notebook["fit"].run(lr=1, rate=2)


def test_nothing_begins_while_a_machine_imports(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(IMPORTING, "fit:fit")
    notebook.cell(SIMPLE)
    with pytest.raises(eb.InputError, match="each machine imports this script to call fit"):
        eb.train(notebook["fit"]).sweep({"lr": [1]}, metric="loss")


@pytest.mark.long
@pytest.mark.parametrize(
    ("body", "metric", "printed"),
    [
        ("return 0.5", "loss", ['"loss": 0.5', '"finished": 1']),
        ("return {'a': 1, 'b': 2}", "", ['"a": 1.0, "b": 2.0', '"finished": 1']),
        ("return 0.5", "", []),
        ("return None", "loss", []),
        ("trial.report(loss=1); return 0.5", "loss", ['"loss": 1.0', '"finished": 1']),
        ("for step in trial.steps(3): pass\n    return 0.5", "loss", ['"loss": 0.5', '"finished": 3']),
        ("for step in trial.steps(3): break\n    return 0.5", "loss", ['"loss": 0.5', '"finished": 1']),
    ],
)
def test_what_is_returned_is_reported_unless_something_was(
    body: str, metric: str, printed: list[str], tmp_path: Path
) -> None:
    taken = "trial" if "trial" in body else "**_"
    (tmp_path / "own.py").write_text(f"def fit({taken}):\n    {body}\n")
    command = [sys.executable, "-m", "ebbtide.agent.entry_point", "own:fit", "{}", metric]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=dict(os.environ), check=True)
    assert all(line in done.stdout for line in printed), done.stdout
    assert printed or not done.stdout
    if "report" in body:
        assert "0.5" not in done.stdout


def test_what_is_returned_has_to_be_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trial, "_latest", None)
    with pytest.raises(TypeError, match="metric loss: a number is needed, this is \\('model', 0.5\\)"):
        call(lambda: ("model", 0.5), {}, "loss")
