"""A notification of a night that failed, through a block of Prefect that its user has set up."""

from __future__ import annotations

import asyncio
import os
import sys
from inspect import isawaitable
from typing import Any

from prefect.blocks.core import Block
from prefect.client.schemas.objects import FlowRun, State
from prefect.flows import Flow

# A block of Prefect that notifies, as TYPE/NAME: slack-webhook/nights, for example.
NOTIFY = "EBBTIDE_NOTIFY"


def notify(flow: Flow[..., Any], flow_run: FlowRun, state: State) -> None:
    """Send one message through the block that the environment names; without one, do nothing.

    A message that cannot be sent is told on standard error: the night has failed for another reason.
    """
    name = os.environ.get(NOTIFY)
    if not name:
        return
    try:
        _send(name, flow, flow_run, state)
    except Exception as error:
        sys.stderr.write(f"ebbtide: {NOTIFY}={name}: the failed night could not be told: {error}\n")


def _send(name: str, flow: Flow[..., Any], flow_run: FlowRun, state: State) -> None:
    subject = f"Ebbtide: {flow.name} {state.name.lower() if state.name else 'failed'}"
    done = _loaded(name).notify(body=f"{flow_run.name}: {state.message or 'see its logs'}", subject=subject)
    if isawaitable(done):
        asyncio.run(_finish(done))


def _loaded(name: str) -> Any:
    found = Block.load(name)
    return asyncio.run(_finish(found)) if isawaitable(found) else found


async def _finish(waiting: Any) -> Any:
    return await waiting
