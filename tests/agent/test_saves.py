"""A save is complete once it has what former saves of the same program had."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ebbtide.agent.saves import FormerSaves, is_of_one_save, is_temporary
from ebbtide.storage.checkpoints.tree import Tree, tree_of


def folder_with(place: Path, *paths: str, apart_s: float = 0.0) -> Tree:
    """A folder whose files were written one after the other."""
    for number, path in enumerate(paths):
        file = place / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(path)
        os.utime(file, (1e9 + number * apart_s, 1e9 + number * apart_s))
    found = tree_of(place)
    assert found is not None
    return found


def test_folders_with_numbers_need_what_the_former_ones_had() -> None:
    saves = FormerSaves(Tree())
    assert not saves.missing(["checkpoint-4/model"], ["checkpoint-4/model"])
    assert saves.learn(["checkpoint-4/model", "checkpoint-4/optimizer"], 0.0, 4.0)
    assert saves.missing(["checkpoint-8/model"], []) == ["checkpoint-#/optimizer"]
    assert not saves.missing(["checkpoint-8/model", "checkpoint-8/optimizer"], [])
    assert saves.patience_s == 12.0


def test_a_folder_with_a_dot_is_temporary_until_a_save_has_kept_it(tmp_path: Path) -> None:
    saves, both = FormerSaves(Tree()), [".snapshot/model", ".snapshot/optimizer"]
    assert saves.is_temporary(both[0])
    saves.keep(folder_with(tmp_path, *both))
    assert saves.learn(both, 0.0, 0.0)
    assert not saves.is_temporary(both[0])
    assert saves.missing(both[:1], both) == [".snapshot/optimizer"]
    assert saves.is_temporary(".snapshot/model.tmp")
    assert saves.is_temporary(".other/model")
    # A program that resumes from such a save has it in its folder.
    assert FormerSaves(folder_with(tmp_path, *both)).missing(both[:1], both) == [".snapshot/optimizer"]


def test_halves_of_a_save_are_joined_by_their_number() -> None:
    saves = FormerSaves(Tree())
    assert saves.learn(["checkpoint-4/model"], 0.0, 0.0)
    assert not saves.missing(["checkpoint-4/optimizer"], [])
    assert saves.learn(["checkpoint-4/optimizer"], 4.0, 4.0)
    assert saves.missing(["checkpoint-8/model"], []) == ["checkpoint-#/optimizer"]
    assert saves.pause_s == 6.0


def test_halves_of_a_save_in_place_are_joined_once_the_first_comes_again() -> None:
    saves = FormerSaves(Tree())
    assert saves.learn(["model"], 0.0, 0.0)
    assert not saves.missing(["optimizer"], [])
    assert saves.learn(["optimizer"], 4.0, 4.0)
    # Twenty seconds later the next save begins: of that there is only a half so far.
    assert not saves.learn(["model"], 24.0, 24.0)
    assert saves.missing(["model"], []) == ["optimizer"]
    assert not saves.missing(["model", "optimizer"], [])


def test_what_is_written_once_or_for_the_best_alone_is_not_waited_for_for_ever() -> None:
    saves = FormerSaves(Tree())
    saves.learn(["config", "last-1", "best"], 0.0, 0.0)
    assert saves.missing(["last-2"], []) == ["best", "config"]
    saves.learn(["last-2"], 10.0, 10.0)
    assert not saves.missing(["last-3"], [])


def test_a_pointer_to_the_newest_is_a_part_of_each_save() -> None:
    saves = FormerSaves(Tree())
    saves.learn(["step-4/a", "latest"], 0.0, 0.0)
    assert saves.missing(["step-8/a"], []) == ["latest"]


@pytest.mark.parametrize("first", [0, 1])
def test_shards_say_themselves_how_many_there_are(first: int) -> None:
    saves = FormerSaves(Tree())
    shards = [f"step-4/model-{first + number:05d}-of-00003.safetensors" for number in range(3)]
    assert saves.missing(shards[:2], shards[:2]) == ["step-#/model-#-of-#.safetensors"]
    assert not saves.missing(shards, shards)


def test_a_restored_folder_tells_what_its_newest_save_had(tmp_path: Path) -> None:
    tree = folder_with(
        tmp_path, "step-4/model", "step-4/optimizer", "step-8/model", "step-8/optimizer", "latest", apart_s=2.0
    )
    saves = FormerSaves(tree)
    assert saves.missing(["step-12/model"], []) == ["latest", "step-#/optimizer"]
    assert not saves.missing(["step-12/model", "step-12/optimizer", "latest"], [])


def test_a_set_that_training_failed_from_is_not_taken_for_complete_again(tmp_path: Path) -> None:
    bad = folder_with(tmp_path, "step-4/model")
    saves = FormerSaves(Tree(), [bad])
    assert saves.missing(["step-4/model"], [])
    assert not saves.missing(["step-4/model", "step-4/optimizer"], [])
    # Saves that have been complete with these files were not bad because of what they lacked.
    saves.learn(["step-4/model"], 0.0, 0.0)
    assert not saves.missing(["step-8/model"], [])


@pytest.mark.parametrize(
    "path",
    [
        "model.pt.tmp",
        "tmp-checkpoint-500/a",
        "4.orbax-checkpoint-tmp-17/a",
        "step/model.partial",
        ".new",
        "tmpab12cd_9",
        "checkpoint_tmp_10/a",
        "model.ckpt.tmp0",
        "8.inprogress/a",
    ],
)
def test_names_that_will_change_are_known(path: str) -> None:
    assert is_temporary(path)


@pytest.mark.parametrize(
    "path",
    [
        "model.pt",
        ".metadata",
        "step-4/.metadata",
        "step-4/.zgroup",
        "temperature/a",
        "optimizer-part-1.pt",
        "a_temp_0.7",
    ],
)
def test_names_that_stay_are_no_temporary_ones(path: str) -> None:
    assert not is_temporary(path)


def test_logs_of_a_restored_folder_are_in_no_save(tmp_path: Path) -> None:
    names = ("model-4", "log.csv", "study.db", "study.db-wal", "events.out.tfevents.0.host")
    saves = FormerSaves(folder_with(tmp_path, *names))
    assert not saves.missing(["model-8"], [])


def test_names_that_no_save_had_are_not_known() -> None:
    saves = FormerSaves(Tree())
    assert not saves.knows(["step-4/model"])
    saves.learn(["step-4/model", "step-4/optimizer"], 0.0, 0.0)
    assert saves.knows(["step-8/model"])
    assert not saves.knows(["step-8/model", "best"])


@pytest.mark.parametrize(
    ("begun", "new", "is_one"),
    [
        ("step-8/a", "step-8/b", True),
        ("step-8/shard-1-of-2", "step-8/shard-2-of-2", True),
        ("rl_model_8_steps.zip", "rl_model_replay_buffer_8_steps.pkl", True),
        ("step-8/a", "step-12/a", False),
        ("epoch=0-step=8.ckpt", "epoch=0-step=12.ckpt", False),
        ("last.pt", "best.pt", False),
    ],
)
def test_files_of_one_save_have_the_same_numbers(begun: str, new: str, is_one: bool) -> None:
    assert is_of_one_save([begun], [new]) == is_one


@pytest.mark.parametrize(
    ("former", "now"),
    [
        ("epoch=0-val_loss=0.31.ckpt", "epoch=1-val_loss=1e-05.ckpt"),
        ("epoch=0-val_loss=0.31.ckpt", "epoch=1-val_loss=nan.ckpt"),
        ("epoch=0-reward=-12.5.ckpt", "epoch=1-reward=3.ckpt"),
        ("8/d/0f1e2d3c4b5a69788796a5b4c3d2e1f0", "12/d/ffeeddccbbaa99887766554433221100"),
        ("1b4e28ba-2fa1-11d2-883f-0016d3cca427/model", "6fa459ea-ee8a-3ca4-894e-db77e160355e/model"),
    ],
)
def test_values_and_hashes_in_names_differ_from_save_to_save(former: str, now: str) -> None:
    saves = FormerSaves(Tree())
    saves.learn([former, "last"], 0.0, 0.0)
    assert saves.knows([now, "last"])
    assert not saves.missing([now, "last"], [])
    assert saves.missing(["last"], []) != []


def test_of_files_named_by_their_content_there_may_be_fewer_than_before(tmp_path: Path) -> None:
    """Orbax writes as many of them as it has threads and parts, and renames the folder once all are there."""
    digests = [f"{number:x}" * 32 for number in range(10, 16)]
    saves = FormerSaves(
        folder_with(tmp_path, *(f"8/ocdbt.process_0/d/{each}" for each in digests[:4]), "8/_METADATA")
    )
    assert not saves.missing([*(f"12/ocdbt.process_0/d/{each}" for each in digests[4:]), "12/_METADATA"], [])


def test_a_folder_that_is_one_of_several_is_no_shard() -> None:
    """Five parts of a cross-validation are trained one after the other."""
    saves = FormerSaves(Tree())
    assert not saves.missing(["fold-1-of-5/model"], ["fold-1-of-5/model"])


def test_what_has_a_temporary_name_is_of_no_save() -> None:
    saves = FormerSaves(Tree())
    saves.learn(["model", "model.tmp"], 0.0, 0.0)
    assert not saves.missing(["model"], [])


def test_links_of_a_restored_folder_are_not_taken_for_its_newest_save(tmp_path: Path) -> None:
    """They have the time of the restoration, long after that of the files."""
    folder_with(tmp_path, "epoch=1-step=12.ckpt", "config")
    for name in ("last.ckpt", "last-v0.ckpt"):
        (tmp_path / name).symlink_to("epoch=1-step=12.ckpt")
    saves = FormerSaves(folder_with(tmp_path))
    assert saves.missing(["epoch=2-step=18.ckpt"], []) == ["config", "last.ckpt"]
    assert not saves.missing(["epoch=2-step=18.ckpt", "last.ckpt", "config"], [])
