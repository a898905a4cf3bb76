"""Google Cloud as a cloud: request, label, list and delete Spot and on-demand VMs.

Credentials come from Google's standard chain and are never written anywhere. An instance's name follows from its
token, so that a repeated request rents no second one; all instances of a run are found again by their label.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from ebbtide.clouds.clock import CLOCK
from ebbtide.clouds.cloud import Instance, MachineRequest, before_request
from ebbtide.clouds.gcp.compute import Compute, ComputeError
from ebbtide.clouds.gcp.history import Operations, machine_of
from ebbtide.clouds.gcp.instance import RUN_LABEL, instance_body, token_of
from ebbtide.clouds.gcp.settings import GcpSettings
from ebbtide.clouds.log_once import RepeatedWarnings
from ebbtide.clouds.names import Names, label
from ebbtide.clouds.parts import PartlySilentError
from ebbtide.errors import CloudError, InputError
from ebbtide.market.leases import LeaseState
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory

_LOGGER = logging.getLogger(__name__)

# Error reasons for lack of capacity or quota: the policy sees a failed launch, and may try another market.
_REFUSALS = frozenset(
    {
        "quotaExceeded",
        "QUOTA_EXCEEDED",
        "limitExceeded",
        "stockout",
        "ZONE_RESOURCE_POOL_EXHAUSTED",
        "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
        "resourcePoolExhausted",
    }
)

# Reason of the error for a machine that is already being deleted or stopped.
_ENDING = "resourceNotReady"

_STOPPED = frozenset({"STOPPED", "TERMINATED", "SUSPENDED"})
_PARTIAL = {"returnPartialSuccess": "true"}

Described = Mapping[str, Any]


class GcpCloud:
    """Rents the machines of one run.

    Args:
        run: Id of the run, with which machines are labelled.
        settings: Project, zones, image and other properties of machines.
        prices: Returns the newest known prices; called whenever they are needed.
        compute: Client of Compute Engine; None: one with the credentials of Google's standard chain.
    """

    def __init__(
        self,
        run: str,
        settings: GcpSettings,
        prices: Callable[[], PriceHistory],
        *,
        compute: Compute | None = None,
    ) -> None:
        self._run, self._settings, self._prices = run, settings, prices
        self._compute = compute or Compute(settings.project)
        self._names, self._zones = Names(run), frozenset(settings.zones)
        self._failed: dict[str, Instance] = {}
        # Machines by token, as they were last listed, and the zone of each.
        self._known: dict[str, Instance] = {}
        self._zone_of: dict[str, str] = {}
        self._answered: set[str] = set()
        self._silent = frozenset[str]()
        self._warnings = RepeatedWarnings(_LOGGER)

    @property
    def now_s(self) -> float:
        return CLOCK.now_s()

    @property
    def is_over(self) -> bool:
        return False

    @property
    def markets(self) -> Sequence[Market]:
        return [
            market for market in self._prices().markets if market.cloud == "gcp" and market.zone in self._zones
        ]

    def prices(self, market: Market) -> PriceSeries:
        return self._prices()[market]

    def time_of(self, epoch_s: float) -> float:
        return epoch_s

    def launch(self, wanted: MachineRequest) -> None:
        """Request a machine. A refusal is remembered, and listed among the instances as failed."""
        zone, name = wanted.market.zone, self._names.name(wanted.token)
        if wanted.token in self._failed:
            return
        try:
            with before_request():
                if self._is_requested(zone, name):
                    return
            self._request(wanted, name)
        except ComputeError as error:
            if error.may_pass or error.status == HTTPStatus.UNAUTHORIZED:
                raise
            raise InputError(f"GCP in {zone} will not rent as it is asked to: {error}") from None

    def _request(self, wanted: MachineRequest, name: str) -> None:
        zone = wanted.market.zone
        if not wanted.on_demand:
            usd = self.prices(wanted.market).at(self.now_s)
            if usd > wanted.max_price_usd_per_hour:
                why = f"the price, {usd:g} USD an hour, is above the max price; Google itself has none"
                self._fail(wanted.token, why)
                return
        body = instance_body(name, self._run, wanted, self._settings)
        try:
            self._compute.post(f"zones/{zone}/instances", body, requestId=self._names.request_id(wanted.token))
        except ComputeError as error:
            if error.status == HTTPStatus.CONFLICT:
                return  # there is one of that name
            if error.reason in _REFUSALS:
                self._fail(wanted.token, str(error))
                return
            raise
        self._zone_of[wanted.token] = zone

    def terminate(self, token: str) -> float | None:
        name, own = self._names.name(token), self._zone_of.get(token)
        silent: set[str] = set()
        for zone, found in self._instances(f"name = {name}", silent).items():
            if any(one["name"] == name for one in found) and self._delete(zone, name):
                return self.now_s
        # A zone missing from the list may still answer a request of its own. Other zones do not have this machine.
        if own in silent and self._delete(own, name):
            return self.now_s
        if silent and (own is None or own in silent):
            raise CloudError(f"GCP does not answer for {', '.join(sorted(silent))}")
        ended = self._instance(token, None, self._operations(name).get(name, []))
        if ended is None or math.isnan(ended.ended_s):
            # Requested but not listed yet: the controller ends it once it is listed.
            return None if ended is None else self.now_s
        return ended.ended_s

    def instances(self) -> Sequence[Instance]:
        """All machines; for a zone that does not answer, those of its last answer."""
        # Operations first, so that any machine they created is either in the later list or has ended since.
        operations = self._operations(f"{self._names.beginning}.*")
        now_s = self.now_s
        silent: set[str] = set()
        described: dict[str, Described] = {}
        for zone, found in self._instances(f"labels.{RUN_LABEL} = {label(self._run)}", silent).items():
            for one in found:
                token = token_of(one) or self._names.token(one["name"]) or one["name"]
                described[token], self._zone_of[token] = one, zone
        by_token = {token: listed for name, listed in operations.items() if (token := self._names.token(name))}
        for token in {**described, **by_token}:
            instance = self._instance(token, described.get(token), by_token.get(token, []))
            if instance is not None:
                self._known[token] = replace(instance, listed_s=now_s)
        self._silent = frozenset(silent)
        self._forget_missing(now_s, silent)
        self._end_stopped(described)
        self._answered |= self._zones - silent
        listed = [*self._known.values(), *(one for token, one in self._failed.items() if token not in self._known)]
        if silent - self._answered:
            # A zone that never answered may have machines of the run that this process has not seen.
            why = f"GCP does not answer for {', '.join(sorted(silent - self._answered))}"
            raise PartlySilentError(why, listed)
        self._warn_of(silent)
        return listed

    def is_silent(self, market: Market) -> bool:
        """Return whether the zone of a market did not answer the last listing."""
        return market.zone in self._silent

    def end_all(self) -> dict[str, str]:
        """Request the end of every machine of the run, in all zones.

        Returns:
            By token of each machine still listed, why it cannot be ended; empty: its end was requested.

        Raises:
            CloudError: Google does not answer.
        """
        silent: set[str] = set()
        operations = self._operations(f"{self._names.beginning}.*")
        left: dict[str, str] = {}
        for zone, found in self._instances(f"labels.{RUN_LABEL} = {label(self._run)}", silent).items():
            for one in found:
                name = str(one["name"])
                if Operations(operations.get(name, [])).deleted is None:
                    left[token_of(one) or name] = self._deleted(zone, name)
        if silent:
            refused = [f"{token} cannot be ended: {why}" for token, why in left.items() if why]
            unheard = f"GCP does not answer for {', '.join(sorted(silent))}; machines may be left there"
            raise CloudError("; ".join([unheard, *refused]))
        return left

    def _instance(
        self, token: str, described: Described | None, operations: Sequence[Mapping[str, Any]]
    ) -> Instance | None:
        found = machine_of(token, described, Operations(operations))
        before = self._known.get(token)
        if found is not None and before is not None and described is None and not math.isnan(before.started_s):
            # Once the machine is gone, only its last listing says when charging began.
            return replace(found, started_s=before.started_s, running_s=before.running_s)
        return found

    def _is_requested(self, zone: str, name: str) -> bool:
        """Return whether the instance was ever requested, since Google forgets request ids after about 1 h."""
        return any(
            Operations(listed).inserted is not None
            for found, listed in self._operations(name, zone).items()
            if found == name
        )

    def _operations(self, name: str, zone: str = "") -> dict[str, list[Mapping[str, Any]]]:
        """Return operations on instances, by the instance's name.

        Args:
            name: Pattern of the names.
            zone: Zone to ask; empty: all zones.
        """
        found: dict[str, list[Mapping[str, Any]]] = {}
        given = {"filter": f"targetLink eq .*/instances/{name}"}
        if zone:
            pages = self._compute.pages(f"zones/{zone}/operations", **given)
            listed = (one for page in pages for one in page.get("items", ()))
        else:
            pages = self._compute.pages("aggregated/operations", **given, **_PARTIAL)
            parts = (part for page in pages for part in page.get("items", {}).values())
            listed = (one for part in parts for one in part.get("operations", ()))
        for one in listed:
            target = str(one.get("targetLink", "")).rpartition("/instances/")[2]
            if target.startswith(self._names.beginning):
                found.setdefault(target, []).append(one)
        return found

    def _instances(self, only: str, silent: set[str]) -> dict[str, list[Described]]:
        """Return instances by zone.

        Args:
            only: Filter of the instances.
            silent: Set to which the run's zones that do not answer are added.
        """
        found: dict[str, list[Described]] = {}
        for page in self._compute.pages("aggregated/instances", filter=only, **_PARTIAL):
            for scope, part in page.get("items", {}).items():
                zone = scope.removeprefix("zones/")
                if part.get("warning", {}).get("code") == "UNREACHABLE" and zone in self._zones:
                    silent.add(zone)
                found.setdefault(zone, []).extend(part.get("instances", ()))
        return found

    def _forget_missing(self, now_s: float, silent: set[str]) -> None:
        """Drop machines that are no longer listed and not known to have ended."""
        for token, one in list(self._known.items()):
            is_missing = one.listed_s < now_s and math.isnan(one.ended_s)
            if is_missing and self._zone_of.get(token) not in silent:
                del self._known[token]

    def _end_stopped(self, described: Mapping[str, Described]) -> None:
        """Delete machines that somebody, or their own agent, has stopped: their disks still cost."""
        for token, one in described.items():
            if one.get("status") in _STOPPED:
                why = self._deleted(self._zone_of[token], str(one["name"]))
                if why:
                    told = f"machine {token} is stopped, not ended, and its disk is paid for: {why}"
                    self._warnings.warn(token, told)

    def _deleted(self, zone: str, name: str) -> str:
        """Request that an instance be deleted; returns why that was refused, empty if it was not."""
        try:
            self._delete(zone, name)
        except CloudError as error:
            return f"cannot end {name} in {zone}: {error}"
        return ""

    def _delete(self, zone: str, name: str) -> bool:
        """Request that an instance be deleted; returns whether there was one."""
        try:
            self._compute.delete(f"zones/{zone}/instances/{name}")
        except ComputeError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return False
            if error.reason == _ENDING:
                return True
            raise
        return True

    def _warn_of(self, silent: Iterable[str]) -> None:
        for zone in self._answered.difference(silent):
            self._warnings.forget(zone)
        for zone in sorted(silent):
            self._warnings.warn(zone, f"GCP in {zone} does not answer; its machines are taken to be as before")

    def _fail(self, token: str, why: str) -> None:
        self._failed[token] = Instance(token, LeaseState.FAILED, math.nan, math.nan, self.now_s, why)
