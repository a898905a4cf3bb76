"""One run in two clouds, EC2 and Google Cloud, both on stand-ins: the cheaper one, and at a refusal the other."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from tests.agent.bare_python import bare_python
from tests.clouds.renters import quiet, wait_for, write_sweep
from tests.runs.sweeps import held_program, steady, total

from ebbtide.clouds.settings import find_run
from ebbtide.controller.journal.journal import Journal
from ebbtide.market.billing import billing_preset
from ebbtide.testing.ec2_stand_in.running import stand_in
from ebbtide.testing.gcp_stand_in.running import gcp_stand_in
from ebbtide.testing.stand_in.machines import StandInMachines
from ebbtide.testing.stand_in.money import billed, until_now

pytestmark = pytest.mark.usefixtures("processes")

STEPS = 700


@pytest.mark.parametrize("policy", [pytest.param("default", marks=pytest.mark.long), "dynamic-pricing-cost"])
def test_the_cheaper_cloud_is_chosen_and_where_it_refuses_the_other(policy: str, tmp_path: Path) -> None:
    python, runs = str(bare_python(tmp_path / "python")), tmp_path / "runs"
    aws = quiet()
    # Little cheaper: the default policy waits a minute for a market that refuses, before it pays much more.
    gcp = until_now(steady(usd=0.0295), time.time())
    with stand_in(tmp_path / "ec2", aws, python) as (api, on_ec2, ec2):
        # GCP's machines have credentials for the store at S3 by their image.
        given = {"AWS_ENDPOINT_URL": api.url, "AWS_ACCESS_KEY_ID": "IMAGE", "AWS_SECRET_ACCESS_KEY": "none"}
        same = {"store": ec2.store, "python": python}
        with gcp_stand_in(tmp_path / "gcp", gcp, on_machines=given, **same) as (google, on_gcp, settings):
            what = tmp_path / "several.yaml"
            (tmp_path / "ec2.yaml").write_text(yaml.safe_dump(ec2.model_dump(mode="json")))
            what.write_text(yaml.safe_dump({"ec2": "ec2.yaml", "gcp": settings.model_dump(mode="json")}))
            path = tmp_path / "code" / "sweep.yaml"
            go = tmp_path / "go"
            # It may not end before the notice of the machine that is taken is over, however fast it is.
            write_sweep(path, trials=1, steps=STEPS, program=held_program(go))
            words = ("run", path, "--provider", "several", "--machines", what, "--runs", runs, "--policy", policy)
            controller = subprocess.Popen([sys.executable, "-m", "ebbtide.cli.main", *map(str, words)])
            try:
                wait_for(controller, lambda: has_saved(on_gcp))
                assert not on_ec2.all
                google.compute.refusals.empty_zones.update(settings.zones)
                on_gcp.take(on_gcp.running[0], notice_s=15.0)
                wait_for(controller, lambda: on_ec2.running)
                go.touch()
                assert controller.wait(120) == 0
            finally:
                controller.kill()
                controller.wait()
            assert on_gcp.running == on_ec2.running == []
            assert set(google.compute.refusals.sent) == {"ZONE_RESOURCE_POOL_EXHAUSTED"}
        on_ec2.close()
        folder = find_run(runs, None)
        outcome = Journal(folder.journal).state("outcome")
        assert outcome["finished"]
        (log,) = (folder.path / "logs").iterdir()
        assert float(log.read_text().split()[-1]) == pytest.approx(total(0.1, STEPS))
        # Each cloud's machines by its own rule, to which the transfer from one to the other is added.
        run = Journal(folder.journal).run()
        assert run is not None
        egress_usd = sum(usd for _, _, usd in run["engine"]["transfers"])
        spent = billed(on_ec2.all.values(), aws, billing_preset("ec2-second"))
        spent += billed(on_gcp.all.values(), gcp, billing_preset("gcp-spot"))
        assert outcome["cost_usd"] == pytest.approx(spent + egress_usd, abs=1e-4)
        assert egress_usd > 0.0


def has_saved(machines: StandInMachines) -> bool:
    return any(any((one.folder / "root" / "work").glob("*/checkpoints/*")) for one in machines.running)
