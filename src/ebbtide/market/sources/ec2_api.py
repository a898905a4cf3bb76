"""The live EC2 price history, through boto3: every region, every page, only new prices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
from botocore.exceptions import ConnectionError as BotoConnectionError
from botocore.parsers import ResponseParserError
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential_jitter

from ebbtide.base.utc import Time, from_epoch_s, to_epoch_s
from ebbtide.errors import InputError
from ebbtide.market.markets import LINUX
from ebbtide.market.signals import Observation
from ebbtide.market.sources.ec2_json import ec2_frame

if TYPE_CHECKING:
    import pandas as pd

# The API keeps this much history.
HISTORY_LIMIT = timedelta(days=90)

# What boto3 raises: a refusal, no answer, and an answer that is not EC2's.
EC2_ERRORS = (ClientError, BotoCoreError, ResponseParserError)
_SAID = 500

_THROTTLED = {
    "RequestLimitExceeded",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
    "ServiceUnavailable",
    "InternalError",
    "Unavailable",
}


@dataclass(frozen=True)
class Ec2Prices:
    """EC2's spot prices as a live source.

    Attributes:
        regions: Names of the AWS regions to ask.
        instance_types: Names of the instance types to fetch; all if empty.
        endpoint_url: Address of another EC2 endpoint, for tests.
        attempts: Number of times one page is tried before giving up.
        first_wait_s: Wait after the first throttled try, seconds.
        name: Its name among other sources.
    """

    regions: Sequence[str]
    instance_types: Sequence[str] = ()
    endpoint_url: str | None = None
    attempts: int = 8
    first_wait_s: float = 1.0
    name: str = "ec2-prices"
    every_s = 0.0

    def observe(self, since_s: Mapping[str, float], now_s: float) -> Observation:
        """See `LiveSource`."""
        prices = fetch_prices(
            self.regions,
            instance_types=self.instance_types,
            since=since_s,
            until=now_s,
            endpoint_url=self.endpoint_url,
            attempts=self.attempts,
            first_wait_s=self.first_wait_s,
        )
        return Observation(prices, places=dict.fromkeys(self.regions, "aws"))


def fetch_prices(
    regions: Sequence[str],
    *,
    instance_types: Sequence[str] = (),
    products: Sequence[str] = (LINUX,),
    since: Mapping[str, Time] | None = None,
    until: Time | None = None,
    endpoint_url: str | None = None,
    attempts: int = 8,
    first_wait_s: float = 1.0,
) -> pd.DataFrame:
    """Fetch spot prices from EC2, as a frame of the price schema.

    Args:
        regions: Names of the AWS regions to fetch.
        instance_types: Names of the instance types to fetch; all if empty.
        products: EC2 product descriptions to fetch.
        since: By region, fetch only prices after this time; otherwise all 90 days that the API keeps.
        until: Fetch prices up to this time; now if None.
        endpoint_url: Another EC2 endpoint, for tests.
        attempts: How often one page is tried before giving up.
        first_wait_s: Wait after the first throttled try, seconds; doubled, with jitter, up to a minute.

    Returns:
        The prices; there may be no rows, since an incremental fetch may find nothing new.

    Raises:
        InputError: No region, an unknown region, no credentials, or EC2 refused.
    """
    import pandas as pd

    if not regions:
        raise InputError("no region asked for; name one or more, for example us-east-1")
    end = from_epoch_s(to_epoch_s(until)) if until is not None else None
    frames = []
    for region in regions:
        start = from_epoch_s(to_epoch_s(since[region])) if since and region in since else None
        pages = _pages(region, start, end, instance_types, products, endpoint_url, attempts, first_wait_s)
        entries = [entry for page in pages for entry in page]
        # The API also returns the price in force at the start, with its own older time.
        if start is not None:
            entries = [entry for entry in entries if entry["Timestamp"] > start]
        if entries:
            frames.append(ec2_frame(entries, f"EC2 {region}"))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def _pages(
    region: str,
    start: datetime | None,
    end: datetime | None,
    instance_types: Sequence[str],
    products: Sequence[str],
    endpoint_url: str | None,
    attempts: int,
    first_wait_s: float,
) -> Iterator[Iterable[dict[str, Any]]]:
    now = end or datetime.now().astimezone()
    request: dict[str, Any] = {
        "StartTime": start or now - HISTORY_LIMIT,
        "EndTime": now,
        "ProductDescriptions": list(products),
        "MaxResults": 1000,
    }
    if instance_types:
        request["InstanceTypes"] = list(instance_types)
    again = retrying(attempts, first_wait_s)
    try:
        client = ec2_client(region, endpoint_url)
        token = ""
        while True:
            page_request = {**request, "NextToken": token} if token else request
            page: Any = again(client.describe_spot_price_history, **page_request)
            yield page["SpotPriceHistory"]
            token = page.get("NextToken") or ""
            if not token:
                return
    except EC2_ERRORS as error:
        raise refused(f"EC2 price history of {region}", error) from None


def refused(what: str, error: BaseException) -> InputError:
    """The error of a request that failed, without the whole of an answer that is none.

    Args:
        what: What was asked for, at the beginning of the message.
        error: The error that came, one of `EC2_ERRORS`.
    """
    return InputError(f"{what}: {str(error)[:_SAID]}")


def ec2_client(region: str, endpoint_url: str | None) -> Any:
    """A client of EC2 in a region, with credentials of the standard chain."""
    # botocore's own retries are off, since they would multiply with ours.
    config = Config(retries={"total_max_attempts": 1}, user_agent_extra="ebbtide")
    # A new session each time, so that renewed credentials are used.
    return boto3.Session().client("ec2", region_name=region, endpoint_url=endpoint_url, config=config)


def retrying(attempts: int, first_wait_s: float) -> Retrying:
    """Calls a function again where that may help.

    Args:
        attempts: Number of calls before giving up.
        first_wait_s: Wait after the first call that failed, seconds; doubled, with jitter, up to a minute.
    """
    return Retrying(
        retry=retry_if_exception(_is_passing),
        stop=stop_after_attempt(attempts),
        wait=wait_exponential_jitter(multiplier=first_wait_s, max=60.0, jitter=first_wait_s),
        reraise=True,
    )


def _is_passing(error: BaseException) -> bool:
    """Return whether a retry may help: throttling and failures of the service, not errors in the request."""
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return error.response.get("Error", {}).get("Code") in _THROTTLED or status >= 500

    return isinstance(error, (BotoConnectionError, HTTPClientError, ResponseParserError))
