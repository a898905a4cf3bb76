"""Work spread over cores: the same results in order, one thread each, no worker left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys

import numpy as np
import psutil
import pytest

from ebbtide.base.cores import in_processes, one_thread, usable_cores
from tests.waiting import LIMIT_S, eventually

pytestmark = pytest.mark.usefixtures("processes")


def squared(number: int) -> int:
    return number * number


def thread_counts(_: int) -> tuple[int, int]:
    """This process, and the threads that PyTorch would use in it."""
    import torch

    return os.getpid(), torch.get_num_threads()


def refuses(number: int) -> int:
    if number == 2:
        raise ValueError("two")
    return number


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_the_order_of_the_items(workers: int) -> None:
    assert in_processes(squared, range(7), workers=workers) == [0, 1, 4, 9, 16, 25, 36]


def test_each_process_has_one_thread_and_ends() -> None:
    found = in_processes(thread_counts, range(4), workers=2)
    assert {threads for _, threads in found} == {1}
    pids = {pid for pid, _ in found}
    assert os.getpid() not in pids
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_is_the_items_own(workers: int) -> None:
    with pytest.raises(ValueError, match="two"):
        in_processes(refuses, range(4), workers=workers)


def test_what_is_sent_may_be_written_to() -> None:
    assert in_processes(_filled, [np.zeros(1 << 18)] * 2, workers=2) == [1.0, 1.0]


def _filled(values: np.ndarray) -> float:
    values[:] = 1.0
    return float(values.mean())


def test_one_thread_is_for_the_block_alone() -> None:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_script_without_a_guard_may_spread_work() -> None:
    """Notebooks and short scripts have no `if __name__ == "__main__"`."""
    script = (
        "from ebbtide.base.cores import in_processes\nprint(in_processes(lambda n: n + 1, range(3), workers=2))"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert found.stdout.split() == ["[1,", "2,", "3]"], found.stderr


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_the_process_that_began_them(ending: signal.Signals) -> None:
    script = (
        "import os, time\n"
        "from ebbtide.base.cores import in_processes\n"
        "def wait(n):\n    os.write(1, f'{os.getpid()}\\n'.encode())\n    time.sleep(600)\n"
        "in_processes(wait, range(2), workers=2)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    workers = [int(process.stdout.readline()) for _ in range(2)]
    process.send_signal(ending)
    process.wait(LIMIT_S)
    eventually(lambda: not any(psutil.pid_exists(pid) for pid in workers))
    process.stdout.close()


def test_usable_cores_are_those_that_the_process_may_run_on() -> None:
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)
