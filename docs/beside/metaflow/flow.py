# `@checkpoint` with `@retry`: documentation/checkpoint_deco/checkpoint_usage.md of
# outerbounds/metaflow-checkpoint-examples at d86a5b5190b708955b5d6d792591485aefaa328a; a spot node group by
# `node_selector`: docs/scaling/remote-tasks/spot-instances.md of Netflix/metaflow-docs at
# a407ca83e36400934215a9acec4fc9a6f7756142.
import os

import torch
from metaflow import FlowSpec, checkpoint, current, kubernetes, pypi, retry, step
from work import EPOCHS, LEARNING_RATES, epoch, made


class Lines(FlowSpec):
    @step
    def start(self):
        self.rates = LEARNING_RATES
        self.next(self.train, foreach="rates")

    @checkpoint
    @retry(times=10)
    @pypi(packages={"torch": "2.4.0"})
    @kubernetes(gpu=1, node_selector={"node_type": "spot"})
    @step
    def train(self):
        model, optimizer = made(self.input)
        newest = os.path.join(current.checkpoint.directory, "newest.pt")
        first = 0
        if current.checkpoint.is_loaded:
            state = torch.load(newest)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            first = state["epoch"]
        for number in range(first, EPOCHS):
            self.loss = epoch(model, optimizer)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": number + 1}
            torch.save(state, newest)
            current.checkpoint.save()
        self.lr = self.input
        self.next(self.join)

    @step
    def join(self, inputs):
        self.best = min((one.loss, one.lr) for one in inputs)
        self.next(self.end)

    @step
    def end(self):
        print(self.best)


if __name__ == "__main__":
    Lines()
