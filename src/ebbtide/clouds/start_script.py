"""The start script of a machine: set up, fetch the agent, and run it until the machine is to end.

The machine fetches the agent with its own role. A URL signed by the controller would open the store to anyone who
reads the script, and would expire while a machine waits.
"""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebbtide.agent import bootstrap
from ebbtide.agent.agent import ENDS_MACHINE
from ebbtide.agent.bundle import PROGRAM
from ebbtide.clouds.machines import MachineSettings
from ebbtide.errors import InputError

# Heredoc delimiters of the script, so no line of `setup` may equal one.
_MARKS = ("EBBTIDE_SETUP", "EBBTIDE_BOOTSTRAP")

_SCRIPT = """#!/bin/bash
# Ebbtide. A machine that cannot be set up ends itself; so does one whose agent says so.
fails() {{
    echo "ebbtide: $1"
    # For `{console}`.
    [ -w /dev/console ] && tail -n 40 agent.log 2>/dev/null | timeout 5 tee /dev/console >/dev/null 2>&1
    {off}
    exit 1
}}
umask 077
mkdir -p {folder} && cd {folder} || fails 'there is no folder {folder}'
exec >> agent.log 2>&1
printf %s {config} | base64 -d > agent.json
timeout -k 30 {limit_s:.0f} bash -e <<'EBBTIDE_SETUP' || fails 'the set-up failed, or took over {limit_s:.0f} s'
{setup}
EBBTIDE_SETUP
{endpoint}cat > bootstrap.py <<'EBBTIDE_BOOTSTRAP'
{bootstrap}
EBBTIDE_BOOTSTRAP
{python} -S bootstrap.py {bundle} {checksum} bundle || fails 'the agent could not be fetched'
# Training programs import ebbtide.trial from here, too, and everything else from their own Python.
export PYTHONPATH="$PWD/bundle/{program}${{PYTHONPATH:+:$PYTHONPATH}}"
for _ in {{1..1000}}; do
    {python} -S -m ebbtide.agent agent.json
    code=$?
    # The machine is to be ended, or the configuration is wrong.
    if [ $code -eq {ends} ] || [ $code -eq 2 ]; then break; fi
    sleep 1
done
{off}
"""


@dataclass(frozen=True)
class ScriptRules:
    """Rules for the start scripts of one cloud.

    Attributes:
        cloud: Name of the cloud, for errors.
        most_bytes: Longest script that the cloud accepts, in bytes.
        console: Command of the cloud that shows a machine's console output.
        off: Command by which a machine ends itself.
    """

    cloud: str
    most_bytes: int
    console: str
    off: str = "shutdown -h now"


EC2 = ScriptRules("EC2", 16_384, "aws ec2 get-console-output")
GCP = ScriptRules("GCP", 262_144, "gcloud compute instances get-serial-port-output")
# SkyPilot takes down a cluster without a job, so the machine ends with its script.
SKYPILOT = ScriptRules("SkyPilot", 262_144, "sky logs", off="exit")


def start_script(settings: MachineSettings, agent: Mapping[str, Any], rules: ScriptRules) -> str:
    """Return the start script of a machine. It holds no credentials: those come from the machine's role.

    Args:
        settings: Settings of the run's machines.
        agent: Configuration of the agent, with its `bundle`.
        rules: Rules for the scripts of the machine's cloud.

    Raises:
        InputError: The script is longer than the cloud allows, or a line of `setup` would end it early.
    """
    for mark in _MARKS:
        if any(line == mark for entry in settings.setup for line in entry.splitlines()):
            raise InputError(f"{mark} cannot be a line of its own", field="setup")
    key, store = str(agent["bundle"]), str(agent.get("store", settings.store))
    checksum = key.rpartition("agent-")[2].removesuffix(".tar.gz")
    content = json.dumps({**agent, "folder": "work"}, separators=(",", ":"))
    config = base64.b64encode(content.encode()).decode()
    script = _SCRIPT.format(
        folder=settings.folder,
        console=rules.console,
        off=rules.off,
        limit_s=settings.setup_limit_s,
        config=config,
        setup="\n".join(settings.setup) or ":",
        endpoint=_endpoint(settings),
        bootstrap=_bootstrap(),
        python=shlex.quote(settings.python),
        ends=ENDS_MACHINE,
        program=PROGRAM,
        bundle=shlex.quote(f"{store.rstrip('/')}/{key}"),
        checksum=shlex.quote(checksum),
    )
    if len(script.encode()) > rules.most_bytes:
        raise InputError(
            f"the start script has {len(script.encode())} bytes, and {rules.cloud} takes {rules.most_bytes}; have "
            "`setup` fetch a script, or use an image that is set up",
            field="setup",
        )
    return script


def _endpoint(settings: MachineSettings) -> str:
    """Return the line that exports the store's address, if it is not its cloud's own."""
    if not settings.store_endpoint_url:
        return ""
    name = "STORAGE_EMULATOR_HOST" if settings.store.startswith("gs://") else "AWS_ENDPOINT_URL_S3"
    return f"export {name}={shlex.quote(settings.store_endpoint_url)}\n"


def _bootstrap() -> str:
    return Path(bootstrap.__file__).read_text(encoding="utf-8").rstrip("\n")
