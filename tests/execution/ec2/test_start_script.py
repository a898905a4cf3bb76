"""Start scripts, read by a real shell."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from pathlib import Path

import pytest

from ebbtide.errors import InputError
from ebbtide.execution.ec2.settings import Ec2Region, Ec2Settings
from ebbtide.execution.ec2.start_script import start_script


def settings(folder: Path, **options: object) -> Ec2Settings:
    given = {"regions": {"us-east-1": Ec2Region(image_id="ami-0")}, "store": "s3://bucket/x", "folder": str(folder / "own")}
    return Ec2Settings.model_validate(given | options)


def run(tmp_path: Path, script: str) -> tuple[list[str], str]:
    """What programs of ours were called, and what the script wrote down."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("shutdown", "python-here"):
        (programs / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {tmp_path}/called\nexit 42\n')
        (programs / name).chmod(0o700)
    subprocess.run(["bash", "-c", script], env={"PATH": f"{programs}:/usr/bin:/bin"}, timeout=30, check=False)
    return (tmp_path / "called").read_text().splitlines(), (tmp_path / "own" / "agent.log").read_text()


def test_it_sets_up_starts_the_agent_and_ends_the_machine_when_the_agent_says_so(tmp_path: Path) -> None:
    script = start_script(settings(tmp_path, setup=["echo 'a b' $HOME"], python="python-here"), {"machine": "m'1"})
    called, log = run(tmp_path, script)
    assert called == ["python-here -m ebbtide.agent agent.json", "shutdown -h now"]
    assert log.startswith("a b")
    assert json.loads((tmp_path / "own" / "agent.json").read_text()) == {"machine": "m'1", "folder": "work"}
    assert (tmp_path / "own" / "agent.json").stat().st_mode & 0o077 == 0


def test_where_setting_up_fails_the_agent_is_not_started(tmp_path: Path) -> None:
    called, log = run(tmp_path, start_script(settings(tmp_path, setup=["false", "echo later"], python="python-here"), {}))
    assert called == ["shutdown -h now"]
    assert log == "ebbtide: the set-up failed\n"


def test_nothing_of_the_configuration_is_read_by_the_shell(tmp_path: Path) -> None:
    script = start_script(settings(tmp_path), {"run": "$(touch x); `touch y`"})
    assert "touch" not in script
    found = re.search(r"printf %s (\S+) ", script)
    assert found is not None
    assert json.loads(base64.b64decode(found.group(1)))["run"] == "$(touch x); `touch y`"


def test_what_ec2_would_not_take_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="EC2 takes 16384"):
        start_script(settings(tmp_path, setup=["x" * 17_000]), {})
    with pytest.raises(InputError, match="EBBTIDE_SETUP"):
        start_script(settings(tmp_path, setup=["EBBTIDE_SETUP"]), {})


@pytest.mark.parametrize(
    ("field", "content", "problem"),
    [
        ("store", "bucket", "should match pattern"),
        ("folder", "/var/lib/a b", "should match pattern"),
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


def test_the_example_is_one() -> None:
    found = Ec2Settings.read(Path(__file__).parents[3] / "examples" / "live" / "ec2.yaml")
    assert found.instance_profile == "ebbtide-agent"
