"""SkyPilot as a cloud: each machine is a one-node cluster, launched, listed and taken down by the API server.

A cluster's name follows from its token, so that a repeated request rents no second one; all clusters of a run are
found again by their names' prefix. Nothing that the server sends is unpickled.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ebbtide.clouds.clock import CLOCK
from ebbtide.clouds.cloud import Instance, MachineRequest, before_request
from ebbtide.clouds.log_once import RepeatedWarnings
from ebbtide.clouds.names import Names
from ebbtide.clouds.skypilot.api import SkyApi, SkyRequest
from ebbtide.clouds.skypilot.settings import SkyPilotSettings
from ebbtide.clouds.skypilot.task import task_yaml
from ebbtide.errors import CloudError
from ebbtide.market.leases import LeaseState
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory

_LOGGER = logging.getLogger(__name__)

_LAUNCH = "launch"
# Launch errors that only the user can fix; neither another market nor a retry helps.
_USERS = frozenset(
    {
        "CloudUserIdentityError",
        "InvalidCloudConfigs",
        "InvalidCloudCredentials",
        "InvalidSkyPilotConfigError",
        "NoCloudAccessError",
        "NotSupportedError",
        "PermissionDeniedError",
        "UserRequestRejectedByPolicy",
    }
)
# Seconds between requests to take down a cluster that should be gone.
_AGAIN_S = 15.0
# A cluster still listed this many seconds after its end was requested counts as running again.
_GONE_S = 60.0
# A cluster that was up and no longer is counts as revoked after this many seconds: it may be unreachable only.
_NOT_UP_S = 120.0
# A cluster that was up counts as revoked once it is missing in every list of this many seconds.
_MISSING_S = 5.0
# A launch has failed if the server has neither its cluster nor its request after this many seconds.
_APPEARS_S = 60.0


class SkyPilotCloud:
    """Rents the machines of one run.

    Args:
        run: Id of the run, from which names of clusters follow.
        settings: Places, server and other properties of machines.
        prices: Returns the newest known prices; called whenever they are needed.
        api: Client of the API server; None: of the server in the settings.
    """

    def __init__(
        self,
        run: str,
        settings: SkyPilotSettings,
        prices: Callable[[], PriceHistory],
        *,
        api: SkyApi | None = None,
    ) -> None:
        self._run, self._settings, self._prices = run, settings, prices
        self._api = api or SkyApi(settings.server)
        self._names = Names(run)
        # By token: machines as last seen, and the times at which this process requested them and took them down.
        self._known: dict[str, Instance] = {}
        self._launched_s: dict[str, float] = {}
        self._downed_s: dict[str, float] = {}
        self._asked_again_s: dict[str, float] = {}
        self._not_up_s: dict[str, float] = {}
        self._warnings = RepeatedWarnings(_LOGGER)

    @property
    def now_s(self) -> float:
        return CLOCK.now_s()

    @property
    def is_over(self) -> bool:
        return False

    @property
    def markets(self) -> Sequence[Market]:
        return list(self._prices().markets)

    def prices(self, market: Market) -> PriceSeries:
        return self._prices()[market]

    def time_of(self, epoch_s: float) -> float:
        return epoch_s

    def launch(self, wanted: MachineRequest) -> None:
        """Request a machine; `instances` reports the outcome."""
        token = wanted.token
        if token in self._known or token in self._launched_s:
            return
        name = self._names.name(token)
        with before_request():
            if self._cluster(name) is not None or self._is_launched(name):
                # An earlier controller of the run has requested it.
                self._launched_s[token] = self.now_s
                return
        if not wanted.on_demand:
            usd = self.prices(wanted.market).at(self.now_s)
            if usd > wanted.max_price_usd_per_hour:
                self._fail(token, f"the price, {usd:g} USD an hour, is above the max price")
                return
        self._api.launch(name, task_yaml(self._run, wanted, self._settings))
        self._launched_s[token] = self.now_s

    def terminate(self, token: str) -> float | None:
        name = self._names.name(token)
        cluster = self._cluster(name)
        known = self._known.get(token)
        if known is not None and not math.isnan(known.ended_s):
            return known.ended_s
        if token in self._downed_s:
            # If the cluster is still listed, `instances` takes it down again.
            return self._downed_s[token]
        if cluster is None and known is not None and token in self._not_up_s:
            # It was missing before its end was requested, so it was revoked.
            self._known[token] = revoked = self._revoked(known, self._not_up_s[token])
            return revoked.ended_s
        is_coming = self._give_up_launch(name)
        if cluster is None and not is_coming and token not in self._launched_s:
            return None
        if cluster is not None:
            self._api.down(name)
        return self._downed_s.setdefault(token, self.now_s)

    def instances(self) -> Sequence[Instance]:
        """All machines that this process has seen or requested, ended ones included."""
        listed = self._api.clusters()
        now_s = self.now_s
        described = {token: one for one in listed if (token := self._names.token(str(one["name"]))) is not None}
        for token in {**self._launched_s, **self._known, **described}:
            before = self._known.get(token)
            if before is not None and before.state is LeaseState.FAILED:
                self._end_left(token, described.get(token))
                continue
            found = self._instance(token, described.get(token), now_s)
            if found is not None:
                self._known[token] = replace(found, listed_s=now_s)
        return list(self._known.values())

    def end_all(self) -> dict[str, str]:
        """Request the end of every machine of the run.

        Returns:
            By token of each machine still listed, why it cannot be ended; empty: its end was requested.

        Raises:
            CloudError: SkyPilot does not answer.
        """
        left: dict[str, str] = {}
        names = {str(one["name"]) for one in self._api.clusters()}
        coming = {one.cluster for one in self._api.requests(only_active=True) if one.what == _LAUNCH}
        for name in sorted(names | coming):
            if not name.startswith(self._names.beginning):
                continue
            token = self._names.token(name) or name
            try:
                self._give_up_launch(name)
                if name in names:
                    self._api.down(name)
                left[token] = ""
            except CloudError as error:
                left[token] = f"cannot end {name}: {error}"
        return left

    def _instance(self, token: str, cluster: Mapping[str, Any] | None, now_s: float) -> Instance | None:
        """Return the current state of a machine; None: nothing is known of it."""
        before = self._known.get(token)
        if token in self._downed_s:
            return self._ended(token, cluster, now_s)
        if cluster is None:
            return self._missing(token, before, now_s)
        if before is not None and not math.isnan(before.ended_s):
            self._end_left(token, cluster)
            return before
        was_charged = before is not None and not math.isnan(before.started_s)
        began_s = before.started_s if before is not None and was_charged else _began_s(cluster, now_s)
        state = str(cluster.get("status"))
        if state == "UP":
            self._not_up_s.pop(token, None)
            seen_s = before.running_s if before is not None else math.nan
            running_s = max(now_s if math.isnan(seen_s) else seen_s, began_s)
            return Instance(token, LeaseState.RUNNING, began_s, running_s, math.nan)
        was_up = before is not None and not math.isnan(before.running_s)
        if was_up or cluster.get("cluster_ever_up"):
            up = Instance(token, LeaseState.RUNNING, began_s, began_s, math.nan)
            found = before if before is not None and was_up else up
            since_s = self._not_up_s.setdefault(token, now_s)
            if state != "STOPPED" and now_s - since_s < _NOT_UP_S:
                return found
            # The node was revoked or has stopped: take down what is left of the cluster.
            self._end_left(token, cluster)
            return self._revoked(found, since_s)
        failed = self._failed_launch(token, now_s, has_cluster=True)
        if failed is not None:
            self._end_left(token, cluster)
            return failed
        return Instance(token, LeaseState.REQUESTED, math.nan, math.nan, math.nan)

    def _ended(self, token: str, cluster: Mapping[str, Any] | None, now_s: float) -> Instance:
        """Return the state of a machine whose end was requested."""
        ended_s = self._downed_s[token]
        self._end_left(token, cluster)
        before = self._known.get(token) or Instance(token, LeaseState.REQUESTED, math.nan, math.nan, math.nan)
        if cluster is not None and now_s - ended_s > _GONE_S:
            # It still costs, so it counts as running until it is gone.
            self._warnings.warn(token, f"machine {token} is still there {now_s - ended_s:.0f} s after its end")
            is_up = not math.isnan(before.started_s)
            return replace(before, state=LeaseState.RUNNING if is_up else LeaseState.REQUESTED, ended_s=math.nan)
        return replace(before, state=LeaseState.RELEASED, ended_s=ended_s)

    def _missing(self, token: str, before: Instance | None, now_s: float) -> Instance | None:
        """Return the state of a machine without a cluster: revoked, failed, or not launched yet."""
        if before is not None and not math.isnan(before.running_s):
            if not math.isnan(before.ended_s):
                return before
            since_s = self._not_up_s.setdefault(token, now_s)
            return self._revoked(before, since_s) if now_s - since_s >= _MISSING_S else before
        failed = self._failed_launch(token, now_s, has_cluster=False)
        if failed is not None:
            return failed
        return before or Instance(token, LeaseState.REQUESTED, math.nan, math.nan, math.nan)

    def _revoked(self, before: Instance, ended_s: float) -> Instance:
        why = "SkyPilot's cluster is gone or not up any more: its machine was taken"
        return replace(before, state=LeaseState.REVOKED, ended_s=max(ended_s, before.started_s), why=why)

    def _taken_unseen(self, token: str, launch: SkyRequest, now_s: float) -> Instance:
        """Return a machine that came up and was revoked between two listings."""
        began_s = min(launch.created_s, now_s)
        up_s = min(max(launch.finished_s or began_s, began_s), now_s)
        return self._revoked(Instance(token, LeaseState.RUNNING, began_s, up_s, math.nan), now_s)

    def _failed_launch(self, token: str, now_s: float, *, has_cluster: bool) -> Instance | None:
        """Return a machine whose launch has failed, or whose cluster is gone; None: it may still come up."""
        name = self._names.name(token)
        launches = self._launches(name)
        if not launches:
            if now_s - self._launched_s.get(token, now_s) < _APPEARS_S:
                return None
            return self._fail(token, "SkyPilot has forgotten the request, and has no cluster of it")
        last = launches[-1]
        if not last.is_done:
            return None
        if last.status == "SUCCEEDED":
            return None if has_cluster else self._taken_unseen(token, last, now_s)
        kind, said = self._api.failure(last.request_id)
        if kind in _USERS:
            return self._fail(token, f"SkyPilot will not rent as it is asked to: {kind}: {said}", needs_user=True)
        why = f"{kind}: {said}" if kind else f"the launch was {last.status.lower()}"
        return self._fail(token, why)

    def _cluster(self, name: str) -> Mapping[str, Any] | None:
        return next((one for one in self._api.clusters() if one["name"] == name), None)

    def _launches(self, name: str) -> list[SkyRequest]:
        return [one for one in self._api.requests(name) if one.what == _LAUNCH and one.cluster == name]

    def _is_launched(self, name: str) -> bool:
        """Return whether a launch was requested, other than one whose failure the user may have fixed since."""
        launches = self._launches(name)
        if not launches or launches[-1].status != "FAILED":
            return bool(launches)
        return self._api.failure(launches[-1].request_id)[0] not in _USERS

    def _give_up_launch(self, name: str) -> bool:
        """Cancel a cluster's launches under way; returns whether there were any."""
        active = [one.request_id for one in self._launches(name) if not one.is_done]
        if active:
            self._api.cancel(active)
        return bool(active)

    def _end_left(self, token: str, cluster: Mapping[str, Any] | None) -> None:
        """Take down again a cluster that should be gone, if it is still listed."""
        now_s = self.now_s
        if cluster is None or now_s - self._asked_again_s.get(token, -math.inf) < _AGAIN_S:
            return
        self._asked_again_s[token] = now_s
        self._api.down(self._names.name(token))

    def _fail(self, token: str, why: str, *, needs_user: bool = False) -> Instance:
        failed = Instance(token, LeaseState.FAILED, math.nan, math.nan, self.now_s, why, needs_user=needs_user)
        self._known[token] = failed
        return failed


def _began_s(cluster: Mapping[str, Any], now_s: float) -> float:
    """Return a cluster's launch time by the server's clock; `now_s` if it is missing or lies in the future."""
    found = cluster.get("launched_at")
    return float(found) if isinstance(found, int | float) and 0 < found < now_s else now_s
