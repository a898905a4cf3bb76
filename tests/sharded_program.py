"""A training whose model FSDP divides over processes on CPUs; the first one prints a digest of the whole."""

from __future__ import annotations

import argparse
import hashlib
import json
import time

import torch
from torch import distributed
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

from ebbtide.trial import Trial
from ebbtide.trial_sharded import ShardedState


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--step-s", type=float, default=0.02)
    asked = parser.parse_args()
    trial = Trial.current()
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Dropout(0.2), torch.nn.Linear(256, 1))
    mesh = distributed.device_mesh.init_device_mesh("cpu", (distributed.get_world_size(),))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
    torch.manual_seed(1000 + distributed.get_rank())
    trial.keep(ShardedState(model=model, optimizer=optimizer, schedule=schedule))
    for _ in trial.steps(asked.steps):
        time.sleep(asked.step_s)
        optimizer.zero_grad()
        inputs = torch.randn(16, 64)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        trial.report(loss=loss)
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    held = sum(part.numel() for part in get_model_state_dict(model).values() if not hasattr(part, "to_local"))
    held += sum(
        part.to_local().numel() for part in get_model_state_dict(model).values() if hasattr(part, "to_local")
    )
    if distributed.get_rank() == 0:
        digest = hashlib.sha256(b"".join(whole[name].numpy().tobytes() for name in sorted(whole))).hexdigest()
        told = {"digest": digest, "held": held, "whole": sum(part.numel() for part in whole.values())}
        print(json.dumps(told), flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
