"""A training that ends with the same weights however often it is interrupted, if it is resumed rightly.

The programs beside this file differ in how they save and resume. None of them knows of Ebbtide.
"""

import hashlib
import json
import math
import os
import time

STEPS, EVERY = 60, 6
# Seconds that a step takes.
STEP_S = float(os.environ.get("CASE_STEP_S", "0.25"))


def begun():
    """What training starts from without a checkpoint."""
    return {"step": 0, "weights": [0.1, 0.2, 0.3]}


def trained(state):
    """The state after one more step, which depends on all steps before."""
    step = state["step"] + 1
    note(step)
    weights = [
        math.fmod(1.01 * weight + math.sin(step * (n + 1)), 7.0) for n, weight in enumerate(state["weights"])
    ]
    return {"step": step, "weights": weights}


def note(step):
    """Note that a step is done, where a test counts them, after a wait for a test that is slower than the steps."""
    if name := os.environ.get("CASE_STEPS"):
        while os.path.exists(name) and _count(name) >= _most(f"{name}-limit"):
            time.sleep(0.05)
        with open(name, "a") as noted:
            noted.write(f"{step}\n")


def _count(name):
    with open(name) as noted:
        return len(noted.readlines())


def _most(name):
    with open(name) as limit:
        return int(limit.read())


def said(state):
    """The line that a program prints after a step."""
    return f"step {state['step']}/{STEPS} loss {1 / state['step']:.4f}"


def train(state, save, *, every=EVERY, saves_at_end=True, line=said):
    """Train from a state, or from the beginning, to the end."""
    state = state or begun()
    while state["step"] < STEPS:
        time.sleep(STEP_S)
        state = trained(state)
        is_end = state["step"] == STEPS and saves_at_end
        if state["step"] % every == 0 or is_end:
            save(state)
        print(line(state), flush=True)
    print("weights", digest(state), flush=True)


def digest(state):
    return hashlib.sha256(json.dumps(state["weights"]).encode()).hexdigest()


def pause(seconds):
    """Take as long as a larger model would."""
    time.sleep(seconds if STEP_S else 0.0)
