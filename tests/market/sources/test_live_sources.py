"""Every live source on answers that were written by hand after its documentation: the contract, and what it tells."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from tests.recorded import recording

from ebbtide.base.utc import to_epoch_s
from ebbtide.errors import CloudError, InputError
from ebbtide.market.catalogue import default_catalogue
from ebbtide.market.markets import Market
from ebbtide.market.signals import LiveSource, Observation, Signal, SignalKind
from ebbtide.market.sources import azure_spot
from ebbtide.market.sources.azure_spot import AzureSpot, azure_token
from ebbtide.market.sources.ec2_api import Ec2Prices
from ebbtide.market.sources.ec2_bands import Ec2Bands
from ebbtide.market.sources.ec2_scores import Ec2Scores
from ebbtide.market.sources.gcp_capacity import GcpCapacity
from ebbtide.market.sources.mithril import Mithril
from ebbtide.market.sources.spotlake import SpotLake
from ebbtide.market.sources.vast import Vast
from ebbtide.market.sources.web import Web
from ebbtide.testing.contracts.live_sources import LiveSourceContract
from ebbtide.testing.recorded_answers import Answer, served

NOW_S = to_epoch_s("2026-11-26T09:00:00Z")
SECRET = LiveSourceContract.secret
ADVICE = "POST /compute/beta/projects/my-project/regions/us-central1/advice/"
GRAPH = "POST /providers/Microsoft.ResourceGraph/resources"


def web(url: str, *, with_secret: bool = False) -> Web:
    headers = (lambda: {"Authorization": f"Bearer {SECRET}"}) if with_secret else None
    return Web(url, "the service", headers, attempts=3, first_wait_s=0.001)


def told(source: LiveSource) -> dict[tuple[str, str, str], float]:
    """Values by kind, zone and type."""
    return by_market(source.observe({}, NOW_S))


def by_market(found: Observation) -> dict[tuple[str, str, str], float]:
    return {
        (signal.kind.value, signal.market.zone, signal.market.instance_type): signal.value
        for signal in found.signals
    }


def prices_of(found: Observation) -> list[tuple[str, str, str, float]]:
    frame = found.prices.sort_values(["zone", "instance_type", "timestamp"])
    return [
        (str(row.timestamp), str(row.zone), str(row.instance_type), float(row.price_usd_per_hour))
        for row in frame.itertuples()
    ]


@pytest.mark.usefixtures("aws_credentials")
class TestEc2Prices(LiveSourceContract):
    def answers(self) -> Mapping[str, Sequence[Answer]]:
        return {"POST /": [recording("ec2_prices.xml")]}

    def make_source(self, url: str) -> Ec2Prices:
        return Ec2Prices(["us-east-1"], ["g5.xlarge"], url, attempts=3, first_wait_s=0.001)

    def test_its_prices(self) -> None:
        with served(self.answers()) as answers:
            found = self.make_source(answers.url).observe({}, NOW_S)
        assert prices_of(found) == [
            ("2026-11-25 08:21:34+00:00", "us-east-1a", "g5.xlarge", 0.4521),
            ("2026-11-25 19:02:11+00:00", "us-east-1a", "g5.xlarge", 0.4619),
            ("2026-11-25 11:40:02+00:00", "us-east-1b", "g5.xlarge", 0.398),
        ]
        assert found.places == {"us-east-1": "aws"}


@pytest.mark.usefixtures("aws_credentials")
class TestEc2Scores(LiveSourceContract):
    def answers(self) -> Mapping[str, Sequence[Answer]]:
        return {"POST /": [recording("ec2_scores_1.xml"), recording("ec2_scores_2.xml")]}

    def make_source(self, url: str) -> Ec2Scores:
        return Ec2Scores(["us-east-1", "us-west-2"], ["p3.2xlarge"], url, attempts=3, first_wait_s=0.001)

    def test_its_pages(self) -> None:
        with served(self.answers()) as answers:
            found = told(self.make_source(answers.url))
            assert "NextToken=second" in answers.asked[1].body
            assert "InstanceType.1=p3.2xlarge" in answers.asked[0].body
        assert found == {
            ("availability", "us-east-1", "p3.2xlarge"): 0.9,
            ("availability", "us-west-2", "p3.2xlarge"): 0.2,
        }


class TestEc2Bands(LiveSourceContract):
    def answers(self) -> Mapping[str, Sequence[Answer]]:
        return {"GET /spot-advisor-data.json": [recording("ec2_bands.json")]}

    def make_source(self, url: str) -> Ec2Bands:
        return Ec2Bands(web=web(url))

    def test_its_bands(self) -> None:
        with served(self.answers()) as answers:
            found = told(self.make_source(answers.url))
            few = told(Ec2Bands(["us-east-1"], ["g5.xlarge"], web(answers.url)))
        assert found == {
            ("interruption", "us-east-1", "g5.xlarge"): 0.25,
            ("interruption", "us-east-1", "c3.xlarge"): 0.075,
            ("interruption", "eu-west-1", "g5.xlarge"): 0.025,
        }
        assert few == {("interruption", "us-east-1", "g5.xlarge"): 0.25}


class TestSpotLake(LiveSourceContract):
    def answers(self) -> Mapping[str, Sequence[Answer]]:
        return {"GET /latest_data/latest_aws.json": [recording("spotlake_aws.json")]}

    def make_source(self, url: str) -> SpotLake:
        return SpotLake(["us-east-1"], web=web(url))

    def test_its_scores_bands_and_prices(self) -> None:
        with served(self.answers()) as answers:
            found = self.make_source(answers.url).observe({}, NOW_S)
        assert by_market(found) == {
            ("availability", "use1-az1", "g5.xlarge"): 1.0,
            ("availability", "use1-az2", "g5.xlarge"): pytest.approx(1 / 3),
            ("availability", "us-east-1", "g5.xlarge"): pytest.approx(2 / 3),
            ("interruption", "us-east-1", "g5.xlarge"): 0.175,
        }
        assert {signal.time_s for signal in found.signals} == {to_epoch_s("2026-11-26T08:50:00Z")}
        assert prices_of(found) == [
            ("2026-11-26 08:50:00+00:00", "use1-az1", "c3.xlarge", 0.0712),
            ("2026-11-26 08:50:00+00:00", "use1-az1", "g5.xlarge", 0.4521),
        ]


class TestGcpCapacity(LiveSourceContract):
    def answers(self) -> Mapping[str, Sequence[Answer]]:
        return {
            f"{ADVICE}capacity": [recording("gcp_capacity.json")],
            f"{ADVICE}capacityHistory": [recording("gcp_capacity_history.json")],
        }

    def make_source(self, url: str) -> GcpCapacity:
        return GcpCapacity("my-project", ["us-central1-a"], ["g2-standard-8"], web(url, with_secret=True))

    def test_its_advice_and_its_past(self) -> None:
        with served(self.answers()) as answers:
            found = self.make_source(answers.url).observe({}, NOW_S)
            assert all(asked.headers["authorization"] == f"Bearer {SECRET}" for asked in answers.asked)
            advice, past = (json.loads(asked.body) for asked in answers.asked)
        market = Market("gcp", "us-central1", "us-central1-a", "g2-standard-8")
        assert found.signals == [
            Signal(NOW_S, SignalKind.AVAILABILITY, market, 0.7),
            Signal(NOW_S, SignalKind.UPTIME, market, 3600.0),
            Signal(to_epoch_s("2026-11-24T00:00:00Z"), SignalKind.INTERRUPTION, market, 0.2),
            Signal(to_epoch_s("2026-11-25T00:00:00Z"), SignalKind.INTERRUPTION, market, 0.05),
        ]
        assert prices_of(found) == [
            ("2026-11-01 00:00:00+00:00", "us-central1-a", "g2-standard-8", 0.341),
            ("2026-11-20 00:00:00+00:00", "us-central1-a", "g2-standard-8", 0.3525),
        ]
        assert advice["distributionPolicy"]["zones"] == [{"zone": "zones/us-central1-a"}]
        assert past["types"] == ["PREEMPTION", "PRICE"]
        assert advice["instanceProperties"] == {"scheduling": {"provisioningModel": "SPOT"}}

    def test_wrong_names_are_told_before_anything_is_asked(self) -> None:
        with pytest.raises(InputError, match="is no zone of Google Cloud"):
            GcpCapacity("my-project", ["us-central1"], ["g2-standard-8"], web("http://127.0.0.1:9"))
        with pytest.raises(InputError, match="is no id of a project"):
            GcpCapacity("../x", ["us-central1-a"], ["g2-standard-8"], web("http://127.0.0.1:9"))

    def test_a_price_in_another_currency_is_told(self) -> None:
        euros = recording("gcp_capacity_history.json").replace("USD", "EUR")
        routes = {**self.answers(), f"{ADVICE}capacityHistory": [euros]}
        with served(routes) as answers, pytest.raises(CloudError, match="a price in EUR, not in USD"):
            self.make_source(answers.url).observe({}, NOW_S)


class TestAzureSpot(LiveSourceContract):
    def answers(self) -> Mapping[str, Sequence[Answer]]:
        return {GRAPH: [recording("azure_rates.json"), recording("azure_prices.json")]}

    def make_source(self, url: str) -> AzureSpot:
        return AzureSpot(["eastus"], web(url, with_secret=True), default_catalogue())

    def test_its_rates_and_prices(self) -> None:
        with served(self.answers()) as answers:
            found = self.make_source(answers.url).observe({}, NOW_S)
            assert [asked.query for asked in answers.asked] == [{"api-version": "2024-04-01"}] * 2
            assert "location in~ ('eastus')" in json.loads(answers.asked[0].body)["query"]
        # Resource Graph writes names in lower case; the catalogue knows how they are written.
        assert by_market(found) == {
            ("interruption", "eastus", "NC6s v3"): 0.075,
            ("interruption", "eastus", "NC40ads H100 v5"): 0.25,
        }
        assert prices_of(found) == [
            ("2026-10-01 00:00:00+00:00", "eastus", "NC6s v3", 0.58),
            ("2026-11-01 00:00:00+00:00", "eastus", "NC6s v3", 0.61),
        ]

    def test_further_pages_are_asked_by_their_token(self) -> None:
        first = json.dumps({"data": json.loads(recording("azure_rates.json"))["data"][:1], "$skipToken": "more"})
        routes = {GRAPH: [first, recording("azure_rates.json"), recording("azure_prices.json")]}
        with served(routes) as answers:
            self.make_source(answers.url).observe({}, NOW_S)
            assert json.loads(answers.asked[1].body)["options"]["$skipToken"] == "more"

    def test_a_region_s_name_is_no_query(self) -> None:
        with pytest.raises(InputError, match="is no region of Azure"):
            AzureSpot(["eastus') or ('1' == '1"], web("http://127.0.0.1:9"), default_catalogue())

    def test_without_a_login_it_says_what_to_do(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def missing(_name: str) -> Any:
            raise ImportError

        monkeypatch.setattr(azure_spot, "import_module", missing)
        with pytest.raises(InputError, match="pip install azure-identity, then az login"):
            azure_token()

        def refuses(_scope: str) -> Any:
            raise RuntimeError("no credential\nwas found\nanywhere")

        chain = SimpleNamespace(DefaultAzureCredential=lambda: SimpleNamespace(get_token=refuses))
        monkeypatch.setattr(azure_spot, "import_module", lambda _name: chain)
        with pytest.raises(InputError, match="Azure gave no token: no credential; try az login"):
            azure_token()


class TestMithril(LiveSourceContract):
    def answers(self) -> Mapping[str, Sequence[Answer]]:
        return {
            "GET /v2/instance-types": [recording("mithril_types.json")],
            "GET /v2/spot/availability": [recording("mithril_availability.json")],
        }

    def make_source(self, url: str) -> Mithril:
        return Mithril(web(url, with_secret=True))

    def test_its_auctions(self) -> None:
        with served(self.answers()) as answers:
            found = self.make_source(answers.url).observe({}, NOW_S)
        assert by_market(found) == {
            ("capacity", "us-central1-b", "a100-80gb.sxm.1x"): 5.0,
            ("capacity", "us-central2-a", "h100-80gb.sxm.8x"): 0.0,
        }
        assert [row[1:] for row in prices_of(found)] == [
            ("us-central1-b", "a100-80gb.sxm.1x", 1.25),
            ("us-central2-a", "h100-80gb.sxm.8x", 1025.6),
        ]


class TestVast(LiveSourceContract):
    def answers(self) -> Mapping[str, Sequence[Answer]]:
        return {"GET /api/v0/bundles/": [recording("vast_offers.json")]}

    def make_source(self, url: str) -> Vast:
        return Vast(web=web(url))

    def test_its_offers(self) -> None:
        with served(self.answers()) as answers:
            found = self.make_source(answers.url).observe({}, NOW_S)
            assert json.loads(answers.asked[0].query["q"])["type"] == "bid"
            few = told(Vast(["1x RTX 4090"], web(answers.url)))
        assert by_market(found) == {
            ("capacity", "US", "1x RTX 4090"): 2.0,
            ("capacity", "anywhere", "8x H100 SXM"): 1.0,
        }
        assert [row[1:] for row in prices_of(found)] == [
            ("US", "1x RTX 4090", 0.18),
            ("anywhere", "8x H100 SXM", 12.8),
        ]
        assert set(few) == {("capacity", "US", "1x RTX 4090")}


def test_signals_out_of_range_are_told() -> None:
    market = Market("aws", "us-east-1", "us-east-1a", "g5.xlarge")
    for kind, value in (
        (SignalKind.AVAILABILITY, 1.2),
        (SignalKind.INTERRUPTION, -0.1),
        (SignalKind.CAPACITY, float("inf")),
        (SignalKind.UPTIME, float("nan")),
    ):
        with pytest.raises(InputError, match="out of range"):
            Signal(NOW_S, kind, market, value)
    with pytest.raises(InputError, match="names no zone"):
        Signal(NOW_S, SignalKind.CAPACITY, Market("aws", "us-east-1", "", "g5.xlarge"), 1.0)


def test_a_source_that_tells_a_chance_of_seven_is_wrong() -> None:
    wild = recording("gcp_capacity.json").replace("0.7", "7")
    routes = {**TestGcpCapacity().answers(), f"{ADVICE}capacity": [wild]}
    with served(routes) as answers, pytest.raises((CloudError, InputError), match="out of range"):
        TestGcpCapacity().make_source(answers.url).observe({}, NOW_S)


def test_recorded_answers_are_given_in_turn() -> None:
    with served({"GET /x": ["1", (503, "later"), "2"]}) as answers:
        client = Web(answers.url, "x", attempts=1)
        assert client.get("/x") == 1
        with pytest.raises(CloudError):
            client.get("/x")
        assert [client.get("/x"), client.get("/x")] == [2, 2]


@pytest.mark.parametrize("address", ["nonsense", "ftp://host", "http://", "http://host:port", "http://a b", ""])
def test_what_is_no_address_is_told_and_not_tried(address: str) -> None:
    with pytest.raises(InputError, match=r"is no address; one such as https://host"):
        web(address)


@pytest.mark.parametrize(
    ("offers", "said"),
    [
        ({}, "it has no 'offers'"),
        ([], "a part of it is of another kind"),
        ({"offers": [{"min_bid": 1.0, "gpu_name": "H100"}]}, "it has no 'num_gpus'"),
        (
            {"offers": [{"min_bid": "much", "num_gpus": 1, "gpu_name": "H100"}]},
            "could not convert string to float",
        ),
    ],
)
def test_an_answer_of_another_kind_is_told_in_words(offers: Any, said: str) -> None:
    class Says(Web):
        def get(self, _path: str, **_parameters: str) -> Any:
            return offers

    with pytest.raises(CloudError, match=f"^Vast answered something unknown: {said}"):
        Vast((), Says("http://127.0.0.1:1", "Vast")).observe({}, NOW_S)
