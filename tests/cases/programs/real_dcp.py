"""torchrun with two processes that save by torch.distributed.checkpoint, a folder for each save, two kept."""

import hashlib
import shutil
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from loop import STEP_S, note
from torch.nn.parallel import DistributedDataParallel

out = Path("ckpt")
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
state = {"model": model.module.state_dict(), "step": torch.tensor(0)}
folders = sorted(out.glob("step-*"), key=lambda path: int(path.name[5:])) if out.exists() else []
if folders:
    dcp.load(state, checkpoint_id=str(folders[-1]))
    model.module.load_state_dict(state["model"])
for step in range(int(state["step"]) + 1, 61):
    time.sleep(STEP_S)
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(2 * step + dist.get_rank()))
    loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if dist.get_rank() == 0:
        note(step)
        print(f"step {step}/60 loss {loss.item():.4f}", flush=True)
    if step % 6 == 0:
        dcp.save(
            {"model": model.module.state_dict(), "step": torch.tensor(step)},
            checkpoint_id=str(out / f"step-{step}"),
        )
        if dist.get_rank() == 0:
            for old in sorted(out.glob("step-*"), key=lambda path: int(path.name[5:]))[:-2]:
                shutil.rmtree(old)
if dist.get_rank() == 0:
    weights = torch.cat([value.flatten() for value in model.module.state_dict().values()])
    print("weights", hashlib.sha256(weights.numpy().tobytes()).hexdigest())
dist.destroy_process_group()
