"""Trainings on the device at hand: DDP through an interruption, and how long a checkpoint takes of a notice.

On a GPU where there is one; on the processor everywhere, so that the test itself is known to run.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import LIMIT_S

torch = pytest.importorskip("torch")

from ebbtide.storage.checkpoints.store import CheckpointStore  # noqa: E402
from ebbtide.storage.objects import FolderStore  # noqa: E402
from ebbtide.trial_torch import TorchState  # noqa: E402

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and this machine has none"),
    ),
]
# Seconds of the shortest notice: Google's and Azure's.
NOTICE_S = 30.0

PROGRAM = """
import hashlib, os, sys, time
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from ebbtide.trial import Trial
from ebbtide.trial_torch import TorchState

device = sys.argv[1]
trial = Trial.current()
torch.set_num_threads(1)
distributed.init_process_group("nccl" if device == "cuda" else "gloo")
torch.manual_seed(0)
torch.use_deterministic_algorithms(True, warn_only=True)
network = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(64, 4))
network.to(device)
model = DistributedDataParallel(network, device_ids=[0] if device == "cuda" else None, static_graph=True)
optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
trial.keep(TorchState(model=network, optimizer=optimizer))
for step in trial.steps(60):
    # Numbers of the device's own generator: dropout, and the batch.
    batch = torch.randn(16, 32, device=device)
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    time.sleep(float(sys.argv[2]))
    print("step", step, flush=True)
content = b"".join(part.cpu().numpy().tobytes() for part in network.state_dict().values())
print("weights", hashlib.sha256(content).hexdigest(), flush=True)
distributed.destroy_process_group()
"""


def started(folder: Path, device: str, pause_s: float) -> subprocess.Popen[str]:
    (folder / "program.py").write_text(PROGRAM)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "EBBTIDE_CHECKPOINT_DIR": str(folder / "checkpoints"),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }
    (folder / "checkpoints").mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "program.py", device, str(pause_s)],
        cwd=folder,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
    )


def weights(output: str) -> str:
    return re.findall(r"weights (\w+)", output)[-1]


@pytest.mark.long
@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("device", DEVICES)
def test_ddp_on_one_device_ends_with_the_same_weights_though_it_is_interrupted(
    device: str, tmp_path: Path
) -> None:
    for name in ("alone", "taken"):
        (tmp_path / name).mkdir()
    alone, _ = started(tmp_path / "alone", device, 0.0).communicate(timeout=LIMIT_S)
    first = started(tmp_path / "taken", device, 0.1)
    assert first.stdout is not None
    for line in first.stdout:
        if line.startswith("step 20"):
            break
    first.send_signal(signal.SIGTERM)
    rest, _ = first.communicate(timeout=LIMIT_S)
    assert "weights" not in rest
    again, _ = started(tmp_path / "taken", device, 0.0).communicate(timeout=LIMIT_S)
    steps = [int(number) for number in re.findall(r"step (\d+)", again)]
    assert steps[-1] >= 59
    assert len(steps) < 45, "it began anew"
    assert weights(again) == weights(alone)


@pytest.mark.parametrize("device", DEVICES)
def test_a_checkpoint_is_saved_and_stored_within_a_notice(
    device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model with its optimizer's moments: a gigabyte on a GPU, a tenth of that elsewhere."""
    width = 9_000 if device == "cuda" else 2_900
    model = torch.nn.Linear(width, width, device=device)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, width, device=device)).sum().backward()
    optimizer.step()
    state = TorchState(model=model, optimizer=optimizer)
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (tmp_path / "began").touch()
    state.save(folder, within_step=False)
    store = CheckpointStore(FolderStore(tmp_path / "store"), "run-000")
    manifest = store.begin_writing("m", attempt=1).save(folder, 1)
    assert manifest is not None
    # By the times of the files: the last that was saved, and the manifest, which is stored last of all.
    began_s, saved_at_s, stored_at_s = (
        max(path.stat().st_mtime for path in place.rglob(files))
        for place, files in ((tmp_path, "began"), (folder, "*"), (tmp_path / "store", "*"))
    )
    saved_s, stored_s = saved_at_s - began_s, stored_at_s - saved_at_s
    with capsys.disabled():
        print(
            f"\n{device}: {manifest.size_bytes / 1e9:.2f} GB saved in {saved_s:.2f} s, stored in {stored_s:.2f} s; "
            f"a notice is {NOTICE_S:g} s"
        )
    assert saved_s + stored_s < NOTICE_S
    other = torch.nn.Linear(width, width, device=device)
    restored = TorchState(model=other, optimizer=torch.optim.Adam(other.parameters()))
    restored.restore(folder)
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), other.parameters(), strict=True))
    assert next(other.parameters()).device.type == device
