"""A checkpoint beside logs that stay open: TensorBoard events, a CSV log, and a study in SQLite."""

import csv
import json
import sqlite3
import struct
from pathlib import Path

from loop import STEPS, train

out = Path("ckpt")
(out / "tb").mkdir(parents=True, exist_ok=True)
file = out / "model.json"
state = json.loads(file.read_text()) if file.exists() else None
events = (out / "tb" / f"events.out.tfevents.{state['step'] if state else 0}.host").open("ab")
log = (out / "log.csv").open("a", newline="")
rows = csv.writer(log)
study = sqlite3.connect(out / "study.db", isolation_level=None)
study.execute("PRAGMA journal_mode=WAL")
study.execute("CREATE TABLE IF NOT EXISTS steps (step INTEGER PRIMARY KEY, loss REAL)")
if state:
    # What has come back belongs to the checkpoint.
    (kept,) = study.execute("SELECT count(*) FROM steps WHERE step <= ?", (state["step"],)).fetchone()
    assert kept == state["step"], f"{kept} of {state['step']} steps are in the study"


def save(state):
    part = out / "model.json.tmp"
    part.write_text(json.dumps(state))
    part.rename(file)


def line(state):
    events.write(struct.pack("<Qf", state["step"], 1 / state["step"]))
    events.flush()
    rows.writerow([state["step"], 1 / state["step"]])
    log.flush()
    study.execute("INSERT OR REPLACE INTO steps VALUES (?, ?)", (state["step"], 1 / state["step"]))
    return f"step {state['step']}/{STEPS} loss {1 / state['step']:.4f}"


def saved(state):
    # The study is ahead of the checkpoint, never behind.
    study.execute("INSERT OR REPLACE INTO steps VALUES (?, ?)", (state["step"], 1 / state["step"]))
    save(state)


train(state, saved, line=line)
