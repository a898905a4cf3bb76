"""Processes are found by the mark that they carry, and ended with all that they start."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from ebbtide.live.agent.processes import kill_processes, processes_with

NAME = "EBBTIDE_TEST_MARK"


def test_what_carries_the_mark_is_ended_whatever_session_it_is_in() -> None:
    value = f"mark-{os.getpid()}"
    script = "import os, subprocess, time; subprocess.Popen(['setsid', 'sleep', '300']); time.sleep(300)"
    marked = subprocess.Popen([sys.executable, "-c", script], env=os.environ | {NAME: value})
    other = subprocess.Popen(["sleep", "300"], env=os.environ | {NAME: value + "0"})
    try:
        end_s = time.monotonic() + 20
        while len(processes_with(NAME, value)) < 2 and time.monotonic() < end_s:
            time.sleep(0.05)
        assert kill_processes(NAME, value) == 2
        assert marked.wait(10) < 0
        assert processes_with(NAME, value) == []
        assert other.poll() is None
        assert kill_processes(NAME, value) == 0
    finally:
        other.kill()
        other.wait()
