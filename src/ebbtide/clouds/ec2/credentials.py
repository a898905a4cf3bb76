"""Check that the AWS credentials in use are valid until a run's expected end."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ebbtide.base.utc import iso
from ebbtide.errors import InputError

# boto3's name for credentials from the environment, which cannot change while the process runs.
_FROM_ENVIRONMENT = "env"


def check_credentials(expected_end_s: float, session: Any = None) -> str | None:
    """Check the credentials of AWS's standard chain, without showing or sending them.

    Args:
        expected_end_s: Expected end of the run in seconds since 1970.
        session: A boto3 session; None: a new one.

    Returns:
        A warning if their expiry is not known; None: they are valid for long enough, or renew themselves.

    Raises:
        InputError: There are no credentials, or they expire before the run's end.
    """
    import boto3

    found = (session or boto3.Session()).get_credentials()
    if found is None:
        raise InputError(
            "there are no AWS credentials; set up a profile (`aws configure sso`), or the AWS_* variables"
        )
    expiry: datetime | None = getattr(found, "_expiry_time", None)
    if expiry is not None and found.method == _FROM_ENVIRONMENT and expiry.timestamp() < expected_end_s:
        raise InputError(
            f"the AWS credentials in the environment end at {iso(expiry.timestamp())}, and the run is expected to "
            f"last until {iso(expected_end_s)}; use a profile that renews itself, or newer ones"
        )
    if expiry is None and found.token:
        return (
            "the AWS credentials are temporary and do not say until when; if they end before the run, renew them "
            f"where they are kept ({found.method}), and the run continues by itself"
        )
    return None
