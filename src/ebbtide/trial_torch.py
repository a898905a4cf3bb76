"""Checkpoints of PyTorch training, for `ebbtide.trial`: everything that the next step depends on, bit for bit."""

from __future__ import annotations

import random
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import distributed

from ebbtide.trial_processes import NOTHING, Agreement

# In so many steps, changes after the optimizer's step are detected by content; changes through `.data` can be
# detected in no other way.
_CHECKED_STEPS = 2
_EPOCH, _HERE = "epoch_randoms", "randoms"


class Stateful(Protocol):
    """A model, an optimizer, a schedule: anything with a state."""

    def state_dict(self) -> dict[str, Any]:
        """The state: tensors and plain values by name."""
        ...

    def load_state_dict(self, state_dict: Any) -> Any:
        """Set the state to one that `state_dict` gave."""
        ...


class TorchState:
    """Keeps models, optimizers, schedules, accumulated gradients and random states: PyTorch's (with all CUDA
    devices), Python's and NumPy's.

    Between steps everything can be saved. Within a step, training is saved only where its state is known to be
    complete: there is one optimizer, it has all parameters of the modules, the program has made exactly one
    optimizer step in each of its steps and changed nothing after it, and the moment is between the optimizer's
    step and the next forward pass in training mode or with gradients. With anything else (averaged weights, a
    schedule, a gradient scaler, two optimizers, accumulated gradients) a notice waits for the end of the step.

    Args:
        parts: The parts by name, such as `model=model, optimizer=optimizer, schedule=schedule`; also generators of
            random numbers, `torch.Generator` and `numpy.random.Generator`.

    Raises:
        TypeError: A part is no generator, and lacks `state_dict` or `load_state_dict`.
    """

    def __init__(self, **parts: Any) -> None:
        parts = {name: _unwrapped(part) for name, part in parts.items()}
        self._generators = {name: part for name, part in parts.items() if _is_generator(part)}
        self._parts: dict[str, Any] = {name: part for name, part in parts.items() if name not in self._generators}
        for name, part in self._parts.items():
            if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
                kind = type(part).__name__
                raise TypeError(f"{name}: a {kind} has no state_dict and load_state_dict to be kept by")
        self._optimizers = {
            name: part for name, part in self._parts.items() if isinstance(part, torch.optim.Optimizer)
        }
        self._modules = [part for part in self._parts.values() if isinstance(part, torch.nn.Module)]
        self._knows = self._is_simple()
        self._steps = self._steps_before = 0
        self._ended = 0
        self._whole = True
        self._contents: list[int] | None = None
        self._mark: list[Any] | None = None
        # Names of optimizers whose gradients may be partly accumulated.
        self._accumulating = set(self._optimizers)
        self._not_whole_since_s = 0.0
        self._slowest_s = 0.0
        self._randoms = self._epoch_randoms = self._randoms_now()
        self._light = self._light_now()
        self._restored: dict[str, Any] = {}
        for name, optimizer in self._optimizers.items():
            optimizer.register_step_post_hook(lambda *_, name=name: self._stepped(name))
        for module in self._modules:
            module.register_forward_pre_hook(self._entered)

    # As a keeper.

    @property
    def ends_at(self) -> int | None:
        """Optimizer steps so far, if the kept state is exactly theirs; else None."""
        if not self._knows or not self._whole or (self._steps and not self._ended):
            return None
        after_step = self._steps > self._steps_before
        if self._light_now() != self._light or (after_step and self._randoms_now() != self._randoms):
            return None
        return self._steps

    def save(self, folder: Path, *, within_step: bool) -> None:
        """Write `state.pt` into a folder."""
        # Training that resumes from within a step draws the same random numbers again.
        here = self._randoms if within_step else self._randoms_now()
        content = {
            "parts": {name: part.state_dict() for name, part in self._parts.items()},
            "gradients": {name: _gradients(self._optimizers[name]) for name in sorted(self._accumulating)},
            "knows": self._knows,
            _HERE: here.encode(),
            _EPOCH: self._epoch_randoms.encode(),
        }
        torch.save(content, folder / "state.pt")

    def restore(self, folder: Path) -> None:
        """Read `state.pt` from a folder; only tensors and plain values are unpickled.

        Raises:
            ValueError: The checkpoint has other parts than these.
        """
        content = torch.load(folder / "state.pt", map_location="cpu", weights_only=True)
        if set(content["parts"]) != set(self._parts):
            raise ValueError(
                f"{folder}: the checkpoint has {sorted(content['parts'])}, the program keeps "
                f"{sorted(self._parts)}; keep the same, or begin with an empty checkpoint folder"
            )
        for name, part in self._parts.items():
            part.load_state_dict(content["parts"][name])
        for name, optimizer in self._optimizers.items():
            _set_gradients(optimizer, content.get("gradients", {}).get(name))
        self._accumulating = set(content.get("gradients", {}))
        self._knows = self._knows and content.get("knows", True)
        self._restored = {name: content[name] for name in (_HERE, _EPOCH) if name in content}
        self.rewind()
        self._epoch_randoms = RandomStates.decode(self._restored.get(_EPOCH, self._restored[_HERE]))
        self.mark()

    # As a keeper of epochs.

    def agreement(self) -> Agreement | None:
        """Return the agreement between processes of `torch.distributed`; None: there is one process."""
        if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
            return None
        return TorchAgreement()

    def step_ended(self) -> None:
        """Check that the step had exactly one optimizer step, and that nothing changed after it."""
        if self._knows:
            self._knows = (
                self._steps == self._steps_before + 1
                and self._whole
                and self._light_now() == self._light
                and self._randoms_now() == self._randoms
                and (self._contents is None or self._contents == self._contents_now())
            )
        self._steps_before = self._steps
        self._ended += 1
        self._contents = None

    def mark(self) -> None:
        """Remember the state: training can be resumed from here."""
        self._whole = True
        self._steps_before = self._steps
        self._light, self._randoms = self._light_now(), self._randoms_now()
        self._mark = self._everything()

    def is_unchanged(self) -> bool:
        """Return whether nothing has changed since the mark; a part that cannot be compared counts as changed."""
        return self._mark is not None and self._mark == self._everything()

    def epoch_began(self, loader: object) -> None:
        """Remember the random states from which the loader's order follows, with the loader's own generators."""
        self.watch(loader)
        self._epoch_randoms = self._randoms_now()

    def rewind(self, loader: object = None, *, to_epoch: bool = False) -> None:
        """Set random states to those of the restored checkpoint, or of the start of its epoch."""
        self.watch(loader)
        if self._restored:
            RandomStates.decode(self._restored[_EPOCH if to_epoch else _HERE]).set(self._generators)

    def slowest_wait_s(self) -> float | None:
        """Longest seconds from a forward pass to the optimizer's step; None: saves happen only between steps."""
        slowest_s, self._slowest_s = self._slowest_s, 0.0
        return slowest_s if self._knows and self._ended else None

    def watch(self, *loaders: object) -> int:
        """Also keep the generators of loaders' own, and where loaders count epochs their counts; returns how many
        were not known."""
        known = {id(generator) for generator in self._generators.values()}
        before = len(known)
        for loader in loaders:
            for name in ("", "sampler", "batch_sampler"):
                owner = getattr(loader, name, None) if name else loader
                generator = getattr(owner, "generator", None)
                if _is_generator(generator) and id(generator) not in known:
                    taken = sum(own.startswith(f"loader.{name}") for own in self._generators)
                    self._generators[f"loader.{name}" + (f".{taken}" if taken else "")] = generator
                    known.add(id(generator))
            if _counts_epochs(loader) and id(loader) not in known:
                taken = sum(own.startswith("epochs.") for own in self._generators)
                self._generators[f"epochs.{taken}"] = loader
                known.add(id(loader))
        return len(known) - before

    # What is known.

    def _is_simple(self) -> bool:
        """Return whether there is one optimizer with all parameters of the modules, and no other part."""
        if len(self._optimizers) != 1 or len(self._modules) + 1 != len(self._parts):
            return False
        (optimizer,) = self._optimizers.values()
        its = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        return all(id(parameter) in its for module in self._modules for parameter in module.parameters())

    def _stepped(self, name: str) -> None:
        self._steps += 1
        self._accumulating.discard(name)
        if not self._modules:
            self._accumulating.add(name)  # no forward pass is seen
        if not self._knows:
            return
        if not self._whole and self._ended:
            self._slowest_s = max(self._slowest_s, time.monotonic() - self._not_whole_since_s)
        self._light, self._randoms = self._light_now(), self._randoms_now()
        self._contents = self._contents_now() if self._ended < _CHECKED_STEPS else None
        # Last: at a signal before this, the state does not count as complete.
        self._whole = True

    def _entered(self, module: torch.nn.Module, _: Any) -> None:
        if module.training or torch.is_grad_enabled():
            self._accumulating.update(self._optimizers)
            if self._whole:
                self._whole = False
                self._not_whole_since_s = time.monotonic()

    def _light_now(self) -> list[Any]:
        """Version counters of all tensors, which change with them, and the optimizers' settings."""
        return (
            [
                [tensor._version for tensor in self._tensors()],
                [
                    [(name, _comparable(value)) for name, value in group.items() if name != "params"]
                    for optimizer in self._optimizers.values()
                    for group in optimizer.param_groups
                ],
            ]
            if self._knows
            else []
        )

    def _tensors(self) -> Iterator[torch.Tensor]:
        for module in self._modules:
            yield from module.parameters()
            yield from module.buffers()

    def _contents_now(self) -> list[int]:
        return [_content(tensor) for tensor in self._tensors()]

    def _everything(self) -> list[Any]:
        """Addresses and version counters of all kept tensors; those without an optimizer also by content."""
        optimized = {
            id(parameter)
            for optimizer in self._optimizers.values()
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        extra = [_content(tensor) for tensor in self._tensors() if id(tensor) not in optimized]
        states = [_comparable(part.state_dict()) for part in self._parts.values()]
        gradients = [_comparable(_gradients(self._optimizers[name])) for name in sorted(self._accumulating)]
        return [self._steps, extra, states, gradients]

    def _randoms_now(self) -> RandomStates:
        return RandomStates.now(self._generators)


class TorchAgreement:
    """An agreement by `torch.distributed`: what is told at one step is answered at the next; no step waits for it.

    It has a group of its own, by CPU: it waits for nothing that a GPU is at.
    """

    def __init__(self) -> None:
        self._group = distributed.new_group(backend="gloo")
        self._told = torch.zeros(1, dtype=torch.int64)
        self._under_way: Any = None

    def highest(self, wish: int) -> int:
        answered = self._answered()
        self._told = torch.tensor([wish])
        self._under_way = distributed.all_reduce(
            self._told, op=distributed.ReduceOp.MAX, group=self._group, async_op=True
        )
        return answered

    def highest_now(self, number: int) -> int:
        told = torch.tensor([number])
        distributed.all_reduce(told, op=distributed.ReduceOp.MAX, group=self._group)
        return int(told.item())

    def end(self) -> None:
        self._answered()

    def _answered(self) -> int:
        if self._under_way is None:
            return NOTHING
        self._under_way.wait()
        self._under_way = None
        return int(self._told.item())


@dataclass(frozen=True, eq=False)
class RandomStates:
    """The states of all random number generators at one moment.

    Attributes:
        cpu: State of PyTorch's CPU generator, a tensor of bytes.
        python: State of Python's `random` module.
        numpy: State of NumPy's global generator; None: the program has not imported NumPy.
        cuda: State of each CUDA device's generator; empty if CUDA is not in use.
        generators: States of the program's own generators, by name.
    """

    cpu: torch.Tensor
    python: tuple[Any, ...]
    numpy: tuple[Any, ...] | None = None
    cuda: list[torch.Tensor] = field(default_factory=list)
    generators: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def now(cls, generators: Mapping[str, Any]) -> RandomStates:
        """The present states.

        Args:
            generators: The program's own generators by name.
        """
        numpy = sys.modules.get("numpy")
        cuda = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return cls(
            torch.get_rng_state(),
            random.getstate(),
            numpy.random.get_state() if numpy is not None else None,
            torch.cuda.get_rng_state_all() if cuda else [],
            {name: _generator_state(generator) for name, generator in generators.items()},
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RandomStates):
            return NotImplemented
        return self.python == other.python and all(
            _same(mine, its)
            for mine, its in (
                (self.cpu, other.cpu),
                (self.numpy, other.numpy),
                (self.cuda, other.cuda),
                (self.generators, other.generators),
            )
        )

    def encode(self) -> dict[str, Any]:
        """The states as tensors and plain values, for `torch.save`."""
        version, internal, gauss = self.python
        return {
            "torch": self.cpu,
            "python": [version, list(internal), gauss],
            "numpy": _plain(self.numpy),
            "cuda": self.cuda,
            "generators": _plain(self.generators),
        }

    @classmethod
    def decode(cls, content: Mapping[str, Any]) -> RandomStates:
        """Decode what `encode` gave."""
        version, internal, gauss = content["python"]
        numpy = _unplain(content.get("numpy"))
        return cls(
            content["torch"],
            (version, tuple(internal), gauss),
            tuple(numpy) if numpy is not None else None,
            content.get("cuda", []),
            _unplain(content.get("generators", {})),
        )

    def set(self, generators: Mapping[str, Any]) -> None:
        """Set all generators to these states; CUDA's only if the number of devices is the same.

        Args:
            generators: The program's own generators by name.
        """
        torch.set_rng_state(self.cpu)
        random.setstate(self.python)
        if self.numpy is not None:
            import numpy as np

            np.random.set_state(self.numpy)  # noqa: NPY002
        if self.cuda:
            if torch.cuda.is_available() and torch.cuda.device_count() == len(self.cuda):
                torch.cuda.set_rng_state_all(self.cuda)
            else:
                warnings.warn(
                    f"the checkpoint has random states of {len(self.cuda)} CUDA devices, this machine has "
                    f"{torch.cuda.device_count()}: they are not restored",
                    stacklevel=2,
                )
        for name, state in self.generators.items():
            generator: Any = generators.get(name)
            if isinstance(generator, torch.Generator):
                generator.set_state(state)
            elif _counts_epochs(generator):
                generator.iteration = state
            elif generator is not None:
                generator.bit_generator.state = state


def _unwrapped(part: Any) -> Any:
    """The optimizer in one that Accelerate has prepared, which calls it and knows no hooks of its own."""
    inner = getattr(part, "optimizer", None)
    is_prepared = isinstance(part, torch.optim.Optimizer) and isinstance(inner, torch.optim.Optimizer)
    return inner if is_prepared else part


def _is_generator(part: object) -> bool:
    # NumPy's generators are recognised by an attribute, since NumPy may not be installed.
    return isinstance(part, torch.Generator) or hasattr(part, "bit_generator")


def _counts_epochs(loader: object) -> bool:
    """Return whether a loader is Accelerate's, whose order may follow from the epochs that it counts."""
    return hasattr(loader, "set_epoch") and isinstance(getattr(loader, "iteration", None), int)


def _generator_state(generator: Any) -> Any:
    if _counts_epochs(generator):
        return generator.iteration
    return generator.get_state() if isinstance(generator, torch.Generator) else generator.bit_generator.state


def _same(mine: Any, its: Any) -> bool:
    """Return whether two values are equal, with arrays and tensors compared by content."""
    if isinstance(mine, torch.Tensor):
        return isinstance(its, torch.Tensor) and torch.equal(mine, its)
    if isinstance(mine, dict):
        alike = isinstance(its, dict) and mine.keys() == its.keys()
        return alike and all(_same(mine[key], its[key]) for key in mine)
    if isinstance(mine, list | tuple):
        return type(mine) is type(its) and len(mine) == len(its) and all(map(_same, mine, its))
    if hasattr(mine, "tobytes"):
        return hasattr(its, "tobytes") and bool(mine.tobytes() == its.tobytes())
    return bool(mine == its)


def _plain(value: Any) -> Any:
    """The value without NumPy arrays, which `torch.load` with `weights_only` does not read."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if hasattr(value, "dtype") and not isinstance(value, torch.Tensor):
        return {"array of": str(value.dtype), "values": value.tolist()}
    return value


def _unplain(value: Any) -> Any:
    if isinstance(value, dict) and "array of" in value:
        import numpy as np

        return np.array(value["values"], dtype=value["array of"])
    if isinstance(value, dict):
        return {key: _unplain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_unplain(one) for one in value]
    return value


def _gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor | None]:
    return [parameter.grad for group in optimizer.param_groups for parameter in group["params"]]


def _set_gradients(optimizer: torch.optim.Optimizer, gradients: list[torch.Tensor | None] | None) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for parameter, gradient in zip(parameters, gradients or [None] * len(parameters), strict=True):
        parameter.grad = None if gradient is None else gradient.to(parameter.device)


def _comparable(value: Any) -> Any:
    """A value that can be compared with a later one; a tensor becomes its address and version counter."""
    if isinstance(value, torch.Tensor):
        return ("tensor", value.data_ptr(), tuple(value.shape), None if value.is_inference() else value._version)
    if isinstance(value, Mapping):
        return [(key, _comparable(one)) for key, one in value.items()]
    if isinstance(value, list | tuple):
        return [_comparable(one) for one in value]
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return repr(value)
    # An unknown type: it equals only itself.
    return object()


def _content(tensor: torch.Tensor) -> int:
    """Sum over the bytes of a tensor."""
    plain = tensor.detach()
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    return int(plain.contiguous().flatten().view(torch.uint8).to(torch.int64).sum())
