"""A network that is divided over processes by FSDP; no process has the whole of it, or of its optimizer's state.

torchrun --nproc-per-node 2 sharded.py --epochs 4
"""

from __future__ import annotations

import argparse
import hashlib
import time

import torch
from torch import distributed
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from train import Share, digits

from ebbtide.trial import Trial
from ebbtide.trial_sharded import ShardedState


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=64, help="of all processes together")
    parser.add_argument("--step-s", type=float, default=0.0, help="seconds that each step takes longer")
    options = parser.parse_args()

    trial = Trial.current()
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 10)
    )
    mesh = distributed.device_mesh.init_device_mesh("cpu", (distributed.get_world_size(),))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1 + distributed.get_rank())
    trial.keep(ShardedState(model=model, optimizer=optimizer))

    images, labels = digits()
    data = TensorDataset(images[:1536], labels[:1536])
    share = Share(len(data), options.batch_size)
    for epoch, batches in trial.epochs(DataLoader(data, batch_sampler=share), options.epochs):
        share.epoch = epoch
        for inputs, targets in batches:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            time.sleep(options.step_s)
            trial.report(train_loss=loss)
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if distributed.get_rank() == 0:
        digest = hashlib.sha256(b"".join(whole[name].numpy().tobytes() for name in sorted(whole)))
        print(f"weights {digest.hexdigest()}", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
