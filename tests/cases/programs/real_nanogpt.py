"""PyTorch, as nanoGPT: model and optimizer in out/ckpt.pt, written over in place."""

import hashlib
import os
import time

import torch
from loop import STEP_S, note

STEPS, EVERY = 60, 6
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
iter_num = 0
if os.path.exists("out/ckpt.pt"):
    checkpoint = torch.load("out/ckpt.pt")
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num = checkpoint["iter_num"]
    print("Resuming training from out")
while iter_num < STEPS:
    time.sleep(STEP_S)
    generator = torch.Generator().manual_seed(iter_num)
    x = torch.randn(8, 16, generator=generator)
    loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    iter_num += 1
    note(iter_num)
    print(f"iter {iter_num}: loss {loss.item():.4f}, time {1000 * STEP_S:.2f}ms, mfu 0.10%", flush=True)
    if iter_num % EVERY == 0 or iter_num == STEPS:
        os.makedirs("out", exist_ok=True)
        print("saving checkpoint to out", flush=True)
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": iter_num}, "out/ckpt.pt"
        )
weights = torch.cat([value.flatten() for value in model.state_dict().values()])
print("weights", hashlib.sha256(weights.numpy().tobytes()).hexdigest())
