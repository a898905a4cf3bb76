"""What `import ebbtide` gives: all that a policy's author needs, and a policy written with it alone."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import textwrap
from importlib import import_module
from pathlib import Path

import pytest

import ebbtide as eb
from ebbtide.errors import InputError
from ebbtide.policies.api.protocol import Policy
from tests.runs.commands import user
from tests.waiting import LIMIT_S

FOR_POLICIES = (
    "Action Alternative Assign Event GiveUp Goals Hold JobView LeaseState LeaseView Policy Reason Release Request "
    "Save Stop View Wake WakeAt WakeAtStep WithinBudget"
)
MOST_NAMES = 25
ERRORS = "CheckpointError CloudError InputError PolicyError StorageError TrainingError"


def test_all_that_is_named_is_there_and_nothing_else() -> None:
    names = set(eb.__all__) - {"errors", "policies", "types"}
    assert len(names) <= MOST_NAMES
    assert set(FOR_POLICIES.split()) <= set(eb.policies.__all__)
    for module in (eb, eb.policies, eb.types):
        assert all(getattr(module, name) is not None for name in module.__all__)
        assert not any(name.startswith("_") for name in module.__all__)


def test_no_two_names_differ_by_case_alone() -> None:
    assert [name for name in eb.__all__ if name.lower() in {each for each in eb.__all__ if each != name}] == []


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("View", "policies"),
        ("Reactive", "policies"),
        ("Run", "types"),
        ("Outcome", "types"),
        ("CloudError", "errors"),
        ("PRESETS", "market.billing"),
        ("sweep", "runs.functions"),
    ],
)
def test_former_names_work_and_say_where_they_are_now(name: str, place: str) -> None:
    with pytest.warns(FutureWarning, match=rf"^ebbtide\.{name} is now ebbtide\.{place}\.{name}$") as told:
        found = getattr(eb, name)
    assert found is getattr(import_module(f"ebbtide.{place}"), name)
    assert told[0].filename == __file__


def test_a_name_that_never_was_is_an_attribute_error() -> None:
    for name in ("Rune", "rune", "_Rune"):
        with pytest.raises(AttributeError, match=name):
            getattr(eb, name)


def test_every_error_is_ebbtide_s_own() -> None:
    assert all(issubclass(getattr(eb.errors, name), eb.EbbtideError) for name in ERRORS.split())
    assert issubclass(InputError, ValueError)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example of the protocol's docstring as a user's own file."""
    text = inspect.cleandoc(Policy.__doc__ or "")
    lines = [line for line in text.splitlines() if line.startswith("    ") or not line.strip()]
    code = textwrap.dedent("\n".join(lines)).strip() + "\n"
    assert set(re.findall(r"^(?:from|import) ([\w.]+)", code, re.MULTILINE)) <= {
        "math",
        "collections.abc",
        "dataclasses",
        "ebbtide.policies",
    }
    file = tmp_path_factory.mktemp("own") / "own.py"
    file.write_text(code)
    return file


def test_a_policy_that_imports_ebbtide_alone_is_replayed(own: Path) -> None:
    job = eb.Job(name="one", steps=2_000, other_steps_per_hour_per_vcpu=500.0)
    policy = eb.policy(f"{own}:Cheapest")
    (outcome,) = eb.backtest(job, [policy], eb.generate_prices(days=5, seed=1, kind="auction"), starts=1).outcomes[
        "cheapest"
    ]
    assert outcome.finished


@pytest.mark.usefixtures("processes")
def test_and_runs_for_real(own: Path, tmp_path: Path) -> None:
    with user(tmp_path) as someone:
        someone.write(trials=1, steps=20, every_h=5.0)
        controller = someone.start_run(policy=f"{own}:Cheapest")
        out, errors = controller.communicate(timeout=2 * LIMIT_S)
        assert controller.returncode == 0, errors
        assert "finished" in out


# Half a second each, which every command, controller and program would wait for.
HEAVY = {
    "pandas",
    "pyarrow",
    "scipy.sparse",
    "scipy.linalg",
    "scipy.optimize",
    "scipy.stats",
    "numba",
    "torch",
    "boto3",
    "mlflow",
    "prefect",
    "dvc",
}


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("asks", "heavy"),
    [
        ("import ebbtide", {*HEAVY, "numpy"}),
        ("import ebbtide.cli.main", {*HEAVY, "numpy"}),
        ("from ebbtide.cli import runs, live_table, explaining", HEAVY),
        ("from ebbtide.cli import rehearsing, running", HEAVY),
        ("import ebbtide.agent.agent", {*HEAVY, "numpy"}),
    ],
)
def test_what_is_always_imported_brings_in_nothing_heavy(asks: str, heavy: set[str]) -> None:
    asks = f"import sys; {asks}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=True)
    assert not heavy & set(done.stdout.split())
