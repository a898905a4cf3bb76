"""What `pip install ebbtide` alone can do: rent, train, backtest and explain; what is of an extra says of which."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ebbtide.cli.exit_codes import _EXTRAS, extra_of

pytestmark = pytest.mark.usefixtures("processes")

ROOT = Path(__file__).parents[1]
# What the extras bring, with what these bring in turn that other packages have as well.
MISSING = {name for modules in _EXTRAS.values() for name in modules} | {"numba", "llvmlite"}

BLOCK = f"""
import sys
class Missing:
    names = {sorted(MISSING)!r}
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
"""

TRAIN = """
import json, os, pathlib, time
folder = pathlib.Path(os.environ["EBBTIDE_CHECKPOINT_DIR"])
for step in range(10, 61, 10):
    time.sleep(0.05)
    print(json.dumps({"step": step, "loss": 1 / step}), flush=True)
"""

DEADLINE = """
import sys, ebbtide as eb
from ebbtide.policies.deadline.policy import Deadline
prices = eb.generate_prices(days=6, seed=1, kind="auction")
job = eb.Job(name="one", steps=1_000, other_steps_per_hour_per_vcpu=500.0)
outcome = eb.run(job, Deadline(deadline_s=3 * 3600.0, look_every_s=1800.0), "replay", prices=prices, billing="gcp-spot")
print(repr(outcome.cost_usd), [made.why for made in outcome.made])
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder, in which nothing of the extras can be imported."""
    folder = tmp_path_factory.mktemp("light")
    (folder / "missing").mkdir()
    (folder / "missing" / "sitecustomize.py").write_text(BLOCK)
    (folder / "train.py").write_text(TRAIN)
    (folder / "deadline.py").write_text(DEADLINE)
    return folder


def program(place: Path, *words: str, light: bool = True) -> subprocess.CompletedProcess[str]:
    paths = [str(place / "missing")] if light else []
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*paths, str(ROOT / "src")])}
    return subprocess.run(
        [sys.executable, *words], cwd=place, env=environment, capture_output=True, text=True, timeout=300
    )


def test_extras_are_those_of_the_package() -> None:
    """Each module that an error names an extra for is brought by that extra, and by nothing that comes anyway."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {"scikit-learn": "sklearn", "prometheus-client": "prometheus_client"}
    for extra, modules in _EXTRAS.items():
        brought = [re.match(r"[A-Za-z0-9_-]+", one)[0] for one in project["optional-dependencies"][extra]]  # type: ignore[index]
        assert {names.get(one, one) for one in brought} <= MISSING
        assert set(modules) & {names.get(one, one) for one in brought}
        assert all(extra_of(f"{module}.part") is not None for module in modules)
    core = {re.match(r"[A-Za-z0-9_-]+", one)[0] for one in project["dependencies"]}  # type: ignore[index]
    assert not {names.get(one, one) for one in core} & MISSING
    assert extra_of("numpy") is None


@pytest.mark.long
def test_renting_training_and_backtesting_need_no_extra(place: Path) -> None:
    job = str(ROOT / "examples" / "one-day.yaml")
    for words in (
        ["generate", "--into", "prices.parquet", "--days", "20", "--seed", "1"],
        ["describe", "prices.parquet"],
        ["plan", str(ROOT / "examples" / "sweep.yaml"), "--prices", "prices.parquet", "--runs", "2"],
        [
            "compare",
            job,
            "--prices",
            "prices.parquet",
            "--starts",
            "2",
            "--policies",
            "ebbtide,reactive,on-demand",
        ],
        ["run", "--", "python", "train.py"],
        ["status"],
        ["why", "latest", "0"],
        ["logs"],
        ["report", "--month", "2026-01"],
    ):
        done = program(place, "-m", "ebbtide.cli.main", *words)
        assert done.returncode == 0, (words, done.stderr)


@pytest.mark.exhaustive
def test_what_needs_an_extra_names_it(place: Path) -> None:
    for words, extra in (
        (["demo", "--into", "demo"], "plots"),
        (["ui", "--port", "0"], "ui"),
        (["reproduce", "--help"], "plots"),
        (["run", "--track", "sqlite:///mlflow.db", "--", "python", "train.py"], "pipeline"),
        (["run", "--journal", "postgresql://127.0.0.1/runs", "--", "python", "train.py"], "postgres"),
    ):
        done = program(place, "-m", "ebbtide.cli.main", *words)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), (words, done.stderr)
        assert f"pip install 'ebbtide[{extra}]'" in done.stderr


@pytest.mark.exhaustive
def test_what_is_not_compiled_comes_to_the_same(place: Path) -> None:
    slow, fast = (program(place, "deadline.py", light=light) for light in (True, False))
    assert slow.returncode == fast.returncode == 0, slow.stderr
    assert slow.stdout == fast.stdout
    assert slow.stderr.count("Numba is not installed") == 1
    assert fast.stderr == ""
