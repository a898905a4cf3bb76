"""Contract tests of clouds: the behaviour that `ebbtide.clouds.cloud.Cloud` promises."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

import pytest

from ebbtide.agent.metadata import Metadata, NoticeReader
from ebbtide.clouds.cloud import Cloud, Instance, MachineRequest
from ebbtide.errors import CloudError
from ebbtide.market.leases import LeaseState
from ebbtide.testing.contracts._checking import refused

_LOOK_S = 0.1
_ON_THE_WAY = (LeaseState.REQUESTED, LeaseState.STARTING, LeaseState.RUNNING)
_OVER = (LeaseState.RELEASED, LeaseState.REVOKED, LeaseState.FAILED)

T = TypeVar("T")


class CloudContract:
    """Tests of a cloud. Inherit from this class in one whose name begins with `Test`, and start your cloud:

        from contextlib import contextmanager

        from ebbtide.testing import CloudContract

        class TestMine(CloudContract):
            @classmethod
            @contextmanager
            def make_cloud(cls, folder):
                cloud = MyCloud(...)
                yield cloud
                cloud.end()

            def make_wanted(self, cloud, token):
                return MachineRequest(token, cloud.markets[0], math.inf, False, agent={...})

    One cloud serves all tests of a class, and each test uses its own tokens. Tests of a refusal, a revocation and
    an outage are skipped until you override the methods that cause them.

    Attributes:
        within_s: Timeout in real seconds for a machine to boot or to be revoked.
    """

    within_s: float = 60.0

    @classmethod
    def make_cloud(cls, folder: Path) -> AbstractContextManager[Cloud]:
        """Return a context manager around a running cloud without machines; its exit ends the cloud.

        Args:
            folder: Path of an empty folder, for a cloud that needs one.
        """
        raise NotImplementedError("a test class of CloudContract needs make_cloud(cls, folder), a context manager")

    def make_wanted(self, cloud: Cloud, token: str) -> MachineRequest:
        """Return a request for a machine that the cloud grants and does not revoke by itself."""
        raise NotImplementedError("a test class of CloudContract needs make_wanted(self, cloud, token)")

    def make_refused(self, cloud: Cloud, token: str) -> MachineRequest:  # noqa: ARG002
        """Return a request that the cloud will refuse for lack of capacity or for its price."""
        return pytest.skip("make_refused(self, cloud, token) is not given")

    def make_revocable(self, cloud: Cloud, token: str) -> MachineRequest:
        """Return a request for a machine that `revoke` can revoke."""
        return self.make_wanted(cloud, token)

    def revoke(self, cloud: Cloud, token: str) -> str:  # noqa: ARG002
        """Have the cloud revoke a running machine, with a notice; returns the address of its metadata."""
        return pytest.skip("revoke(self, cloud, token) is not given")

    def metadata(self, url: str) -> NoticeReader:
        """Return the reader with which an agent reads the metadata at an address; by default EC2's."""
        return Metadata(url)

    def silenced(self, cloud: Cloud) -> AbstractContextManager[None]:  # noqa: ARG002
        """Return a context manager within which the cloud does not answer."""
        return pytest.skip("silenced(self, cloud) is not given")

    @pytest.fixture(scope="class")
    @classmethod
    def cloud(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
        """The cloud of all tests of a class."""
        with cls.make_cloud(tmp_path_factory.mktemp("cloud")) as cloud:
            yield cloud

    def test_its_clock_goes_forward(self, cloud: Cloud) -> None:
        first_s, epoch_s = cloud.now_s, time.time()
        time.sleep(0.02)
        assert cloud.now_s > first_s, "now_s stands still"
        second_s = cloud.time_of(epoch_s + 1.0) - cloud.time_of(epoch_s)
        assert second_s > 0.0, f"time_of: a real second lasts {second_s:g} s; time goes forward"
        apart_s = abs(cloud.time_of(epoch_s) - first_s)
        assert apart_s <= second_s, f"time_of(the present) is {apart_s:g} s away from now_s"
        assert not cloud.is_over, "is_over is true of a cloud that has just started"

    def test_every_market_has_a_price_now(self, cloud: Cloud) -> None:
        markets = list(cloud.markets)
        assert markets, "markets is empty"
        assert len(set(markets)) == len(markets), "a market is listed twice"
        for market in markets:
            usd = cloud.prices(market).at(cloud.now_s)
            assert usd >= 0.0, f"the price of {market} now is {usd}; a number of USD per hour is right"

    def test_a_machine_is_rented_and_boots(self, cloud: Cloud) -> None:
        cloud.launch(self.make_wanted(cloud, "boots"))
        found = self.instance(cloud, "boots")
        assert found.state in _ON_THE_WAY, f"a machine just requested is {found.state}"
        running = self._running(cloud, "boots")
        assert running.started_s <= running.running_s <= cloud.now_s, (
            f"it runs since {running.running_s}, is charged since {running.started_s}, and it is {cloud.now_s}"
        )
        assert math.isnan(running.ended_s), f"a running machine has an end, {running.ended_s}; NaN is right"
        cloud.terminate("boots")

    def test_a_token_rents_one_machine(self, cloud: Cloud) -> None:
        wanted = self.make_wanted(cloud, "once")
        for _ in range(3):
            cloud.launch(wanted)
        self._running(cloud, "once")
        cloud.launch(wanted)
        self.instance(cloud, "once")
        cloud.terminate("once")
        cloud.launch(wanted)
        again = self.instance(cloud, "once")
        assert again.state in _OVER, f"launch with the token of an ended machine rented another: {again.state}"

    def test_what_is_given_back_is_released_and_stays_so(self, cloud: Cloud) -> None:
        cloud.launch(self.make_wanted(cloud, "given-back"))
        self._running(cloud, "given-back")
        ended_s = cloud.terminate("given-back")
        assert ended_s is not None, "terminate gives None for a running machine; the time of its end is right"
        found = self.instance(cloud, "given-back")
        assert found.state is LeaseState.RELEASED, f"after terminate it is {found.state}; released is right"
        second_s = cloud.time_of(1.0) - cloud.time_of(0.0)
        assert abs(found.ended_s - ended_s) <= 10.0 * second_s, (
            f"terminate says that it ended at {ended_s}, and instances at {found.ended_s}"
        )
        cloud.terminate("given-back")
        again = self.instance(cloud, "given-back")
        assert again.state is LeaseState.RELEASED, f"after a second terminate it is {again.state}"
        assert again.ended_s <= cloud.now_s, "its end lies in the future"
        bills = getattr(cloud, "bills", None)
        if bills is not None:
            mine = [bill["usd"] for bill in bills() if bill["token"] == "given-back"]
            assert len(mine) == 1, f"it has {len(mine)} bills; one is right"
            assert mine[0] >= 0.0, f"its bill is {mine[0]} USD"

    def test_a_machine_that_was_never_requested_has_no_end(self, cloud: Cloud) -> None:
        ended_s = cloud.terminate("never-requested")
        assert ended_s is None, f"terminate of a token never used gives {ended_s}; None is right"
        assert not [one for one in cloud.instances() if one.token == "never-requested"]

    def test_a_refusal_is_a_machine_that_failed(self, cloud: Cloud) -> None:
        """The policy gets the reason, and requests another machine with another token."""
        wanted = self.make_refused(cloud, "refused")
        cloud.launch(wanted)
        found = self.waited(
            lambda: self.instance(cloud, "refused"), lambda one: one.state not in _ON_THE_WAY, "a refused launch"
        )
        assert found.state is LeaseState.FAILED, f"after a refusal it is {found.state}; failed is right"
        assert found.why.strip(), "a refusal does not say why"
        assert "\n" not in found.why, f"a refusal is told in one line, not as {found.why!r}"
        assert not math.isnan(found.ended_s), "a refused launch has no end; the time of the refusal is right"
        assert math.isnan(found.running_s), "a refused launch has booted"
        cloud.launch(wanted)
        assert self.instance(cloud, "refused").state is LeaseState.FAILED, "asked again, the refusal is gone"

    def test_a_notice_is_told_to_the_machine_and_then_it_is_revoked(self, cloud: Cloud) -> None:
        cloud.launch(self.make_revocable(cloud, "revoked"))
        self._running(cloud, "revoked")
        metadata = self.metadata(self.revoke(cloud, "revoked"))
        notice = self.waited(metadata.notice, lambda one: one.taken_at_s is not None, "a notice")
        assert notice.taken_at_s is not None
        assert notice.taken_at_s > time.time() - 1.0, "the notice came after the machine was to be taken"
        state = self.instance(cloud, "revoked").state
        assert state is not LeaseState.NOTICED, "instances() tells of the notice; it goes to the agent alone"
        found = self.waited(
            lambda: self.instance(cloud, "revoked"), lambda one: one.state in _OVER, "the revoked machine's end"
        )
        assert found.state is LeaseState.REVOKED, f"after a revocation it is {found.state}; revoked is right"
        assert found.why.strip(), "a revocation does not say why"
        assert found.ended_s >= found.started_s, f"it ended at {found.ended_s}, before it started"

    def test_silence_is_an_error_of_the_cloud(self, cloud: Cloud) -> None:
        """A controller waits for a cloud that raises `CloudError`; any other error would end the run."""
        wanted = self.make_wanted(cloud, "silence")
        calls: dict[str, Callable[[], object]] = {
            "instances()": cloud.instances,
            "launch(wanted)": lambda: cloud.launch(wanted),
            "terminate(token)": lambda: cloud.terminate("boots"),
        }
        with self.silenced(cloud):
            for name, call in calls.items():
                error = refused(CloudError, call, f"{name} without an answer")
                assert "\n" not in str(error), f"{name}: an error is told in one line, not as {str(error)!r}"
        assert isinstance(list(cloud.instances()), list), "it does not answer after its silence"

    def instance(self, cloud: Cloud, token: str) -> Instance:
        """Return the one machine with a token; ended machines are listed, too."""
        found = [one for one in cloud.instances() if one.token == token]
        assert len(found) == 1, f"instances() lists {len(found)} machines with the token {token!r}; one is right"
        return found[0]

    def _running(self, cloud: Cloud, token: str) -> Instance:
        found = self.waited(
            lambda: self.instance(cloud, token),
            lambda one: one.state not in (LeaseState.REQUESTED, LeaseState.STARTING),
            "a machine's boot",
        )
        assert found.state is LeaseState.RUNNING, (
            f"machine {token} is {found.state} ({found.why}); running is right"
        )
        return found

    def waited(self, look: Callable[[], T], good: Callable[[T], bool], what: str) -> T:
        """Wait until `look` returns a good state, and return it; fail after `within_s`.

        Args:
            look: Returns the current state.
            good: Whether a state is the one to wait for.
            what: Description of the state to wait for.
        """
        until_s = time.monotonic() + self.within_s
        while True:
            found = look()
            if good(found):
                return found
            assert time.monotonic() < until_s, f"waited {self.within_s:g} s for {what}; last seen: {found}"
            time.sleep(_LOOK_S)
