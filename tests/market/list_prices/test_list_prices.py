"""List prices of the clouds' price APIs, from answers that were written by hand after their documentation."""

from __future__ import annotations

import gzip
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.recorded import recording

from ebbtide.base.utc import to_epoch_s
from ebbtide.cli.main import main
from ebbtide.cli.options import catalogue_with
from ebbtide.errors import CloudError, InputError
from ebbtide.market.catalogue import Catalogue, default_catalogue, with_own
from ebbtide.market.list_prices.aws import AwsPriceList
from ebbtide.market.list_prices.azure import AzurePriceList
from ebbtide.market.list_prices.gcp import GcpPriceList
from ebbtide.market.list_prices.own_catalogue import update
from ebbtide.market.markets import Market
from ebbtide.market.sources.web import Web
from ebbtide.testing.recorded_answers import Answer, RecordedAnswers, served

NOW_S = to_epoch_s("2026-11-26T09:00:00Z")
AWS_PATH = "GET /offers/v1.0/aws/AmazonEC2/current/us-east-1/index.csv"
GCP_PATH = "GET /v1/services/6F81-5844-456A/skus"
AZURE_PATH = "GET /api/retail/prices"
ROUTES: dict[str, list[Answer]] = {
    AWS_PATH: [recording("aws_us-east-1.csv")],
    GCP_PATH: [recording("gcp_skus_1.json"), recording("gcp_skus_2.json")],
    AZURE_PATH: [recording("azure_retail_1.json"), recording("azure_retail_2.json")],
}
C3 = Market("aws", "us-east-1", "us-east-1a", "c3.xlarge")


def web(answers: RecordedAnswers, headers: dict[str, str] | None = None) -> Web:
    return Web(answers.url, "the service", headers and (lambda: headers), attempts=3, first_wait_s=0.001)


def test_aws_lists_ordinary_machines_and_what_they_have() -> None:
    with served(ROUTES) as answers:
        found = AwsPriceList(web(answers)).listed(["us-east-1"], default_catalogue())
    assert found.prices == {
        ("aws", "us-east-1", "c3.xlarge", "Linux/UNIX"): 0.2,
        ("aws", "us-east-1", "c9x.large", "Linux/UNIX"): 0.12,
        ("aws", "us-east-1", "c9x.large", "Windows"): 0.24,
        ("aws", "us-east-1", "g6.96xlarge", "Linux/UNIX"): 7.0,
        ("aws", "us-east-1", "p9.48xlarge", "Linux/UNIX"): 90.0,
    }
    types = {
        entry.name: (entry.vcpus, entry.memory_gib, entry.accelerator, entry.accelerator_count)
        for entry in found.types
    }
    assert types["c9x.large"] == (2, 1024.0, None, 0)
    # The list counts accelerators and does not name them: those of the family are known, p9's are not.
    assert types["g6.96xlarge"] == (384, 1536.0, "NVIDIA L4", 16)
    assert list(found.left_out) == ["p9.48xlarge"]


def test_google_s_prices_are_sums_of_cores_memory_and_gpus() -> None:
    with served(ROUTES) as answers:
        found = GcpPriceList(web(answers, {"X-Goog-Api-Key": "secret"})).listed(
            ["us-central1", "us-east1"], default_catalogue()
        )
    assert found.prices["gcp", "us-central1", "g2-standard-8", "Linux/UNIX"] == pytest.approx(
        8 * 0.024988 + 32 * 0.002927 + 0.56004
    )
    assert found.prices["gcp", "us-central1", "n2-standard-8", "Linux/UNIX"] == pytest.approx(8 * 1.5 + 32 * 0.25)
    # There is no price of an L4 in us-east1, and none of any part of a C4; an A3 is no sum of parts.
    assert not any(key[1] == "us-east1" for key in found.prices)
    assert {"c4-standard-4", "a3-highgpu-8g"} <= set(found.left_out)
    first, second = answers.asked
    assert "pageToken" not in first.query
    assert second.query["pageToken"] == "second"
    assert all(
        one.headers["x-goog-api-key"] == "secret" and "secret" not in str(one.query) for one in answers.asked
    )


def test_azure_s_pages_are_followed() -> None:
    known = Catalogue([one for one in default_catalogue().instance_types if one.name != "NC40ads H100 v5"], {})
    with served(ROUTES) as answers:
        found = AzurePriceList(web(answers)).listed(["eastus"], known)
    assert found.prices == {
        ("azure", "eastus", "NC6s v3", "Linux"): 3.3,
        ("azure", "eastus", "NC40ads H100 v5", "Linux"): 6.98,
    }
    assert list(found.left_out) == ["NC40ads H100 v5"]
    assert "armRegionName eq 'eastus'" in answers.asked[0].query["$filter"]
    assert answers.asked[1].query["$skip"] == "1000"


@pytest.mark.parametrize(
    ("routes", "told"),
    [
        ({AZURE_PATH: ["{}"]}, "without a list named Items"),
        ({AZURE_PATH: ["<html>"]}, "not JSON"),
        ({AZURE_PATH: ['{"Items": [], "NextPageLink": "https://elsewhere.example/x"}']}, "next page elsewhere"),
        ({AZURE_PATH: [(403, "not for\nyou")]}, r"refused \(403\): not for you"),
        ({AZURE_PATH: ['{"Items": []}']}, "no machines in eastus"),
        ({AZURE_PATH: [recording("azure_retail_1.json").replace("USD", "EUR")]}, "in EUR, not in USD"),
    ],
)
def test_azure_answers_that_are_wrong_are_told(routes: dict[str, list[Answer]], told: str) -> None:
    with served(routes) as answers, pytest.raises(CloudError, match=told):
        AzurePriceList(web(answers)).listed(["eastus"], default_catalogue())


def test_wrong_lists_of_aws_and_google_are_told() -> None:
    with (
        served({AWS_PATH: ["no,table\n1,2\n"]}) as answers,
        pytest.raises(CloudError, match="has no column 'SKU'"),
    ):
        AwsPriceList(web(answers)).listed(["us-east-1"], default_catalogue())
    without = recording("aws_us-east-1.csv").replace('"PricePerUnit"', '"Price"')
    with served({AWS_PATH: [without]}) as answers, pytest.raises(CloudError, match="no column 'PricePerUnit'"):
        AwsPriceList(web(answers)).listed(["us-east-1"], default_catalogue())
    with served({}) as answers, pytest.raises(CloudError, match="is no region of AWS"):
        AwsPriceList(web(answers)).listed(["../secrets"], default_catalogue())
    damaged = json.dumps({"skus": [{"description": "N2 Instance Core running in Americas"}]})
    with served({GCP_PATH: [damaged]}) as answers, pytest.raises(CloudError, match="a SKU that cannot be read"):
        GcpPriceList(web(answers)).listed(["us-central1"], default_catalogue())


def test_a_busy_service_is_asked_again_and_not_for_ever() -> None:
    with served({AZURE_PATH: [(503, "later"), (429, "slowly"), '{"ok": 1}']}) as answers:
        assert web(answers).get("/api/retail/prices") == {"ok": 1}
    with served({AZURE_PATH: [(503, "later")]}) as answers:
        with pytest.raises(CloudError, match=r"refused \(503\): later"):
            web(answers).get("/api/retail/prices")
        assert len(answers.asked) == 3
        gone = web(answers)
    with pytest.raises(CloudError, match="does not answer"):
        gone.get("/api/retail/prices")


def test_what_changed_gets_today_s_date_and_what_did_not_no_row(tmp_path: Path) -> None:
    own = tmp_path / "own"
    with served(ROUTES) as answers:
        (done,) = update(own, [(AwsPriceList(web(answers)), ["us-east-1"])], default_catalogue(), NOW_S)
        (again,) = update(own, [(AwsPriceList(web(answers)), ["us-east-1"])], default_catalogue(), NOW_S + 1)
        assert (again.prices, dict(again.changed), list(again.types)) == (5, {}, [])
        lower = recording("aws_us-east-1.csv").replace("0.2000000000", "0.1900000000")
        answers.routes[AWS_PATH] = [lower]
        (later,) = update(
            own, [(AwsPriceList(web(answers)), ["us-east-1"])], default_catalogue(), NOW_S + 2 * 86400
        )
    key = ("aws", "us-east-1", "c3.xlarge", "Linux/UNIX")
    assert done.changed[key] == (0.21, 0.2)
    assert dict(later.changed) == {key: (0.2, 0.19)}
    rows = (own / "on_demand_prices.csv").read_text().splitlines()
    assert [row for row in rows if "c3.xlarge" in row] == [
        "aws,us-east-1,c3.xlarge,Linux/UNIX,2026-11-26,0.2",
        "aws,us-east-1,c3.xlarge,Linux/UNIX,2026-11-28,0.19",
    ]
    assert len(rows) == 1 + 6
    # In use everywhere: what was known before stays, by its date.
    catalogue = catalogue_with(own)
    days = ("2015-04-01", "2026-11-25", "2026-11-27", "2026-11-29")
    assert [catalogue.on_demand_usd_per_hour(C3, to_epoch_s(f"{day}T00:00:00Z")) for day in days] == [
        0.21,
        0.21,
        0.2,
        0.19,
    ]
    assert catalogue.instance_type("aws", "g6.96xlarge").accelerator_count == 16
    assert catalogue.instance_type("aws", "c3.xlarge") == default_catalogue().instance_type("aws", "c3.xlarge")


def test_two_changes_of_one_day_leave_the_later(tmp_path: Path) -> None:
    with served(ROUTES) as answers:
        source = AwsPriceList(web(answers))
        update(tmp_path, [(source, ["us-east-1"])], default_catalogue(), NOW_S)
        answers.routes[AWS_PATH] = [recording("aws_us-east-1.csv").replace("0.2000000000", "0.1800000000")]
        update(tmp_path, [(source, ["us-east-1"])], default_catalogue(), NOW_S + 60)
    assert with_own(default_catalogue(), tmp_path).on_demand_usd_per_hour(C3, NOW_S) == 0.18


def test_one_cloud_that_fails_leaves_the_others_and_what_there_was(tmp_path: Path) -> None:
    with served(ROUTES) as answers:
        sources = [(AwsPriceList(web(answers)), ["us-east-1"]), (AzurePriceList(web(answers)), ["eastus"])]
        update(tmp_path, sources, default_catalogue(), NOW_S)
        before = (tmp_path / "on_demand_prices.csv").read_text()
        answers.routes[AWS_PATH] = ["\n".join(recording("aws_us-east-1.csv").splitlines()[:6])]
        answers.routes[AZURE_PATH] = [recording("azure_retail_2.json").replace("6.98", "6.5")]
        aws, azure = update(tmp_path, sources, default_catalogue(), NOW_S + 86400)
    assert "has no machines in us-east-1" in aws.problem
    assert not azure.problem
    after = (tmp_path / "on_demand_prices.csv").read_text()
    assert set(before.splitlines()) < set(after.splitlines())
    assert set(after.splitlines()) - set(before.splitlines()) == {
        "azure,eastus,NC40ads H100 v5,Linux,2026-11-27,6.5"
    }


class _BreaksOff(BaseHTTPRequestHandler):
    """Promises more than it sends."""

    def do_GET(self) -> None:
        body = recording("aws_us-east-1.csv").encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body) + 1000))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


def test_a_list_that_breaks_off_changes_nothing(tmp_path: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _BreaksOff)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        client = Web(f"http://127.0.0.1:{server.server_address[1]}", "the service", attempts=1)
        (done,) = update(tmp_path, [(AwsPriceList(client), ["us-east-1"])], default_catalogue(), NOW_S)
    finally:
        server.shutdown()
        server.server_close()
    assert done.problem.startswith("the service broke off")
    assert list(tmp_path.iterdir()) == []


def test_a_list_that_is_compressed_is_read(tmp_path: Path) -> None:
    class Compressed(_BreaksOff):
        def do_GET(self) -> None:
            body = gzip.compress(recording("aws_us-east-1.csv").encode())
            self.send_response(200)
            self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Compressed)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        client = Web(f"http://127.0.0.1:{server.server_address[1]}", "the service", attempts=1)
        (done,) = update(tmp_path, [(AwsPriceList(client), ["us-east-1"])], default_catalogue(), NOW_S)
    finally:
        server.shutdown()
        server.server_close()
    assert done.prices == 5


def test_a_folder_that_is_no_catalogue_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has neither instance_types.csv nor on_demand_prices.csv"):
        catalogue_with(tmp_path)
    path = tmp_path / "on_demand_prices.csv"
    head = "cloud,region,instance_type,product,first_seen,on_demand_usd_per_hour\n"
    for row, told in (
        ("aws,r,t,Linux/UNIX,soon,1.0", "field first_seen: 'soon' is not a day"),
        ("aws,r,t,Linux/UNIX,2026-01-01,cheap", "'cheap' is not a number"),
        ("aws,r,t,Linux/UNIX,2026-01-01,-1", "-1 is no price"),
    ):
        path.write_text(head + row + "\n")
        with pytest.raises(InputError, match=told):
            catalogue_with(tmp_path)
    path.write_text("cloud,region\n")
    with pytest.raises(InputError, match="has no column 'instance_type'"):
        catalogue_with(tmp_path)
    with pytest.raises(InputError, match="is a file; a catalogue is a folder"):
        update(path, [], default_catalogue(), NOW_S)


def command(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


def test_the_command_tells_what_changed_and_which_cloud_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", "not-to-be-shown")
    into = tmp_path / "own"
    asked = (
        "catalogue",
        "update",
        "--into",
        into,
        "--aws",
        "us-east-1",
        "--gcp",
        "us-central1",
        "--azure",
        "eastus",
    )
    with served(ROUTES) as answers:
        assert command(*asked, "--endpoint-url", answers.url) == 0
        told = capsys.readouterr()
        assert "aws: 5 list prices, 5 new or changed; 2 new types" in told.out
        assert "us-east-1 c3.xlarge Linux/UNIX 0.21 0.2" in " ".join(told.out.split())
        answers.routes[GCP_PATH] = [(403, "API key not valid")]
        assert command(*asked, "--endpoint-url", answers.url) == 69
        told = capsys.readouterr()
        assert "gcp: the Cloud Billing Catalog refused (403): API key not valid" in told.err
        assert "no list prices of gcp" in told.err
        assert "not-to-be-shown" not in told.out + told.err
    assert command("catalogue", "update", "--into", into) == 2
    assert "no cloud asked for" in capsys.readouterr().err
