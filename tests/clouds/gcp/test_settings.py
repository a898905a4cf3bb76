"""Settings of machines on Google Cloud: examples, and what cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.runs.sweeps import sweep

from ebbtide.clouds.gcp.settings import GcpSettings
from ebbtide.clouds.providers import machines_of, with_billing
from ebbtide.errors import InputError

EXAMPLES = Path(__file__).parents[3] / "examples" / "live"

GOOD = {
    "project": "my-project-1",
    "regions": {"us-central1": {"zones": ["us-central1-a"]}},
    "prices": "prices.parquet",
    "image": "projects/my-project-1/global/images/family/training",
    "store": "gs://bucket/x",
}


def written(folder: Path, /, **options: object) -> Path:
    path = folder / "gcp.yaml"
    path.write_text(yaml.safe_dump(GOOD | options))
    return path


def test_prices_are_beside_the_file(tmp_path: Path) -> None:
    assert GcpSettings.read(written(tmp_path)).prices == str(tmp_path / "prices.parquet")
    assert GcpSettings.read(written(tmp_path, prices="/data/p.db")).prices == "/data/p.db"


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("project", "P", "should match pattern"),
        ("regions", {"us-central1": {"zones": ["us-east1-b"]}}, "us-east1-b is no zone of us-central1; write for"),
        ("regions", {"us-central1": {"zones": []}}, "at least 1 item"),
        ("image", "debian", "should match pattern"),
        ("store", "bucket", "should match pattern"),
        ("service_account", "nobody", "should match pattern"),
        ("labels", {"Team": "x"}, "should match pattern"),
        ("tags", ["A b"], "should match pattern"),
        ("notice_s", 60, "Input should be 30 or 120"),
        ("longest_h", 0, "greater than or equal to 0.1"),
        ("folder", "/var/lib/a b", "should match pattern"),
        ("extra", 1, "unknown"),
    ],
)
def test_settings_that_cannot_be_name_the_field(tmp_path: Path, field: str, value: object, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as refused:
        GcpSettings.read(written(tmp_path, **{field: value}))
    assert (refused.value.field or "").startswith(field)
    assert refused.value.file == str(tmp_path / "gcp.yaml")


def test_the_examples_are_some() -> None:
    assert GcpSettings.read(EXAMPLES / "gcp.yaml").service_account.startswith("ebbtide-agent@")
    several = machines_of("several", EXAMPLES / "several.yaml")
    assert {name: one.store for name, one in several.items()} == dict.fromkeys(
        ("ec2", "gcp"), "s3://your-bucket/ebbtide"
    )


def test_several_clouds_share_what_one_run_has_once(tmp_path: Path) -> None:
    (tmp_path / "ec2.yaml").write_text("regions: {us-east-1: {image_id: ami-0}}\nstore: s3://bucket/x\n")
    several = tmp_path / "several.yaml"
    several.write_text(yaml.safe_dump({"ec2": "ec2.yaml", "gcp": GOOD}))
    with pytest.raises(
        InputError, match="store is s3://bucket/x for ec2 and gs://bucket/x for gcp; one run has one"
    ):
        machines_of("several", several)
    several.write_text(yaml.safe_dump({"ec2": "ec2.yaml", "azure": GOOD}))
    with pytest.raises(InputError, match="is no provider of one cloud; known: ec2, gcp"):
        machines_of("several", several)
    several.write_text(yaml.safe_dump({"ec2": "ec2.yaml"}))
    with pytest.raises(InputError, match="several needs settings of two or more of ec2, gcp"):
        machines_of("several", several)
    several.write_text(yaml.safe_dump({"ec2": "ec2.yaml", "gcp": GOOD | {"store": "s3://bucket/x"}}))
    found = machines_of("several", several)
    assert isinstance(found["gcp"], GcpSettings)
    assert found["gcp"].prices == str(tmp_path / "prices.parquet")
    with pytest.raises(InputError, match=r"--provider several needs --machines SEVERAL.yaml, as examples/live"):
        machines_of("several", None)


def test_each_provider_charges_as_its_cloud_does(tmp_path: Path) -> None:
    plain = sweep(tmp_path)
    assert with_billing(plain, "ec2").billing == "ec2-second"
    # What is replayed may be of any cloud.
    assert with_billing(plain, "local").billing == with_billing(plain, "replay").billing == "by-cloud"
    assert with_billing(plain, "gcp").billing == "gcp-spot"
    assert with_billing(plain, "several").billing == "by-cloud"
    fixed = sweep(tmp_path, billing="per-second")
    assert with_billing(fixed, "gcp").billing == "per-second"
    with pytest.raises(InputError, match="per-second is not how several charges; leave it out, or write by-cloud"):
        with_billing(fixed, "several")
    assert with_billing(sweep(tmp_path, billing="ec2-hourly"), "ec2").billing == "ec2-hourly"
    for other in ("gcp-spot", "azure-spot"):
        with pytest.raises(InputError, match=f"{other} is not how ec2 charges; leave it out, or write ec2-second"):
            with_billing(sweep(tmp_path, billing=other), "ec2")
