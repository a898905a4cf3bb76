"""What a machine runs when it starts: set up, then the agent, until the agent says that the machine is to end."""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Mapping
from typing import Any

from ebbtide.agent.agent import ENDS_MACHINE
from ebbtide.errors import InputError
from ebbtide.execution.ec2.settings import Ec2Settings

# EC2 takes no more.
_MOST_BYTES = 16_384

_SCRIPT = """#!/bin/bash
# Ebbtide. A machine that cannot be set up ends itself; so does one whose agent says so.
umask 077
mkdir -p {folder} && cd {folder} || {{ shutdown -h now; exit 1; }}
exec >> agent.log 2>&1
printf %s {config} | base64 -d > agent.json
bash -e <<'EBBTIDE_SETUP' || {{ echo 'ebbtide: the set-up failed'; shutdown -h now; exit 1; }}
{setup}
EBBTIDE_SETUP
for _ in {{1..1000}}; do
    {python} -m ebbtide.agent agent.json
    code=$?
    # As told to, or because the configuration is wrong.
    if [ $code -eq {ends} ] || [ $code -eq 2 ]; then break; fi
    sleep 1
done
shutdown -h now
"""


def start_script(settings: Ec2Settings, agent: Mapping[str, Any]) -> str:
    """User data for a machine. It holds no credential: those come from the instance profile.

    Args:
        settings: Of the machines.
        agent: The configuration of its agent.

    Raises:
        InputError: It is longer than EC2 allows, or a line of `setup` would end it early.
    """
    if "EBBTIDE_SETUP" in settings.setup:
        raise InputError("EBBTIDE_SETUP cannot be a line of its own", field="setup")
    config = base64.b64encode(json.dumps({**agent, "folder": "work"}).encode()).decode()
    script = _SCRIPT.format(
        folder=shlex.quote(settings.folder), config=config, setup="\n".join(settings.setup) or ":",
        python=shlex.quote(settings.python), ends=ENDS_MACHINE,
    )  # fmt: skip
    if len(script.encode()) > _MOST_BYTES:
        raise InputError(
            f"the start script has {len(script.encode())} bytes, and EC2 takes {_MOST_BYTES}; have `setup` fetch "
            "a script, or use an image that is set up", field="setup",
        )  # fmt: skip
    return script
