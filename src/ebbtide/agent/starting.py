"""Starting the program of a training: its folder, its environment, its command."""

from __future__ import annotations

from pathlib import Path

from ebbtide.agent.config import AgentConfig
from ebbtide.agent.core_shares import CoreShare
from ebbtide.agent.folders import PrivateFolder, link_checkpoints
from ebbtide.agent.inputs import inputs_beside
from ebbtide.agent.machine import OnLine, Program, RentedMachine
from ebbtide.agent.rendezvous import command_of, neighbours
from ebbtide.agent.work import AssignmentWork
from ebbtide.trial import AGENT, CHECKPOINT_DIR, INPUTS, MAX_STEPS, TRIAL_ID


def start_program(
    work: AssignmentWork, config: AgentConfig, machine: RentedMachine, code: Path, part: CoreShare, on_line: OnLine
) -> Program:
    """Start the program of a training that is restored.

    Args:
        work: The training.
        config: The configuration of the machine.
        machine: The machine.
        code: Folder with the user's code, if it has any.
        part: The part of the machine that it has.
        on_line: Called, from another thread, with what it prints.

    Raises:
        OSError: There is no such executable.
        ValueError: The command or environment has text that no operating system accepts.
    """
    assignment = work.assignment
    environment = {
        # Without a terminal Python buffers lines: metrics would come late, or out of order.
        "PYTHONUNBUFFERED": "1",
        # Without a terminal Rich, with which Lightning shows its progress, prints none before the end.
        "TTY_COMPATIBLE": "1",
        "TTY_INTERACTIVE": "1",
        **part.environment,
        **assignment.environment,
        TRIAL_ID: assignment.trial_id,
        CHECKPOINT_DIR: str(work.folder),
        AGENT: "1",
    }
    if assignment.inputs:
        environment[INPUTS] = str(inputs_beside(code))
    if assignment.max_steps:
        environment[MAX_STEPS] = str(assignment.max_steps)
    environment |= neighbours(assignment, bytes.fromhex(config.key), config.store)
    arguments = [part.replace("{checkpoint_dir}", str(work.folder)) for part in command_of(assignment)]
    runs_in = _private(work, code)
    if assignment.checkpoints:
        link_checkpoints(runs_in, assignment.checkpoints, work.folder)
    return machine.start(arguments, environment, runs_in, on_line, part.cores)


def _private(work: AssignmentWork, code: Path) -> Path:
    """Make the folder that the program runs in, which no other program uses."""
    assignment, place = work.assignment, work.folder.parent / "code"
    if assignment.code:
        work.private = PrivateFolder(place, code=code)
    elif assignment.cwd:
        work.private = PrivateFolder(place, linked=Path(assignment.cwd))
    else:
        return work.folder.parent
    return work.private.path
