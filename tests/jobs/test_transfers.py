"""DeepSpotCloud's Table I, and what follows a job from place to place."""

from __future__ import annotations

import math

import pytest

import ebbtide as eb
from ebbtide.errors import InputError
from ebbtide.jobs.job import Checkpointing, Dataset
from ebbtide.jobs.progress import JobProgress
from ebbtide.jobs.transfers import Bucket, Cargo, seconds_per_gb
from ebbtide.market.leases import Lease
from ebbtide.market.markets import Place

EAST, WEST = Place("aws", "us-east-1"), Place("aws", "us-west-2")
EUROPE, ASIA = Place("aws", "eu-west-1"), Place("aws", "ap-northeast-1")


def lease(number: int, place: Place) -> Lease:
    return Lease(number, eb.Market(*place, f"{place.region}a", "g2.2xlarge"), math.inf, False, 0.0)


@pytest.mark.parametrize(
    ("source", "destination", "seconds"),
    [
        (WEST, EAST, 20.4),
        (EAST, WEST, 14.4),
        (EUROPE, ASIA, 22.3),
        (ASIA, EAST, 27.5),
        (ASIA, ASIA, 10.2),
        (Place("azure", "westus2"), EUROPE, 16.4),
        (Place("gcp", "asia-east1"), EUROPE, 21.0),
        (Place("aws", "sa-east-1"), EAST, 27.5),
    ],
)
def test_a_gigabyte_takes_as_long_as_in_table_one(source: Place, destination: Place, seconds: float) -> None:
    assert seconds_per_gb(source, destination) == seconds


def test_a_restore_takes_longer_from_another_region_only_if_told_to() -> None:
    plain = eb.Job(
        name="j",
        steps=1,
        steps_per_hour={"g2.2xlarge": 1.0},
        checkpoint=Checkpointing(restore_s=10.0, size_bytes=2 * 10**9),
    )
    assert plain.restore_s(8, ASIA, EAST) == 10.0
    by_region = plain.model_copy(
        update={"checkpoint": Checkpointing(restore_s=10.0, size_bytes=2 * 10**9, by_region=True)}
    )
    assert by_region.restore_s(8) == 10.0
    assert by_region.restore_s(8, ASIA, EAST) == pytest.approx(10.0 + 2 * 27.5)


def test_checkpoints_move_each_time_and_datasets_once_a_cloud() -> None:
    work = eb.Job(
        name="j",
        steps=1,
        steps_per_hour={"g2.2xlarge": 1.0},
        checkpoint=Checkpointing(size_bytes=100),
        dataset=Dataset(size_bytes=5_000, cloud="aws", region="us-east-1", copy_s=30.0),
    )
    progress = JobProgress(0, work)
    azure = Place("azure", "us-east")
    assert progress.begin_on([lease(0, EAST)], 0.0) == 0.0
    assert not progress.transfers
    progress.saved_at = EAST
    assert progress.begin_on([lease(1, azure)], 10.0) == 30.0
    progress.saved_at = azure
    assert progress.begin_on([lease(2, EUROPE)], 20.0) == 0.0
    progress.saved_at = EUROPE
    assert progress.begin_on([lease(3, azure)], 30.0) == 0.0
    found = [(move.cargo, move.size_bytes, move.source, move.destination) for move in progress.transfers]
    assert found == [
        (Cargo.CHECKPOINT, 100, EAST, azure),
        (Cargo.DATASET, 5_000, EAST, azure),
        (Cargo.CHECKPOINT, 100, azure, EUROPE),
        (Cargo.CHECKPOINT, 100, EUROPE, azure),
    ]


def test_the_machines_of_a_gang_fetch_it_once_a_place() -> None:
    work = eb.Job(name="j", steps=1, steps_per_hour={"g2.2xlarge": 1.0}, checkpoint=Checkpointing(size_bytes=7))
    progress = JobProgress(0, work, saved_at=EAST)
    progress.begin_on([lease(0, WEST), lease(1, WEST), lease(2, EUROPE), lease(3, EAST)], 5.0)
    assert [move.destination for move in progress.transfers] == [WEST, EUROPE]


def in_bucket(size_bytes: int = 2 * 10**9, **options: bool) -> eb.Job:
    return eb.Job(
        name="j",
        steps=1,
        steps_per_hour={"g2.2xlarge": 1.0},
        checkpoint=Checkpointing(save_s=5.0, restore_s=10.0, size_bytes=size_bytes, **options),  # type: ignore[arg-type]
        bucket=Bucket(cloud="aws", region="us-east-1"),
    )


def test_a_save_uploads_to_the_bucket_and_a_restore_downloads_from_it() -> None:
    work = in_bucket(by_region=True)
    assert work.save_s(8) == 5.0
    assert work.save_s(8, ASIA) == pytest.approx(5.0 + 2 * 27.5)
    # As a restore of the same region, which takes what Table I has for it.
    assert work.save_s(8, EAST) == pytest.approx(5.0 + 2 * 14.8)
    assert work.restore_s(8, ASIA, WEST) == pytest.approx(10.0 + 2 * 14.4)
    # There is nothing to download before the first save.
    assert work.restore_s(8, None, WEST) == 10.0
    assert in_bucket().save_s(8, ASIA) == 5.0


def test_checkpoints_go_from_machine_to_bucket_to_machine() -> None:
    progress = JobProgress(0, in_bucket())
    progress.begin_on([lease(0, ASIA)], 0.0)
    assert not progress.transfers
    progress.saved_on(lease(0, ASIA), 5.0)
    assert progress.saved_at == EAST
    progress.begin_on([lease(1, EAST)], 6.0)
    progress.saved_on(lease(1, EAST), 7.0)
    progress.begin_on([lease(2, EUROPE)], 8.0)
    found = [(move.time_s, move.lease_id, move.source, move.destination) for move in progress.transfers]
    assert found == [(5.0, 0, ASIA, EAST), (8.0, 2, EAST, EUROPE)]
    assert {move.size_bytes for move in progress.transfers} == {2 * 10**9}


def test_the_size_that_was_stored_counts_where_it_is_known() -> None:
    progress = JobProgress(0, in_bucket(100))
    progress.saved_on(lease(0, ASIA), 5.0, 70)
    progress.begin_on([lease(1, WEST)], 6.0)
    assert (progress.saved_bytes, progress.checkpoint_bytes) == (70, 70)
    progress.saved_on(lease(1, WEST), 7.0)
    assert progress.checkpoint_bytes == 100
    assert [move.size_bytes for move in progress.transfers] == [70, 70, 100]


def test_what_a_bucket_lacks_is_said() -> None:
    with pytest.raises(InputError, match="'ovh' has no egress prices here: write one of aws, azure, gcp"):
        Bucket(cloud="ovh", region="gra")
    with pytest.raises(InputError, match="field region: missing"):
        Bucket(cloud="aws")  # type: ignore[call-arg]
    with pytest.raises(InputError, match="with `checkpoint: null` there are none"):
        eb.Job(**in_bucket().model_dump() | {"checkpoint": None})
