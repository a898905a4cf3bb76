"""Objects in buckets: of S3, and of Google Cloud Storage, whose XML API boto3 speaks as well.

One client serves both, in pure Python, so that machines with any processor and Python get it with their agent.
Requests to Google are changed where its API differs: they have a token of the machine's account or the user's
instead of a signature, and Google's own header for "only if there is no such object".
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ebbtide.errors import CloudError, InputError, MissingObjectError, StorageError
from ebbtide.storage.google_tokens import GoogleTokens
from ebbtide.storage.object_keys import checked_key, is_key

_EXPIRED = frozenset({"ExpiredToken", "RequestExpired", "InvalidToken", "TokenRefreshRequired"})

# A connection that is silent for this long is closed and reopened: boto3 waits for a minute, as long as a notice.
_CONNECT_S, _SILENT_S = 5.0, 15.0
# Most conflicts with other writes in a row; a bucket that reports more counts as not answering.
_CONFLICTS = 20

_GCS_URL = "https://storage.googleapis.com"


class S3Store:
    """Objects of an S3 bucket, or of a part of it.

    Args:
        bucket: Name of the bucket.
        prefix: Prefix of all keys in the bucket, without a slash at its end.
        client: A boto3 client of S3; None: a new one with boto3's configuration.
        within_s: Seconds within which a request is answered or fails; None: after several tries, some minutes.
    """

    scheme = "s3"

    def __init__(
        self, bucket: str, prefix: str = "", client: Any = None, *, within_s: float | None = None
    ) -> None:
        self._is_given, self._within_s = client is not None, within_s
        self._bucket, self._url = bucket, f"{self.scheme}://{bucket}/{prefix}".rstrip("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._client: Any = client or self._new_client()

    def put_once(self, key: str, content: bytes) -> bool:
        where = self._where(key)
        for left in reversed(range(_CONFLICTS)):
            try:
                self._checked(self._ask("put_object", **where, Body=content, IfNoneMatch="*"), key)
                break
            except _Refused as refused:
                if refused.status == 412:
                    return False
                # Somebody else is writing the object at this moment; ask again until that has ended.
                if refused.status != 409 or not left:
                    raise
        return True

    def put_file(self, key: str, path: Path) -> None:
        # boto3 uploads a large file in parts, several at a time.
        self._ask("upload_file", str(path), self._bucket, self._prefix + checked_key(key))

    def get_file(self, key: str, path: Path) -> None:
        try:
            self._ask("download_file", self._bucket, self._prefix + checked_key(key), str(path))
        except _Refused as refused:
            raise refused.as_missing(key) from None

    def get(self, key: str) -> bytes:
        from botocore.exceptions import BotoCoreError
        from botocore.parsers import ResponseParserError
        from urllib3.exceptions import HTTPError

        try:
            content: bytes = self._checked(self._ask("get_object", **self._where(key)), key)["Body"].read()
        except _Refused as refused:
            raise refused.as_missing(key) from None
        except (BotoCoreError, ResponseParserError, HTTPError) as error:
            raise StorageError(f"{key} is not read: {error}") from error
        return content

    def has(self, key: str) -> bool:
        try:
            self._head(key)
        except _Refused as refused:
            if refused.status == 404:
                return False
            raise
        return True

    def size_bytes(self, key: str) -> int:
        try:
            size: int = self._head(key)["ContentLength"]
        except _Refused as refused:
            raise refused.as_missing(key) from None
        return size

    def _head(self, key: str) -> Any:
        return self._checked(self._ask("head_object", **self._where(key)), key)

    def _checked(self, answer: Any, key: str) -> Any:
        """Check that an answer is that of an object store: that of a proxy says nothing of the object."""
        if "ETag" not in answer:
            raise StorageError(f"{self._url} does not answer: what came instead for {key} is no object's")
        return answer

    def keys(self, prefix: str = "") -> Iterator[str]:
        return (key for key, _ in self.versions(prefix))

    def versions(self, prefix: str = "") -> Iterator[tuple[str, str]]:
        after: dict[str, str] = {}
        while True:
            page = self._ask("list_objects_v2", Bucket=self._bucket, Prefix=self._prefix + prefix, **after)
            if "IsTruncated" not in page:
                # Taken for an empty list, everything that is stored would be gone.
                raise StorageError(f"{self._url} does not answer: what came instead is no list of objects")
            for entry in page.get("Contents", ()):
                if is_key(key := entry["Key"].removeprefix(self._prefix)):
                    yield key, entry.get("ETag", "")
            if not page.get("IsTruncated"):
                return
            after = {"ContinuationToken": page["NextContinuationToken"]}

    def delete(self, key: str) -> None:
        self._ask("delete_object", **self._where(key))

    def clear_unfinished(self, prefix: str, older_s: float) -> None:
        after: dict[str, str] = {}
        while True:
            page = self._ask("list_multipart_uploads", Bucket=self._bucket, Prefix=self._prefix + prefix, **after)
            for upload in page.get("Uploads", ()):
                if time.time() - upload["Initiated"].timestamp() > older_s:
                    with suppress(StorageError):
                        self._ask(
                            "abort_multipart_upload",
                            Bucket=self._bucket,
                            Key=upload["Key"],
                            UploadId=upload["UploadId"],
                        )
            if not page.get("IsTruncated"):
                return
            after = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def _ask(self, method: str, *arguments: Any, **given: Any) -> Any:
        """Call the client; its errors become `StorageError`."""
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError
        from urllib3.exceptions import HTTPError

        try:
            return getattr(self._client, method)(*arguments, **given)
        except ClientError as error:
            refused = _Refused(str(error), error.response["ResponseMetadata"]["HTTPStatusCode"])
            self._renew(error.response.get("Error", {}).get("Code", ""), refused.status)
            raise refused from error
        except (BotoCoreError, Boto3Error, ResponseParserError, HTTPError) as error:
            raise self._unusable(error) from error
        except KeyError as error:
            # boto3 looks for fields of S3's in the page of a proxy.
            raise StorageError(f"{self._url} does not answer: what came instead lacks {error}") from error
        except RecursionError as error:
            # boto3 follows a redirection that is not S3's, such as to the sign-in page of a proxy, without end.
            raise StorageError(f"{self._url} does not answer: requests are redirected") from error

    def _renew(self, code: str, _status: int) -> None:
        """After a refusal, make a new client, which finds credentials that were renewed meanwhile."""
        if code in _EXPIRED and not self._is_given:
            self._client = self._new_client()

    def _new_client(self) -> Any:
        from botocore.exceptions import BotoCoreError

        try:
            return _s3_client(self._within_s)
        except BotoCoreError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: Exception) -> StorageError:
        """Convert an error of boto3's; if credentials are missing, it names the store and what to do."""
        from botocore import exceptions

        missing = (
            exceptions.NoCredentialsError,
            exceptions.PartialCredentialsError,
            exceptions.CredentialRetrievalError,
            exceptions.ProfileNotFound,
        )
        if not isinstance(error, missing):
            return StorageError(str(error))
        return StorageError(
            f"{self._url} cannot be used: {str(error).rstrip('.')}; run `aws configure`, or set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use a machine with a role that may use the bucket"
        )

    def _where(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + checked_key(key)}


class GcsStore(S3Store):
    """Objects of a bucket of Google Cloud Storage, or of a part of it; the arguments are those of `S3Store`.

    `STORAGE_EMULATOR_HOST` is the address of another server that speaks its API, as for Google's own libraries.
    """

    scheme = "gs"

    def __init__(
        self, bucket: str, prefix: str = "", client: Any = None, *, within_s: float | None = None
    ) -> None:
        self._tokens = GoogleTokens()
        super().__init__(bucket, prefix, client, within_s=within_s)

    def delete(self, key: str) -> None:
        # Unlike S3, Google reports an error if there is no such object.
        try:
            super().delete(key)
        except _Refused as refused:
            if refused.status != 404:
                raise

    def _ask(self, method: str, *arguments: Any, **given: Any) -> Any:
        try:
            return super()._ask(method, *arguments, **given)
        except (InputError, CloudError) as error:
            raise StorageError(f"{self._url} cannot be used: {error}") from error

    def _renew(self, _code: str, status: int) -> None:
        if status == 401:
            self._tokens.forget()

    def _new_client(self) -> Any:
        return gcs_client(self._tokens, self._within_s)


def gcs_client(tokens: GoogleTokens, within_s: float | None = None) -> Any:
    """A boto3 client that asks Google Cloud Storage.

    Args:
        tokens: Gives the token of each request.
        within_s: Seconds within which a request is answered or fails; None: after several tries, some minutes.
    """
    import boto3
    from botocore import UNSIGNED

    config = _config(
        within_s,
        signature_version=UNSIGNED,
        s3={"addressing_style": "path"},
        # Google does not know the checksums of S3.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    url = os.environ.get("STORAGE_EMULATOR_HOST") or _GCS_URL
    client = boto3.Session().client("s3", endpoint_url=url, region_name="auto", config=config)

    def complete(request: Any, **_: Any) -> None:
        headers = request.headers
        del headers["Authorization"]
        headers["Authorization"] = f"Bearer {tokens.token()}"
        if headers.get("If-None-Match") == "*":
            del headers["If-None-Match"]
            headers["x-goog-if-generation-match"] = "0"

    client.meta.events.register("before-sign.s3", complete)
    return client


def _s3_client(within_s: float | None) -> Any:
    import boto3

    return boto3.Session().client("s3", config=_config(within_s))


def _config(within_s: float | None, **more: Any) -> Any:
    from botocore.config import Config

    if within_s is None:
        tries, connect_s, silent_s = 8, _CONNECT_S, _SILENT_S
    else:
        # boto3 waits for up to a second between two tries.
        tries, connect_s, silent_s = 2, within_s / 8.0, within_s / 4.0
    return Config(
        retries={"mode": "standard", "total_max_attempts": tries},
        connect_timeout=connect_s,
        read_timeout=silent_s,
        **more,
    )


class _Refused(StorageError):
    """A bucket refused a request."""

    def __init__(self, problem: str, status: int) -> None:
        super().__init__(problem)
        self.status = status

    def as_missing(self, key: str) -> Exception:
        """`MissingObjectError` if the reason is that there is no such object; else this error."""
        return MissingObjectError(key) if self.status == 404 else self
