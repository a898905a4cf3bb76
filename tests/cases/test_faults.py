"""Programs that are at fault: a rehearsal says so, with the cause."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cases.harness import Case, ebbtide, rehearsed

pytestmark = [pytest.mark.usefixtures("processes"), pytest.mark.long]

LOSES_ITS_LINK = Case("link_to_folder")


@pytest.mark.parametrize(
    ("case", "says"),
    [
        (Case("begins_again"), "the program began again with step 1, though the checkpoint of step"),
        (Case("fails_at_next_save"), "FileExistsError"),
        (Case("saves_once"), "did not save again, though it saved before it was interrupted"),
    ],
    ids=lambda value: value.name if isinstance(value, Case) else "",
)
def test_a_program_that_is_at_fault_is_told_why(case: Case, says: str, tmp_path: Path) -> None:
    patience = ("--patience-s", "30") if case.name == "saves_once" else ()
    done, found = rehearsed(case, case.prepared(tmp_path / "project"), *patience)
    assert done.returncode == 1, done.stdout + done.stderr
    assert says in found["verdict"]
    assert not found["is_good"]
    if case.name == "fails_at_next_save":
        assert "(fails_at_next_save.py, line " in found["verdict"]


def test_a_folder_that_is_not_the_one_it_saves_into_is_told(tmp_path: Path) -> None:
    folder = LOSES_ITS_LINK.prepared(tmp_path / "project")
    words = ("rehearse", "--checkpoints", "elsewhere", "--after-s", "3", "--", "python", "link_to_folder.py")
    done = ebbtide(folder, *words)
    assert done.returncode == 1
    assert "the program made no checkpoint" in done.stdout
    assert "--checkpoints" in done.stdout
