# In the form of ray-project/ray's doc/source/tune/doc_code: trial_checkpoint.py (checkpoints of a function) at
# 06ac2d26d6b041ea3d65da117fb61f7b476a5add, fault_tolerance.py (restoring and retries) at
# 0d59439fe30b057091102a9f1fe653cb1920983a.
import os
import tempfile

import torch
from ray import tune
from work import EPOCHS, LEARNING_RATES, epoch, made

STORAGE, NAME = "s3://your-bucket/ray", "lines"


def train(config):
    model, optimizer = made(config["lr"])
    first = 0
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            state = torch.load(os.path.join(folder, "newest.pt"))
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"]
    for number in range(first, EPOCHS):
        loss = epoch(model, optimizer)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": number + 1}
        with tempfile.TemporaryDirectory() as folder:
            torch.save(state, os.path.join(folder, "newest.pt"))
            tune.report({"loss": loss}, checkpoint=tune.Checkpoint.from_directory(folder))


if tune.Tuner.can_restore(f"{STORAGE}/{NAME}"):
    tuner = tune.Tuner.restore(f"{STORAGE}/{NAME}", trainable=train, resume_errored=True)
else:
    tuner = tune.Tuner(
        tune.with_resources(train, {"gpu": 1}),
        param_space={"lr": tune.grid_search(LEARNING_RATES)},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=tune.RunConfig(
            name=NAME, storage_path=STORAGE, failure_config=tune.FailureConfig(max_failures=-1)
        ),
    )
tuner.fit()
