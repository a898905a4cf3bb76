"""Checkpoints of models that are divided over processes, by `torch.distributed.checkpoint`: each saves its shards.

    from torch.distributed.fsdp import fully_shard
    from ebbtide.trial_sharded import ShardedState

    distributed.init_process_group()
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    trial.keep(ShardedState(model=model, optimizer=optimizer))

No process ever has the whole state: each writes what it holds, and after a restart reads what it needs from the
shards of all. So the number of processes and machines may be another one than before.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from ebbtide.trial_torch import RandomStates, TorchState

_SHARDS = "shards"
# The list of all shards, as `torch.distributed.checkpoint` names it.
_METADATA = ".metadata"
_OPTIONS = StateDictOptions(full_state_dict=False, cpu_offload=True)


class ShardedState(TorchState):
    """Keeps one model and its optimizers as shards; schedules, generators and random states as `TorchState` does.

    It saves between two steps only, all processes at the same one. What one process holds of the model and of the
    optimizers' states is written by that process alone, in a folder `shards` of its checkpoint.

    Args:
        model: The model: any module, such as one that `fully_shard` has divided.
        parts: Optimizers, schedules and generators by name, as for `TorchState`.

    Raises:
        TypeError: A part is another module, or lacks `state_dict` or `load_state_dict`.
        RuntimeError: `torch.distributed` has not been initialised.
    """

    def __init__(self, model: torch.nn.Module, **parts: Any) -> None:
        if not (distributed.is_available() and distributed.is_initialized()):
            raise RuntimeError("shards are of several processes: call torch.distributed.init_process_group first")
        other = next((name for name, part in parts.items() if isinstance(part, torch.nn.Module)), None)
        if other is not None:
            raise TypeError(f"{other}: one module is kept as shards, the one that is given as model")
        super().__init__(model=model, **parts)
        self._model = model
        # Tensors that are divided cannot be compared by version: nothing is saved within a step.
        self._knows = False

    @property
    def ends_at(self) -> int | None:
        """None: only between steps it is known to be complete."""
        return None

    def save(self, folder: Path, *, within_step: bool) -> None:  # noqa: ARG002
        """Write this process's shards and `state.pt` into a folder; all processes call it at the same step."""
        content = {
            "parts": {name: part.state_dict() for name, part in self._rest().items()},
            "sharded": self._names(),
            "randoms": self._randoms_now().encode(),
            "epoch_randoms": self._epoch_randoms.encode(),
        }
        torch.save(content, folder / "state.pt")
        save(self._sharded(), storage_writer=FileSystemWriter(folder / _SHARDS, thread_count=1))

    def restore(self, folder: Path) -> None:
        """Read what this process needs from the shards of all, and `state.pt`; only plain values are unpickled.

        Raises:
            ValueError: The checkpoint has other parts than these, or lacks the list of its shards.
        """
        content = torch.load(folder / "state.pt", map_location="cpu", weights_only=True)
        if content.get("sharded") != self._names() or set(content["parts"]) != set(self._rest()):
            raise ValueError(
                f"{folder}: the checkpoint has {content.get('sharded', [])} as shards and "
                f"{sorted(content['parts'])}, the program keeps {self._names()} and {sorted(self._rest())}; keep "
                "the same, or begin with an empty checkpoint folder"
            )
        # The processes of one machine have a folder each; those of other machines are beside these.
        above = folder.parent if folder.name.startswith("process-") else folder
        found = sorted([*above.glob(f"{_SHARDS}/*"), *above.glob(f"process-*/{_SHARDS}/*")])
        if not any(file.name == _METADATA for file in found):
            raise ValueError(
                f"{above}: the checkpoint lacks the list of its shards, which the first process writes"
            )
        state = self._sharded()
        with tempfile.TemporaryDirectory() as together:
            for file in found:
                (Path(together) / file.name).symlink_to(file.resolve())
            load(state, storage_reader=FileSystemReader(together))
        set_model_state_dict(self._model, state["model"], options=_OPTIONS)
        for name, optimizer in self._optimizers.items():
            set_optimizer_state_dict(self._model, optimizer, state[name], options=_OPTIONS)
        for name, part in self._rest().items():
            part.load_state_dict(content["parts"][name])
        self._restored = {name: content[name] for name in ("randoms", "epoch_randoms")}
        self.rewind()
        self._epoch_randoms = RandomStates.decode(content["epoch_randoms"])
        self.mark()

    def mark(self) -> None:
        """Training can be resumed from here."""
        self._steps_before = self._steps

    def is_unchanged(self) -> bool:
        """False: what is divided is not compared."""
        return False

    def _names(self) -> list[str]:
        return ["model", *sorted(self._optimizers)]

    def _rest(self) -> dict[str, Any]:
        """The parts that every process keeps whole."""
        return {name: part for name, part in self._parts.items() if name not in self._names()}

    def _sharded(self) -> dict[str, Any]:
        """State of the model and the optimizers that this process holds, by name."""
        found: dict[str, Any] = {"model": get_model_state_dict(self._model, options=_OPTIONS)}
        for name, optimizer in self._optimizers.items():
            found[name] = get_optimizer_state_dict(self._model, optimizer, options=_OPTIONS)
        return found
