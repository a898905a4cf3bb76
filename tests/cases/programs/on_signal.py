"""Saves when it gets SIGTERM, and ends with 0; otherwise only at the end."""

import json
import signal
import sys
import time
from pathlib import Path

import loop

out = Path("ckpt")
file = out / "state.json"
out.mkdir(exist_ok=True)
state = json.loads(file.read_text()) if file.exists() else loop.begun()


def save():
    part = out / ".state.part"
    part.write_text(json.dumps(state))
    part.rename(file)


def stop(*_):
    save()
    print("saved at SIGTERM", flush=True)
    sys.exit(0)


signal.signal(signal.SIGTERM, stop)
while state["step"] < loop.STEPS:
    time.sleep(loop.STEP_S)
    state = loop.trained(state)
    print(loop.said(state), flush=True)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
save()
print("weights", loop.digest(state), flush=True)
