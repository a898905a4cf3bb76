"""Whether the AWS credentials in use last until a run's expected end."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ebbtide._utc import iso
from ebbtide.errors import InputError

# Read from the environment, they stay as they are as long as the process lives.
_FROM_ENVIRONMENT = "env"


def check_credentials(expected_end_s: float, session: Any = None) -> str | None:
    """Look at the credentials of the standard chain, without showing or sending them.

    Args:
        expected_end_s: Of the run, seconds since 1970.
        session: A boto3 session; by default a new one.

    Returns:
        A warning, where their end is not known; None: they last, or renew themselves.

    Raises:
        InputError: There are none, or they end before the run.
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
            f"go on until {iso(expected_end_s)}; use a profile that renews itself, or newer ones"
        )
    if expiry is None and found.token:
        return (
            "the AWS credentials are temporary and do not say until when; if they end before the run, renew them "
            f"where they are kept ({found.method}), and it goes on by itself"
        )
    return None
