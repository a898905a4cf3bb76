"""What an agent is told at its start, and what it is told to train."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ebbtide.errors import InputError


@dataclass(frozen=True)
class AgentConfig:
    """One machine's.

    Attributes:
        run: The run that rented it.
        machine: Its id there.
        store: Where checkpoints, orders and reports are: a folder, or s3://bucket/prefix.
        folder: On this machine, for what it works on.
        bundle: Key in the store of the archive that the agent runs from; its name has the SHA-256 of its content.
            Empty: it runs from where Ebbtide is installed.
        metadata_url: Where instance metadata are; empty: where AWS_EC2_METADATA_SERVICE_ENDPOINT says on the
            machine, or else where EC2 has them.
        poll_s: Between looks for orders.
        notice_poll_s: Between looks at the metadata; EC2 says every five seconds.
        report_s: Reports are gathered for so long.
        controller_limit_s: Without a sign of the controller for so long it saves and ends its machine.
        first_save_s: What saving may take, before any took place.
        margin_s: Kept of a notice beside what saving needs.
    """

    run: str
    machine: str
    store: str
    folder: str
    bundle: str = ""
    metadata_url: str = ""
    poll_s: float = 5.0
    notice_poll_s: float = 5.0
    report_s: float = 5.0
    controller_limit_s: float = 900.0
    first_save_s: float = 30.0
    margin_s: float = 5.0

    def encode(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, path: Path) -> AgentConfig:
        """From a file.

        Raises:
            InputError: It is missing, or no such configuration.
        """
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise InputError("there is no configuration of an agent", file=path) from None
        except (ValueError, TypeError) as error:
            raise InputError(f"is no configuration of an agent: {error}", file=path) from None


@dataclass(frozen=True)
class Assignment:
    """Train this trial.

    Attributes:
        trial_id: Stable over all moves; also in the program's environment.
        arguments: The command.
        max_steps: Of the trial; 0: not known, it ends when its program does.
        metric: The name of its metric in what it reports.
        environment: More variables.
        mttr_s: How long machines of this market live in the mean: how often to save follows from it.
        keep: How many checkpoints stay.
        aside: Numbers of checkpoints that training fails from: not to be gone on from.
        cwd: A folder here whose entries are linked to from the one that the program runs in; empty: none.
        code: Key in the store of an archive of the user's code, of which it runs in a copy instead; empty: none.
        checkpoints: Below where it runs, the folder that the program uses for its checkpoints; empty: the one that
            it is told.
        reads_log: What it prints for people tells how far it is, if it reports nothing else.
        attempt: Counted by the controller; told back, so that an answer is known to be to this.
    """

    trial_id: str
    arguments: tuple[str, ...]
    max_steps: int
    metric: str
    environment: Mapping[str, str] = field(default_factory=dict)
    mttr_s: float = 6 * 3600.0
    keep: int = 2
    aside: tuple[int, ...] = ()
    cwd: str = ""
    code: str = ""
    checkpoints: str = ""
    reads_log: bool = False
    attempt: int = 0

    def encode(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self) | {"arguments": list(self.arguments), "aside": list(self.aside)}

    @classmethod
    def decode(cls, content: Mapping[str, Any]) -> Assignment:
        """From what `encode` gave. Fields that this version does not know are left out: a controller that goes on
        with a run may be newer than the agents of machines that it finds."""
        known = {name: content[name] for name in cls.__dataclass_fields__ if name in content}
        return cls(**{**known, "arguments": tuple(content["arguments"]), "aside": tuple(content["aside"])})
