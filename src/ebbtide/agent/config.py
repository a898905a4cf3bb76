"""The configuration that an agent starts with, and the assignments that it is given."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ebbtide.agent.inputs import Input
from ebbtide.errors import InputError


@dataclass(frozen=True)
class AgentConfig:
    """The configuration of one machine's agent.

    Attributes:
        run: Id of the run that rented the machine.
        machine: Id of the machine in that run.
        store: Folder or `s3://bucket/prefix` with checkpoints, orders and reports.
        folder: Folder on this machine in which the agent works.
        bundle: Key in the store of the archive that the agent runs from; its name has the SHA-256 of its content.
            Empty: the agent runs from where Ebbtide is installed.
        metadata_of: Cloud whose instance metadata the machine has: `aws`, as the local cloud has, or `gcp`.
        metadata_url: Address of the instance metadata; empty: that in AWS_EC2_METADATA_SERVICE_ENDPOINT or
            GCE_METADATA_HOST on the machine, or else the cloud's own.
        notice_s: Seconds between a notice and the revocation, if the metadata do not state the time.
        longest_notice_s: The most seconds between a notice and the revocation, whatever clocks say.
        poll_s: Seconds between looks for orders.
        notice_poll_s: Seconds between looks at the metadata; EC2 recommends five.
        report_s: Seconds for which reports are gathered.
        tick_s: Seconds between looks at the training itself.
        controller_limit_s: Seconds without a heartbeat after which the agent saves and ends its machine.
        first_save_s: Seconds that saving is assumed to take until it is measured.
        margin_s: Seconds of a notice kept in reserve beside what saving needs.
        pins_cores: Whether each training that shares the machine is pinned to its own cores. Off in the local
            cloud, whose machines are one computer.
        key: Key that seals messages between the machine and its controller, in hexadecimal digits.
    """

    run: str
    machine: str
    store: str
    folder: str
    bundle: str = ""
    metadata_of: str = "aws"
    metadata_url: str = ""
    notice_s: float = 30.0
    longest_notice_s: float = 120.0
    poll_s: float = 5.0
    notice_poll_s: float = 5.0
    report_s: float = 5.0
    tick_s: float = 0.05
    controller_limit_s: float = 900.0
    first_save_s: float = 30.0
    margin_s: float = 5.0
    pins_cores: bool = False
    key: str = field(default="", repr=False)

    def encode(self) -> str:
        """The configuration as JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, path: Path) -> AgentConfig:
        """Read a configuration from a JSON file.

        Raises:
            InputError: The file is missing, or holds no such configuration.
        """
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise InputError("there is no configuration of an agent", file=path) from None
        except (ValueError, TypeError) as error:
            raise InputError(f"is no configuration of an agent: {error}", file=path) from None


@dataclass(frozen=True)
class Assignment:
    """The order to train one trial.

    Attributes:
        trial_id: Id of the trial, the same on every machine; also in the program's environment.
        arguments: The program's command line, one argument an entry.
        max_steps: Steps of the whole trial; 0: not known, it ends when its program does.
        metric: Name of the trial's metric in what the program reports.
        environment: Variables that are added to the program's environment.
        mttr_s: Mean seconds until a machine of this market is revoked; how often to save follows from it.
        keep: How many checkpoints stay in storage.
        aside: Numbers of checkpoints that must not be resumed from, because training failed from them.
        expected: Number of the newest checkpoint that is known to be stored; 0: none is. Storage that has neither
            it nor a later one is not the run's storage: it may not be mounted.
        cwd: Folder on this machine whose entries are linked into the program's folder; empty: none.
        code: Key in the store of an archive of the user's code, which is unpacked there instead; empty: none.
        checkpoints: Path of the program's own checkpoint folder, below the folder that it runs in; empty: it
            writes to the folder that it is given.
        reads_log: Whether progress is read from lines printed for people, if the program reports nothing else.
        progress: The user's pattern for such lines; empty: known formats are recognised.
        attempt: Number of the assignment, counted by the controller; reports carry it, to show what they answer.
        addresses: Addresses of all machines that train it as one (a gang), by rank; empty: one machine trains it.
        rank: Rank of this machine in the gang, from 0.
        port: Port at which the gang meets, on the machine of rank 0; the next seven are reserved for it, too.
        resume: Parts of the checkpoint to resume from, as trial ids and numbers. This machine's part is first;
            only files that it lacks are taken from the others. None: the newest checkpoint of the trial.
        secret: Secret that only the machines of the gang or cluster know, covered by this machine's key; empty:
            there is none.
        framework: Framework of the cluster, in which the machine of rank 0 is the head, and others are workers;
            empty: it is no cluster.
        side_by_side: Number of tasks of an array that the machine runs at a time, each a call of the program; 0:
            it is no array.
        inputs: Stored results of the jobs that its job needs, fetched before it begins.
        share: The share of the machine that it fills, at most 1; others may be trained beside it.
        secrets: Names of the environment variables whose values are sealed.
        sealed: Their values, encrypted with this machine's key; empty: there are none, or they are opened.
        direction: Whether a lower or a higher metric is better, `minimize` or `maximize`; the checkpoint with the
            best value stays in storage. Empty: no checkpoint counts as best.
        best: Number of this machine's part of the gang's best checkpoint, which stays in storage; 0: there is
            none.
    """

    trial_id: str
    arguments: tuple[str, ...]
    max_steps: int
    metric: str
    environment: Mapping[str, str] = field(default_factory=dict)
    mttr_s: float = 6 * 3600.0
    keep: int = 2
    aside: tuple[int, ...] = ()
    expected: int = 0
    cwd: str = ""
    code: str = ""
    checkpoints: str = ""
    reads_log: bool = False
    progress: str = ""
    attempt: int = 0
    addresses: tuple[str, ...] = ()
    rank: int = 0
    port: int = 0
    resume: tuple[tuple[str, int], ...] | None = None
    secret: str = field(default="", repr=False)
    framework: str = ""
    side_by_side: int = 0
    inputs: tuple[Input, ...] = ()
    share: float = 1.0
    direction: str = ""
    secrets: tuple[str, ...] = ()
    sealed: str = field(default="", repr=False)
    best: int = 0

    @property
    def machines(self) -> int:
        """Number of machines that train it as one."""
        return 1 if self.framework else max(len(self.addresses), 1)

    def encode(self) -> dict[str, Any]:
        """The assignment as plain values, for a message."""
        return {
            **vars(self),
            "arguments": list(self.arguments),
            "environment": dict(self.environment),
            "aside": list(self.aside),
            "secrets": list(self.secrets),
            "addresses": list(self.addresses),
            "resume": None if self.resume is None else [list(part) for part in self.resume],
            "inputs": [each.encode() for each in self.inputs],
        }

    @classmethod
    def decode(cls, content: Mapping[str, Any]) -> Assignment:
        """Decode what `encode` gave. Unknown fields are ignored: a controller that resumes a run may be newer than
        the agents of machines that it finds."""
        known = {name: content[name] for name in cls.__dataclass_fields__ if name in content}
        known |= {
            name: tuple(known[name]) for name in ("arguments", "aside", "addresses", "secrets") if name in known
        }
        if known.get("resume") is not None:
            known["resume"] = tuple((str(trial), int(number)) for trial, number in known["resume"])
        known["inputs"] = tuple(map(Input.decode, known.get("inputs", ())))
        return cls(**known)
