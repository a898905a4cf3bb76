"""Start scripts, read by a real shell."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from pathlib import Path

import pytest
from tests.waiting import LIMIT_S

from ebbtide.agent import bootstrap
from ebbtide.agent.bundle import bundle_key
from ebbtide.agent.config import AgentConfig
from ebbtide.clouds.ec2.settings import Ec2Region, Ec2Settings
from ebbtide.clouds.machines import MachineSettings
from ebbtide.clouds.providers import kept_machines, machines_of
from ebbtide.clouds.start_script import EC2, GCP, start_script
from ebbtide.errors import InputError

BUNDLE = "runs/r/agent-0a1b.tar.gz"


def settings(folder: Path, **options: object) -> Ec2Settings:
    given = {
        "regions": {"us-east-1": Ec2Region(image_id="ami-0")},
        "store": "s3://bucket/x",
        "folder": str(folder / "own"),
    }
    return Ec2Settings.model_validate(given | options)


def run(tmp_path: Path, script: str, fetched: int = 0) -> tuple[list[str], str]:
    """What programs of ours were called, and what the script wrote down."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("shutdown", "python-here"):
        ends = "exit 42" if name == "python-here" else "exit 0"
        fetches = f'case "$*" in *bootstrap.py*) exit {fetched} ;; esac'
        (programs / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {tmp_path}/called\n{fetches}\n{ends}\n')
        (programs / name).chmod(0o700)
    subprocess.run(["bash", "-c", script], env={"PATH": f"{programs}:/usr/bin:/bin"}, timeout=LIMIT_S, check=False)
    return (tmp_path / "called").read_text().splitlines(), (tmp_path / "own" / "agent.log").read_text()


@pytest.mark.usefixtures("processes")
def test_it_sets_up_starts_the_agent_and_ends_the_machine_when_the_agent_says_so(tmp_path: Path) -> None:
    agent = {"machine": "m'1", "bundle": BUNDLE}
    script = start_script(settings(tmp_path, setup=["echo 'a b' $HOME"], python="python-here"), agent, EC2)
    called, log = run(tmp_path, script)
    assert called == [
        f"python-here -S bootstrap.py s3://bucket/x/{BUNDLE} 0a1b bundle",
        "python-here -S -m ebbtide.agent agent.json",
        "shutdown -h now",
    ]
    assert log.startswith("a b")
    assert json.loads((tmp_path / "own" / "agent.json").read_text()) == {**agent, "folder": "work"}
    assert (tmp_path / "own" / "bootstrap.py").read_text() == Path(bootstrap.__file__).read_text()
    assert (tmp_path / "own" / "agent.json").stat().st_mode & 0o077 == 0


@pytest.mark.usefixtures("processes")
def test_where_setting_up_fails_the_agent_is_not_started(tmp_path: Path) -> None:
    broken = settings(tmp_path, setup=["false", "echo later"], python="python-here")
    called, log = run(tmp_path, start_script(broken, {"bundle": BUNDLE}, EC2))
    assert called == ["shutdown -h now"]
    assert log == "ebbtide: the set-up failed, or took over 1800 s\n"


@pytest.mark.usefixtures("processes")
def test_a_set_up_that_hangs_ends_the_machine(tmp_path: Path) -> None:
    hangs = settings(tmp_path, setup=["sleep 100000"], python="python-here", setup_limit_s=60.0)
    script = start_script(hangs, {"bundle": BUNDLE}, EC2)
    assert "timeout -k 30 60 bash" in script
    called, log = run(tmp_path, script.replace("timeout -k 30 60 bash", "timeout -k 30 0.2 bash"))
    assert called == ["shutdown -h now"]
    assert log == "ebbtide: the set-up failed, or took over 60 s\n"


@pytest.mark.usefixtures("processes")
def test_where_the_agent_cannot_be_fetched_the_machine_ends(tmp_path: Path) -> None:
    called, log = run(
        tmp_path, start_script(settings(tmp_path, python="python-here"), {"bundle": BUNDLE}, EC2), fetched=1
    )
    assert called[1:] == ["shutdown -h now"]
    assert log == "ebbtide: the agent could not be fetched\n"


def test_storage_elsewhere_is_named_to_bootstrap_and_agent(tmp_path: Path) -> None:
    elsewhere = settings(tmp_path, store_endpoint_url="https://minio.example:9000")
    assert "\nexport AWS_ENDPOINT_URL_S3=https://minio.example:9000\n" in start_script(
        elsewhere, {"bundle": BUNDLE}, EC2
    )
    assert "AWS_ENDPOINT_URL_S3=" not in start_script(settings(tmp_path), {"bundle": BUNDLE}, EC2)


def test_google_s_storage_is_named_by_its_own_variable(tmp_path: Path) -> None:
    own = MachineSettings(store="gs://bucket/x", folder=str(tmp_path), store_endpoint_url="http://127.0.0.1:4443")
    script = start_script(own, {"bundle": BUNDLE}, GCP)
    assert "\nexport STORAGE_EMULATOR_HOST=http://127.0.0.1:4443\n" in script
    assert f" bootstrap.py gs://bucket/x/{BUNDLE} " in script


def test_7500_bytes_are_left_for_the_set_up() -> None:
    # Names as long as they may be, and a fixed folder: those of pytest differ from run to run.
    folder = Path("/var/lib/ebbtide") / ("r" * 60)
    agent = {
        **vars(AgentConfig("r" * 60, "m" * 66, "s3://" + "b" * 63 + "/prefix", str(folder))),
        "bundle": bundle_key("r" * 60),
    }
    assert len(start_script(settings(folder), agent, EC2)) < EC2.most_bytes - 7_500


def test_nothing_of_the_configuration_is_read_by_the_shell(tmp_path: Path) -> None:
    script = start_script(settings(tmp_path), {"run": "$(touch x); `touch y`", "bundle": BUNDLE}, EC2)
    assert "touch" not in script
    found = re.search(r"printf %s (\S+) ", script)
    assert found is not None
    assert json.loads(base64.b64decode(found.group(1)))["run"] == "$(touch x); `touch y`"


def test_what_ec2_would_not_take_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="EC2 takes 16384"):
        start_script(settings(tmp_path, setup=["x" * 17_000]), {"bundle": BUNDLE}, EC2)
    with pytest.raises(InputError, match="EBBTIDE_SETUP"):
        start_script(settings(tmp_path, setup=["EBBTIDE_SETUP"]), {"bundle": BUNDLE}, EC2)
    with pytest.raises(InputError, match="EBBTIDE_BOOTSTRAP"):
        start_script(settings(tmp_path, setup=["true\nEBBTIDE_BOOTSTRAP\ntrue"]), {"bundle": BUNDLE}, EC2)


@pytest.mark.parametrize(
    ("field", "content", "problem"),
    [
        ("store", "bucket", "should match pattern"),
        ("folder", "/var/lib/a b", "should match pattern"),
        ("store_endpoint_url", "'https://x; rm'", "should match pattern"),
        ("regions", "{}", "at least 1 item"),
        ("controller_limit_s", "5", "greater than or equal to 20"),
    ],
)
def test_settings_that_cannot_be_name_the_field(tmp_path: Path, field: str, content: str, problem: str) -> None:
    path = tmp_path / "ec2.yaml"
    lines = {"regions": "{us-east-1: {image_id: ami-0}}", "store": "s3://bucket/x"} | {field: content}
    path.write_text("".join(f"{name}: {value}\n" for name, value in lines.items()))
    with pytest.raises(InputError, match=problem) as raised:
        Ec2Settings.read(path)
    assert raised.value.field == field
    assert raised.value.file == str(path)


@pytest.mark.parametrize(
    ("field", "content", "problem"),
    [
        ("controller_limit_s", ".inf", "is inf; 604800 s is the most"),
        ("setup_limit_s", "1e300", "is 1e\\+300; 86400 s is the most"),
        ("poll_s", ".inf", "is inf; 600 s is the most"),
        ("notice_poll_s", "1e9", "is 1e\\+09; 60 s is the most"),
        ("price_poll_s", ".nan", "86400|greater"),
    ],
)
def test_a_new_run_s_machines_end_and_are_looked_at_in_time(
    tmp_path: Path, field: str, content: str, problem: str
) -> None:
    path = tmp_path / "ec2.yaml"
    path.write_text(f"regions: {{us-east-1: {{image_id: ami-0}}}}\nstore: s3://bucket/x\n{field}: {content}\n")
    with pytest.raises(InputError, match=problem) as raised:
        machines_of("ec2", path)
    assert (raised.value.field, raised.value.file) == (field, str(path))


def test_what_a_run_keeps_is_read_whatever_it_is() -> None:
    """Before it had limits, a run may have begun with others: `ebbtide down` has to end its machines."""
    kept = {"regions": {"us-east-1": {"image_id": "ami-0"}}, "store": "s3://bucket/x", "poll_s": 900.0}
    assert kept_machines({"ec2": kept}, Path("run.json"))["ec2"].poll_s == 900.0


def test_the_example_is_one() -> None:
    found = Ec2Settings.read(Path(__file__).parents[2] / "examples" / "live" / "ec2.yaml")
    assert found.instance_profile == "ebbtide-agent"
