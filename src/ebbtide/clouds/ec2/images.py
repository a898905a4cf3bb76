"""Find the image of a run's machines in each region: given by id, found by name, or copied from another region.

A copy has the name of its source, so later runs find it and make no second one. Ebbtide never deletes copies,
since other runs may use them.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ebbtide.clouds.ec2.settings import Ec2Image, Ec2Settings
from ebbtide.errors import InputError

_LOGGER = logging.getLogger(__name__)

# Tag of a copy; its value is the region and id of the source.
SOURCE_TAG = "ebbtide:copy-of"

# Seconds between checks of a copy; tens of gigabytes take some minutes.
_LOOK_S = 10.0
# Seconds between log lines about copies that are not ready yet.
_TELL_S = 300.0
# Timeout of a copy; a large image takes most of an hour.
_MOST_S = 4 * 3600.0

# Makes an EC2 client of a region.
Client = Callable[[str], Any]


@dataclass(frozen=True)
class _Found:
    """An image in a region.

    Attributes:
        image_id: Its id there.
        is_available: Whether machines can be started from it now.
    """

    image_id: str
    is_available: bool


def with_images(settings: Ec2Settings, client: Client, sleep: Callable[[float], None] = time.sleep) -> Ec2Settings:
    """Return the settings with an image id in every region, once all of these images are available.

    All copies are begun before the first is waited for. A warning is logged that their storage costs.

    Args:
        settings: Settings whose regions may lack an image id, which is then found by the image's name.
        client: Makes an EC2 client of a region.
        sleep: Waits for a number of seconds.

    Raises:
        InputError: There is no such image, a copy failed, or EC2 refused.
    """
    image = settings.image
    missing = [name for name, region in settings.regions.items() if region.image_id is None]
    if image is None or not missing:
        return settings
    found = {name: _found(client(name), name, image) for name in missing}
    copied_to = [name for name, one in found.items() if one is None]
    if copied_to:
        source_id = _source(client, image, copied_to)
        found |= {name: _copied(client(name), name, image, source_id) for name in copied_to}
    ids = {name: one.image_id for name, one in found.items() if one is not None}
    waiting = {name: ids[name] for name, one in found.items() if one is not None and not one.is_available}
    _wait(waiting, client, image, sleep)
    for name, image_id in ids.items():
        _LOGGER.info("image %s in %s is %s", image.name, name, image_id)
    regions = {
        name: region.model_copy(update={"image_id": ids.get(name, region.image_id)})
        for name, region in settings.regions.items()
    }
    return settings.model_copy(update={"regions": regions})


def _found(client: Any, region: str, image: Ec2Image) -> _Found | None:
    """Return the newest available image of that name, else a pending one; None: there is neither."""
    images = _named(client, region, image, image.owners)
    if image.copy_from and "self" not in image.owners:
        # A copy belongs to this account, whoever owns its source.
        images += _named(client, region, image, ["self"])
    newest = sorted(images, key=lambda one: one.get("CreationDate", ""), reverse=True)
    for state in ("available", "pending"):
        ids = [one["ImageId"] for one in newest if one["State"] == state]
        if ids:
            return _Found(ids[0], state == "available")
    return None


def _named(client: Any, region: str, image: Ec2Image, owners: list[str]) -> list[dict[str, Any]]:
    answer = _ask(
        client,
        region,
        image,
        "describe_images",
        Owners=owners,
        Filters=[{"Name": "name", "Values": [image.name]}],
    )
    return [one for one in answer["Images"] if one.get("Name") == image.name]


def _source(client: Client, image: Ec2Image, missing: list[str]) -> str:
    """Return the id of the image to copy."""
    where, owners = ", ".join(missing), ", ".join(image.owners)
    if not image.copy_from:
        raise InputError(
            f"there is no available image {image.name!r} of {owners} in {where}; name the region from which it is "
            "to be copied, `copy_from: us-east-1`, or give these regions an image_id",
            field="image",
        )
    source = None if image.copy_from in missing else _found(client(image.copy_from), image.copy_from, image)
    if source is None or not source.is_available:
        raise InputError(
            f"there is no available image {image.name!r} of {owners} in {image.copy_from}, from where it is to be "
            f"copied to {where}; name a region that has it",
            field="image.copy_from",
        )
    return source.image_id


def _copied(client: Any, region: str, image: Ec2Image, source_id: str) -> _Found:
    """Begin a copy."""
    failed = [one["ImageId"] for one in _named(client, region, image, ["self"])]
    # A repeated request returns the same copy, unless that one has failed.
    said = "/".join((image.copy_from, source_id, region, image.name, *sorted(failed)))
    tags = [{"Key": SOURCE_TAG, "Value": f"{image.copy_from}/{source_id}"}]
    copy_id = _ask(
        client,
        region,
        image,
        "copy_image",
        Name=image.name,
        SourceImageId=source_id,
        SourceRegion=image.copy_from,
        ClientToken=f"ebbtide-{hashlib.sha256(said.encode()).hexdigest()[:48]}",
        TagSpecifications=[{"ResourceType": kind, "Tags": tags} for kind in ("image", "snapshot")],
    )["ImageId"]
    _LOGGER.warning(
        "image %s is copied from %s to %s as %s; the storage of its snapshot costs until you deregister it, which "
        "Ebbtide never does",
        image.name,
        image.copy_from,
        region,
        copy_id,
    )
    return _Found(copy_id, is_available=False)


def _wait(copies: Mapping[str, str], client: Client, image: Ec2Image, sleep: Callable[[float], None]) -> None:
    """Wait until copies, an image id by region, are available."""
    waiting, waited_s = dict(copies), 0.0
    while waiting:
        for region, image_id in list(waiting.items()):
            # A new copy may not be listed yet.
            images = _ask(
                client(region),
                region,
                image,
                "describe_images",
                Filters=[{"Name": "image-id", "Values": [image_id]}],
            )["Images"]
            state = images[0]["State"] if images else "pending"
            if state == "available":
                del waiting[region]
            elif state != "pending":
                why = images[0].get("StateReason", {}).get("Message", "")
                raise InputError(
                    f"image {image.name!r} cannot be copied to {region}: {image_id} is {state}: {why}; give the "
                    "region an image_id, or leave it out",
                    field=f"regions.{region}",
                )
        if waiting and waited_s >= _MOST_S:
            raise InputError(
                f"image {image.name!r} is not in {', '.join(sorted(waiting))} after {_MOST_S / 3600:g} h; "
                "the copy goes on there, and a run that is begun later finds it",
                field="image",
            )
        if waiting:
            if waited_s % _TELL_S == 0.0:
                _LOGGER.warning("waiting for the image in %s", ", ".join(sorted(waiting)))
            sleep(_LOOK_S)
            waited_s += _LOOK_S


def _ask(client: Any, region: str, image: Ec2Image, method: str, **given: Any) -> Any:
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    try:
        return getattr(client, method)(**given)
    except (ClientError, BotoCoreError, ResponseParserError) as error:
        raise InputError(
            f"image {image.name!r} in {region}: {error}; ec2:DescribeImages is needed to find it, and "
            "ec2:CopyImage and ec2:CreateTags to copy it",
            field="image",
        ) from error
