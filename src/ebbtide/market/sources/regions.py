"""Regions of EC2's zones, by the names and by the ids of zones."""

from __future__ import annotations

import re

_NAME = re.compile(r"(?P<region>[a-z]{2,4}(?:-[a-z]+)+-\d+)(?:[a-z]|-[a-z0-9-]+[a-z])")
_REGION = re.compile(r"[a-z]{2,4}(?:-[a-z]+)+-\d+")

# use1-az1 is in us-east-1, usw2-lax1-az1 in us-west-2, usgw1-az1 in us-gov-west-1.
_ID = re.compile(
    r"(?P<area>usg|us|eu|ap|ca|sa|af|me|il|mx|cn)(?P<way>ne|nw|se|sw|n|e|s|w|c)(?P<number>\d+)"
    r"(?:-[a-z]{2,4}\d*(?:-[a-z]+)?)?-(?:az|wlz)\d+"
)
_AREAS = {"usg": "us-gov"}
_WAYS = {
    "n": "north",
    "e": "east",
    "s": "south",
    "w": "west",
    "c": "central",
    "ne": "northeast",
    "nw": "northwest",
    "se": "southeast",
    "sw": "southwest",
}


def is_zone_name(text: str) -> bool:
    """Return whether a text is the name of a zone, such as us-east-1a."""
    return bool(_NAME.fullmatch(text))


def is_zone_id(text: str) -> bool:
    """Return whether a text is the id of a zone, such as use1-az1, which all accounts have in common."""
    return bool(_ID.fullmatch(text))


def region_of_zone(zone: str) -> str:
    """The AWS region of a zone's name or id: us-east-1a and use1-az1 are in us-east-1; what is neither stays."""
    by_id = _ID.fullmatch(zone)
    if by_id:
        area, way = by_id["area"], by_id["way"]
        return f"{_AREAS.get(area, area)}-{_WAYS[way]}-{by_id['number']}"
    by_name = _REGION.match(zone)
    return by_name.group() if by_name else zone
