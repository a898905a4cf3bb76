"""Programs that know nothing of Ebbtide end with the undisturbed program's result, however often they are taken."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.cases.harness import Case, alone, note, rehearsed, taken

_SHELL = ("bash", "-c", "python on_signal.py 2>&1 | tee -a log.txt")

CASES = (
    # Those of ../shared/cases.
    Case("hidden_files"),
    Case("link_to_folder"),
    Case("link_to_file"),
    Case("late_second_file", every=8, repeats=16),
    Case("wrapper", command=("python", "wrap.py", "on_signal.py"), repeats=0),
    Case("pipe", command=_SHELL, repeats=0),
    Case("script_with_trap", command=("bash", "cleanup.sh"), repeats=0),
    Case("on_signal", repeats=0),
    Case("odd_names"),
    # How frameworks save.
    Case("in_place", checkpoints="out"),
    Case("hugging_face", checkpoints="out"),
    # It saves every step: uploads of a busy machine are to keep up.
    Case("ultralytics", checkpoints="runs/train", every=1, repeats=8, step_s=0.75),
    Case("boosting", checkpoints="model", every=2, repeats=16, step_s=0.5),
    Case("baselines3", checkpoints="logs"),
    Case("keras_backup", every=4),
    Case("deepspeed"),
    Case("orbax"),
    Case("in_background", every=12),
    Case("open_logs"),
    # Frameworks themselves.
    Case("nanogpt", "real_nanogpt", checkpoints="out"),
    Case("transformers", "real_trainer", checkpoints="out", needs="transformers"),
    Case("lightning", "real_lightning", after=(10, 7, 7, 7, 7), repeats=24, needs="lightning"),
    Case("keras", "real_keras", every=1, after=(5, 3, 3, 3, 3), repeats=4, needs="keras"),
    Case("torchrun", command=("torchrun", "--standalone", "--nproc-per-node", "2", "real_dcp.py")),
)

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.mark.usefixtures("processes")
@pytest.mark.long
@every_case
def test_a_program_that_is_taken_five_times_ends_as_if_it_were_not(case: Case, tmp_path: Path) -> None:
    if case.needs and find_spec(case.needs) is None:
        pytest.skip(f"{case.needs} is not installed")
    folder = case.prepared(tmp_path / "project")
    weights = alone(case, case.prepared(tmp_path / "alone"))
    row = taken(case, folder, tmp_path / "runs", weights)
    note(row)
    assert row.problem == ""
    assert (row.revocations, row.same_result) == (len(case.after), True)
    assert row.most_repeated <= case.most_repeated, row


@pytest.mark.usefixtures("processes")
@pytest.mark.long
@every_case
def test_a_rehearsal_of_it_says_that_it_is_right(case: Case, tmp_path: Path) -> None:
    if case.needs and find_spec(case.needs) is None:
        pytest.skip(f"{case.needs} is not installed")
    done, found = rehearsed(case, case.prepared(tmp_path / "project"))
    assert done.returncode == (0 if found["steps_lost"] <= 1 else 1), done.stdout + done.stderr
    assert found["problem"] == ""
    assert found["began_again_at"] is None
    assert found["steps_lost"] <= case.most_repeated
