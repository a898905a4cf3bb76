"""Look up the region of the bucket that keeps a run's checkpoints; egress charges depend on it."""

from __future__ import annotations

from typing import Any

from ebbtide.clouds.machines import MachineSettings
from ebbtide.errors import CloudError, InputError
from ebbtide.jobs.job_list import Runnable
from ebbtide.jobs.transfers import Bucket
from ebbtide.storage.buckets import gcs_client
from ebbtide.storage.google_tokens import GoogleTokens

_HEADER = "x-amz-bucket-region"


def with_bucket(work: Runnable, settings: MachineSettings, client: Any = None) -> Runnable:
    """Return a sweep, or a list of jobs, with the cloud and region of the store's bucket filled in.

    If they cannot be looked up, because the bucket's owner forbids it or the store is not at AWS's or Google's own
    address, those in the sweep's or job's file are kept.

    Args:
        work: The sweep, or the list of jobs.
        settings: Settings of machines, with the address of the store.
        client: A boto3 client of the store's cloud; None: a new client.

    Raises:
        InputError: There is no such bucket, it is in another region than the file says, or no region is known.
    """
    stored = [part for part in work.parts if part.checkpoint is not None]
    if not stored or settings.store_endpoint_url:
        return work
    region = bucket_region(settings.store, client, is_needed=any(part.bucket is None for part in stored))
    if region is None:
        return work
    found = Bucket(cloud="gcp" if settings.store.startswith("gs://") else "aws", region=region)
    return work.in_bucket(found, settings.store)


def bucket_region(store: str, client: Any = None, *, is_needed: bool = True) -> str | None:
    """Return the region of an `s3://bucket/prefix` or `gs://bucket/prefix`; None: not found, and not needed.

    Raises:
        InputError: There is no such bucket, or its region is needed and cannot be looked up.
    """
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    scheme, _, place = store.partition("://")
    name = place.partition("/")[0]
    if scheme == "gs":
        return _google_region(name, client or gcs_client(GoogleTokens()), is_needed)
    try:
        found = (client or boto3.Session().client("s3")).head_bucket(Bucket=name)
    except ClientError as error:
        answer = error.response.get("ResponseMetadata", {})
        if answer.get("HTTPStatusCode") == 404:
            problem = f"there is no bucket {name}; create it, or name another"
            raise InputError(problem, field="store") from None
        # S3 sends this header even to callers without access to the bucket.
        region, why = answer.get("HTTPHeaders", {}).get(_HEADER), str(error)
    except (BotoCoreError, ResponseParserError) as error:
        region, why = None, str(error)
    else:
        answer = found.get("ResponseMetadata", {})
        region, why = found.get("BucketRegion") or answer.get("HTTPHeaders", {}).get(_HEADER), "it is not said"
    if region is None and is_needed:
        raise InputError(
            f"the region of bucket {name}, by which egress is charged, cannot be looked up: {why}; have "
            "s3:ListBucket allowed, or write it into the job's file, `bucket: {cloud: aws, region: us-east-1}`",
            field="store",
        )
    return None if region is None else str(region)


def _google_region(name: str, client: Any, is_needed: bool) -> str | None:
    """Return the region of a Google bucket; None: unknown, or a multi-region bucket, and not needed."""
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    try:
        place = str(client.get_bucket_location(Bucket=name)["LocationConstraint"] or "").lower()
    except ClientError as error:
        if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") == 404:
            raise InputError(f"there is no bucket {name}; create it, or name another", field="store") from None
        place, why = "", str(error)
    except (BotoCoreError, ResponseParserError, CloudError) as error:
        place, why = "", str(error)
    else:
        why = f"it is in {place or 'no place'}, which is no single region"
    # Names of multi-regions and dual-regions have no hyphen: US, EU, ASIA, NAM4.
    if "-" in place:
        return place
    if is_needed:
        raise InputError(
            f"the region of bucket {name}, by which egress is charged, cannot be looked up: {why}; have "
            "storage.buckets.get allowed, or write into the job's file `bucket: {cloud: gcp, region: us-east1}`",
            field="store",
        )
    return None
