"""Names of runs of one id where they meet: in a store, in a cloud, in a team's accounts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.runs.sweeps import START_S, A, flapping, sweep
from tests.ui.made_run import made_run

from ebbtide.clouds.cloud import Instance, MachineRequest
from ebbtide.clouds.ec2.settings import Ec2Region, Ec2Settings
from ebbtide.clouds.own_machines import OwnMachines
from ebbtide.clouds.parts import all_ended
from ebbtide.clouds.settings import LiveSettings, NewRun, RunFolder
from ebbtide.clouds.unique_names import fingerprint_of, own_store, unique_name
from ebbtide.controller.journal.journal import journal_of
from ebbtide.controller.leadership import Leadership
from ebbtide.controller.team.account_book import account_name
from ebbtide.errors import InputError
from ebbtide.market.leases import LeaseState
from ebbtide.runs import by_provider, start_rented
from ebbtide.runs.start_local import LocalMarket, begin_local
from ebbtide.storage.objects import FolderStore

MACHINES = Ec2Settings(regions={"us-east-1": Ec2Region(image_id="ami-0")}, store="s3://bucket/x")


def test_a_run_is_named_by_its_key_and_one_of_an_older_ebbtide_by_its_id() -> None:
    assert fingerprint_of(bytes(32)) == "66687aad"
    assert unique_name("nightly", "66687aad") == "nightly-66687aad"
    assert unique_name("nightly", "") == "nightly"
    assert own_store("s3://bucket/x/", "nightly-66687aad") == "s3://bucket/x/nightly-66687aad"


def begun(folder: Path, store: Path, run: str = "nightly") -> RunFolder:
    work = sweep(folder, trials=1)
    market = LocalMarket(flapping(), START_S)
    return begin_local(work, folder, NewRun(folder / "runs", run), market, policy="reactive", store=str(store))


def test_runs_of_one_id_have_nothing_in_a_common_store_in_common(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    folders = []
    for who in ("ann", "bob"):
        (tmp_path / who).mkdir()
        folders.append(begun(tmp_path / who, store))
    ann, bob = (folder.settings for folder in folders)
    assert (ann.run, bob.run) == ("nightly", "nightly")
    assert len({ann.unique_name, bob.unique_name}) == len({ann.store, bob.store}) == 2
    # So are their accounts called.
    assert [account_name(folder) for folder in folders] == [ann.unique_name, bob.unique_name]
    # Both may claim their own.
    for folder in folders:
        assert Leadership.take(FolderStore(Path(folder.settings.store)), "nightly", folder.key).epoch == 1
    assert sorted(map(str, store.iterdir())) == sorted([ann.store, bob.store])
    # In its own folder a run meets nobody.
    own = begin_local(
        sweep(tmp_path / "ann"),
        tmp_path / "ann",
        NewRun(tmp_path, "own"),
        LocalMarket(flapping()),
        policy="reactive",
    )
    assert own.settings.store == str(own.path / "objects")


def test_a_run_that_is_resumed_from_a_copy_of_its_folder_has_its_names(tmp_path: Path) -> None:
    folder = begun(tmp_path, tmp_path / "store")
    again = RunFolder(folder.path.rename(tmp_path / "elsewhere")).settings
    assert again == LiveSettings(**asdict(again))
    assert again.fingerprint == fingerprint_of(RunFolder(tmp_path / "elsewhere").key)
    # As an older Ebbtide wrote it.
    content = json.loads((tmp_path / "elsewhere" / "run.json").read_text())
    del content["fingerprint"]
    (tmp_path / "elsewhere" / "run.json").write_text(json.dumps(content | {"schema_version": 4}))
    older = RunFolder(tmp_path / "elsewhere").settings
    assert (older.unique_name, older.store) == ("nightly", again.store)


def test_a_cloud_has_the_unique_name_and_the_run_its_own() -> None:
    seen: list[str] = []
    nan = float("nan")
    listed = [Instance(name, LeaseState.RUNNING, nan, nan, nan) for name in ("run-66687aad-m0000", "i-1")]
    outside: Any = SimpleNamespace(
        launch=lambda wanted: seen.append(wanted.token),
        terminate=lambda token: seen.append(token) or START_S,
        instances=lambda: listed,
        end_all=lambda: {"run-66687aad-m0000": "", "run-66687aad-m0001": "refused"},
    )
    cloud = OwnMachines(outside, "run", "run-66687aad")
    cloud.launch(MachineRequest("run-m0000", A, 1.0, False, {"machine": "run-m0000"}))
    assert cloud.terminate("run-m0000") == START_S
    cloud.terminate("i-1")
    assert seen == ["run-66687aad-m0000", "run-66687aad-m0000", "i-1"]
    # One whose tags somebody removed is known by its id in the cloud.
    assert [one.token for one in cloud.instances()] == ["run-m0000", "i-1"]
    assert cloud.end_all() == {"run-m0000": "", "run-m0001": "refused"}
    # One that an older Ebbtide began has the same name inside and outside.
    older = OwnMachines(outside, "run", "run")
    older.terminate("run-m0000")
    assert seen[-1] == "run-m0000"


@pytest.fixture
def older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[RunFolder, list[str]]]:
    """A run on EC2 that an older Ebbtide began, and the unique names of runs whose machines were ended."""

    def make() -> tuple[RunFolder, list[str]]:
        folder, ended = RunFolder(tmp_path / "nightly"), list[str]()
        options = {"ec2": MACHINES.model_dump(mode="json")}
        work = sweep(tmp_path, trials=1).model_dump(mode="json")
        store = str(tmp_path / "store")
        folder.begin(LiveSettings("nightly", "ec2", "reactive", work, str(tmp_path), store, options))

        def cloud_of(of: RunFolder) -> Any:
            return SimpleNamespace(end_all=lambda: ended.append(of.settings.unique_name) or {})

        monkeypatch.setattr(start_rented, "cloud_of", cloud_of)
        return folder, ended

    return make


def test_machines_of_an_older_run_are_ended_unless_its_name_is_somebody_elses(
    older: Callable[[], tuple[RunFolder, list[str]]], tmp_path: Path
) -> None:
    folder, ended = older()
    objects = FolderStore(tmp_path / "store")
    assert by_provider.end_machines(folder).is_done
    assert ended == ["nightly"]
    Leadership.take(objects, "nightly", bytes(32))
    found = by_provider.end_machines(folder, within_s=0.0)
    assert (found.ended, found.is_done, ended) == (0, False, ["nightly"])
    assert "a run nightly already that is somebody else's" in found.problem
    assert found.problem.endswith("no machine was ended")
    # One of this Ebbtide has machines of a name that nobody else has.
    folder.begin(replace(folder.settings, fingerprint=fingerprint_of(folder.key)))
    assert by_provider.end_machines(folder).is_done
    assert ended == ["nightly", folder.settings.unique_name]


def test_of_several_clouds_one_without_credentials_is_told_once_the_others_have_ended(
    older: Callable[[], tuple[RunFolder, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = older()
    running = {"r-0"}

    def end_others() -> dict[str, str]:
        left = dict.fromkeys(running, "")
        running.clear()
        return left

    def refused() -> dict[str, str]:
        raise InputError("there are no Google credentials")

    cloud = SimpleNamespace(end_all=lambda: all_ended([end_others, refused]))
    monkeypatch.setattr(start_rented, "cloud_of", lambda _folder: cloud)
    monkeypatch.setattr(by_provider, "_AGAIN_S", 0.01)
    found = by_provider.end_machines(folder)
    assert (found.problem, running) == ("there are no Google credentials", set())
    # Where it is the only one, or the others have none, nothing was ended.
    with pytest.raises(InputError, match="no Google credentials"):
        by_provider.end_machines(folder)


def test_a_machine_that_was_just_requested_is_waited_for(
    older: Callable[[], tuple[RunFolder, list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EC2 lists a machine some seconds after its request. Before, `down` said that none was left."""
    folder, _ = older()
    run = made_run(tmp_path / "runs", 6, stops_after_h=2.2)
    figures = journal_of(run, read_only=True).figures()
    assert figures is not None
    # Its controller was alive a moment ago, and, in the other case, long ago.
    for age_s, expected in ((5.0, True), (3600.0, False)):
        monkeypatch.setattr(by_provider.time, "time", lambda age_s=age_s: figures["at_epoch_s"] + age_s)
        requested = by_provider._just_requested(run)
        assert (requested != set()) is expected
        assert all(name.startswith(f"{run.settings.run}-m0") for name in requested)
    answers = [{}, {}, {"nightly-m0007": ""}, {}]
    cloud = SimpleNamespace(end_all=lambda: answers.pop(0))
    monkeypatch.setattr(start_rented, "cloud_of", lambda _folder: cloud)
    monkeypatch.setattr(by_provider, "_AGAIN_S", 0.01)
    monkeypatch.setattr(by_provider, "_just_requested", lambda _folder: {"nightly-m0007"})
    found = by_provider.end_machines(folder)
    assert (found.ended, found.is_done, answers) == (1, True, [])
    # One that is never listed is not waited for without end.
    monkeypatch.setattr(by_provider, "_LISTED_S", 0.05)
    monkeypatch.setattr(cloud, "end_all", dict)
    assert by_provider.end_machines(folder).ended == 0


def test_machines_of_an_older_run_are_ended_where_its_storage_does_not_answer(
    older: Callable[[], tuple[RunFolder, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, ended = older()

    def away(*_: object, **__: object) -> FolderStore:
        raise OSError("storage does not answer")

    monkeypatch.setattr(by_provider, "object_store", away)
    assert by_provider.end_machines(folder).is_done
    assert ended == ["nightly"]


@pytest.mark.parametrize("content", ["", "00", "00" * 31, "00" * 33, "no hexadecimal digits"])
def test_a_key_that_was_cut_off_is_told(tmp_path: Path, content: str) -> None:
    """Before, an empty file was a key that everybody has."""
    folder = RunFolder(tmp_path)
    assert len(folder.key) == 32
    (tmp_path / "key").write_text(content)
    with pytest.raises(InputError, match="key: the run's key cannot be read or made"):
        _ = folder.key
