"""Broken variants of the live path, each with a defect that it once had: simulation must find them all.

`python -m tests.harness.deterministic.mutants REPORT.json` simulates with each until an invariant breaks.
A variant that is not found shows a gap in the simulation.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.harness.deterministic.faults import Faults
from tests.harness.deterministic.scenario import has_two_clouds
from tests.harness.deterministic.simulate import in_memory
from tests.harness.deterministic.team_mutants import TEAM_MUTANTS
from tests.harness.deterministic.world import simulate

from ebbtide.agent import heartbeats
from ebbtide.agent.agent import Agent
from ebbtide.agent.messages import MessageLog, Unreadable
from ebbtide.agent.program_output import Line, ProgramOutput
from ebbtide.agent.protocol import BadMessageError, Channel, Envelope, OfTrial, decoded
from ebbtide.agent.trainings import Trainings
from ebbtide.base.cores import in_processes
from ebbtide.base.files import write_text
from ebbtide.clouds.cloud import Instance
from ebbtide.clouds.settings import LiveSettings
from ebbtide.controller import leadership, machine_list, mailboxes
from ebbtide.controller.agent_provider import AgentProvider
from ebbtide.controller.controller import Controller
from ebbtide.controller.journal.changes import ChangeLog
from ebbtide.controller.kinds.training import AgentTraining
from ebbtide.controller.leadership import Leadership
from ebbtide.controller.machine_ends import MachineEnds
from ebbtide.controller.machine_list import MachineList
from ebbtide.controller.machine_requests import MachineRequests
from ebbtide.controller.team import quotas
from ebbtide.engine.engine import Engine
from ebbtide.errors import InputError, JournalError
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.policies.api.events import Event
from ebbtide.policies.budget import WithinBudget
from ebbtide.storage.checkpoints import store
from ebbtide.storage.checkpoints.manifest import Manifest
from ebbtide.storage.checkpoints.store import CheckpointStore, CheckpointWriter
from ebbtide.storage.objects import ObjectStore

# Runs after which a variant counts as not found.
_MOST_RUNS = 1_000

_Broken = AbstractContextManager[Any]


@dataclass(frozen=True)
class MutantFound:
    """Result of the search for one broken variant.

    Attributes:
        name: Name of the variant.
        runs_to_find: Runs until an invariant broke; None: none did.
        what: Name of the broken invariant.
        why: How the invariant broke, in words.
    """

    name: str
    runs_to_find: int | None
    what: str = ""
    why: str = ""


def _forgeries_are_believed() -> _Broken:
    def opened(self: Channel, values: Any) -> Envelope:
        try:
            return Envelope(values["boot"], values["count"], values["epoch"], decoded(values, self.kinds))
        except (TypeError, KeyError):
            raise BadMessageError("is no message") from None

    return patch.object(Channel, "open", opened)


def _a_torn_message_ends_the_controller() -> _Broken:
    before = MessageLog.new

    def new(self: MessageLog) -> Iterator[Envelope | Unreadable]:
        for found in before(self):
            if isinstance(found, Unreadable):
                raise ValueError(found.why)
            yield found

    return patch.object(MessageLog, "new", new)


def _an_old_report_is_of_the_present_training() -> _Broken:
    def member_of(self: AgentTraining, _lease: Lease, report: OfTrial) -> Any:
        trial, rank = self._by_id.get(report.trial, (None, 0))
        return None if trial is None or rank >= len(trial.members) else (trial, trial.members[rank])

    return patch.object(AgentTraining, "member_of", member_of)


def _what_was_lost_is_not_asked_for() -> _Broken:
    return patch.object(AgentTraining, "_ask_again", lambda _self, _trial: None)


def _a_machine_that_is_not_listed_runs_for_ever() -> _Broken:
    return patch.object(AgentProvider, "_missing", lambda _self, _lease: None)


def _a_request_that_is_not_listed_waits_for_ever() -> _Broken:
    before = AgentProvider._missing

    def missing(self: AgentProvider, lease: Lease) -> None:
        if lease.state is not LeaseState.REQUESTED:
            before(self, lease)

    return patch.object(AgentProvider, "_missing", missing)


def _a_forgotten_machine_is_charged_until_now() -> _Broken:
    return patch.object(MachineList, "last_seen_s", lambda self, _lease: self._cloud.now_s)


def _an_end_is_what_it_seemed_to_be() -> _Broken:
    def differs(self: MachineEnds, lease: Lease, _instance: Instance | None) -> bool:
        self.unended.pop(lease.lease_id, None)
        return False

    return patch.object(MachineEnds, "differs", differs)


def _what_ends_with_the_run_is_not_charged() -> _Broken:
    before = Engine._end

    def end(self: Engine, lease: Lease) -> None:
        if lease.is_open:
            before(self, lease)

    return patch.object(Engine, "_end", end)


def _a_training_told_done_twice_counts_twice() -> _Broken:
    before = Engine._job_done

    def done(self: Engine, job_id: int) -> None:
        was_done = job_id not in self._unfinished
        before(self, job_id)
        if was_done and self._unfinished:
            self._unfinished.pop()

    return patch.object(Engine, "_job_done", done)


def _a_resumed_policy_is_not_told_of_drained_machines() -> _Broken:
    def resume(self: Engine) -> None:
        self._gave_up = ""

    return patch.object(Engine, "resume", resume)


def _a_resumed_run_without_budget_waits() -> _Broken:
    before = WithinBudget.decide

    def decide(self: WithinBudget, view: Any) -> Any:
        return [] if view.memory.get("gave_up") else before(self, view)

    return patch.object(WithinBudget, "decide", decide)


def _the_budget_is_not_watched() -> _Broken:
    return patch.object(WithinBudget, "_watch", lambda _self, _view, _coming, _above: iter(()))


def _an_older_controller_acts_on() -> _Broken:
    return patch.object(Leadership, "check", lambda _self: None)


def _machines_need_no_heartbeat() -> _Broken:
    def watch(self: Agent) -> None:
        self._alive_s = self._runtime.monotonic_s()

    return patch.object(Agent, "_watch_controller", watch)


def _machines_are_rented_before_that_is_written_down() -> _Broken:
    def add(self: MachineRequests, lease: Lease) -> None:
        self.leases[lease.lease_id] = lease
        try:
            self._request(lease)
        except Exception:
            self.waiting.append(lease.lease_id)

    return patch.object(MachineRequests, "add", add)


def _a_full_disk_ends_the_run() -> _Broken:
    def write(self: Controller, states: dict[str, Any]) -> None:
        moments = self._moments()
        try:
            self._journal.keep(states, moments)
        except JournalError as error:
            raise InputError(f"the run's journal cannot be written: {error}") from None
        self._moments_kept += len(moments)

    return patch.object(Controller, "_write", write)


def _a_request_of_the_user_is_not_obeyed() -> _Broken:
    return patch.multiple(Controller, _obey=lambda _self, _engine: None, _polled=lambda _self: False)


def _failed_boots_are_counted_again() -> _Broken:
    before = AgentProvider._check_begins

    def check(self: AgentProvider, lease: Lease) -> None:
        self._began_s = 0.0
        before(self, lease)

    return patch.object(AgentProvider, "_check_begins", check)


def _uploads_cut_short_are_complete() -> _Broken:
    def move(self: CheckpointWriter, key: str, path: Path) -> None:
        self._objects.put_file(key, path)

    return patch.object(CheckpointWriter, "_move", move)


def _a_manifest_is_believed_wherever_it_lies() -> _Broken:
    def manifest(self: CheckpointStore, number: int) -> Manifest | None:
        try:
            return Manifest.decode(self.objects.get(f"{self.folder}/manifests/{number:08d}"))
        except (InputError, KeyError):
            return None

    return patch.object(CheckpointStore, "read", manifest)


def _every_object_has_a_number() -> _Broken:
    def numbers(objects: ObjectStore, folder: str) -> set[int]:
        return {int(key.removeprefix(f"{folder}/")) for key in objects.keys(f"{folder}/")}

    return patch.object(store, "numbers_below", numbers)


def _what_a_listing_does_not_show_is_removed() -> _Broken:
    def prune(self: CheckpointWriter, newest: Manifest, keep: int) -> None:
        kept = list(self._store.manifests())[:keep]
        wanted = {f"{manifest.number:08d}-{manifest.writer:06d}" for manifest in kept}
        prefix = f"{self._store.folder}/data/"
        for key in list(self._objects.keys(prefix)):
            name = key.removeprefix(prefix).split("/")[0]
            if int(name.partition("-")[0]) <= newest.number and name not in wanted:
                self._objects.delete(key)

    return patch.object(CheckpointWriter, "_prune", prune)


def _a_number_that_may_be_stored_is_written_again() -> _Broken:
    before = CheckpointWriter.save

    def save(self: CheckpointWriter, *arguments: Any, **given: Any) -> Manifest:
        number = self._next
        try:
            return before(self, *arguments, **given)
        except OSError:
            self._next = number
            raise

    return patch.object(CheckpointWriter, "save", save)


def _the_position_in_the_messages_is_not_written() -> _Broken:
    return patch.object(mailboxes, "_stamp", lambda _box: None)


def _of_events_told_together_the_first_is_all() -> _Broken:
    before = AgentProvider.burst

    def burst(self: AgentProvider) -> Sequence[Event]:
        before(self)
        return ()

    return patch.object(AgentProvider, "burst", burst)


def _trainings_begin_where_there_is_no_room() -> _Broken:
    def begin(self: Trainings) -> None:
        waiting, self._waiting = self._waiting, []
        for assignment in waiting:
            if assignment.trial_id in self._here:
                self._waiting.append(assignment)
            else:
                self._begin(assignment)

    return patch.object(Trainings, "_begin_what_fits", begin)


def _what_is_done_still_takes_room() -> _Broken:
    def has_room(self: Engine, lease_id: int, job_id: int) -> bool:
        on_it = self._jobs_on.get(lease_id, set()) | {job_id}
        return sum(self.jobs[number].job.share for number in on_it) <= 1.0 + 1e-9

    return patch.object(Engine, "_has_room", has_room)


def _a_name_lacks_the_fingerprint() -> _Broken:
    return patch.object(LiveSettings, "unique_name", property(lambda self: self.run))


def _heartbeats_need_no_seal() -> _Broken:
    return patch.object(heartbeats._Newest, "_is_sealed", lambda _self, _number: True)


def _all_that_a_program_prints_waits() -> _Broken:
    def add(self: ProgramOutput, line: Line) -> None:
        self._count += 1
        self._waiting[self._count] = line, self._count, 0

    return patch.object(ProgramOutput, "_add", add)


def _what_a_database_has_lost_is_not_written_again() -> _Broken:
    return patch.object(ChangeLog, "forget", lambda _self: None)


def _a_listing_shows_all_manifests() -> _Broken:
    return patch.object(CheckpointStore, "stored", lambda self: self.numbers("manifests"))


def _a_request_without_answer_costs_nothing() -> _Broken:
    def check_answered(self: AgentProvider, lease: Lease, _silent: Any) -> None:
        why = self._requests.unanswered(lease.lease_id, self._pace.missing_s)
        if why:
            self._requests.withdraw(lease.lease_id)
            self._ends.end(lease)
            self._launch_failed(lease, why)

    return patch.object(AgentProvider, "_check_answered", check_answered)


def _where_none_answers_the_wait_begins_anew() -> _Broken:
    before = MachineRequests.set_silent_aside

    def note(self: MachineRequests, within_s: float) -> None:
        before(self, within_s)
        if len(self._machines.silent_since_s) == len(self._cloud.markets):
            self._machines.silent_since_s.clear()

    return patch.object(MachineRequests, "set_silent_aside", note)


def _a_cloud_that_does_not_answer_is_asked_on() -> _Broken:
    return patch.object(MachineRequests, "set_silent_aside", lambda *_given, **_named: None)


def _a_silent_cloud_lists_all_its_machines() -> _Broken:
    return patch.object(machine_list.MachineList, "is_heard", lambda _self, _market: True)


def _what_is_read_once_is_what_is_stored() -> _Broken:
    def decoded(objects: ObjectStore, key: str, decode: Callable[[bytes], Any], content: Any = None) -> Any:
        return decode(objects.get(key) if content is None else content)

    each = ExitStack()
    for module in (quotas, leadership):
        each.enter_context(patch.object(module, "decoded_object", decoded))
    return each


_MUTANTS: Mapping[str, Callable[[], _Broken]] = {
    function.__name__.strip("_").replace("_", " "): function
    for function in (
        _forgeries_are_believed,
        _a_torn_message_ends_the_controller,
        _an_old_report_is_of_the_present_training,
        _what_was_lost_is_not_asked_for,
        _a_machine_that_is_not_listed_runs_for_ever,
        _a_request_that_is_not_listed_waits_for_ever,
        _a_forgotten_machine_is_charged_until_now,
        _an_end_is_what_it_seemed_to_be,
        _what_ends_with_the_run_is_not_charged,
        _a_training_told_done_twice_counts_twice,
        _a_resumed_policy_is_not_told_of_drained_machines,
        _a_resumed_run_without_budget_waits,
        _the_budget_is_not_watched,
        _an_older_controller_acts_on,
        _machines_need_no_heartbeat,
        _machines_are_rented_before_that_is_written_down,
        _a_full_disk_ends_the_run,
        _a_request_of_the_user_is_not_obeyed,
        _failed_boots_are_counted_again,
        _uploads_cut_short_are_complete,
        _a_manifest_is_believed_wherever_it_lies,
        _every_object_has_a_number,
        _what_a_listing_does_not_show_is_removed,
        _a_number_that_may_be_stored_is_written_again,
        _the_position_in_the_messages_is_not_written,
        _of_events_told_together_the_first_is_all,
        _trainings_begin_where_there_is_no_room,
        _what_is_done_still_takes_room,
        _a_name_lacks_the_fingerprint,
        *TEAM_MUTANTS,
        _heartbeats_need_no_seal,
        _all_that_a_program_prints_waits,
        _what_a_database_has_lost_is_not_written_again,
        _a_listing_shows_all_manifests,
        _a_request_without_answer_costs_nothing,
        _where_none_answers_the_wait_begins_anew,
        _a_cloud_that_does_not_answer_is_asked_on,
        _a_silent_cloud_lists_all_its_machines,
        _what_is_read_once_is_what_is_stored,
    )
}
# Variants that show only where there are two clouds.
_OF_TWO_CLOUDS = (
    "where none answers the wait begins anew",
    "a cloud that does not answer is asked on",
    "a silent cloud lists all its machines",
)
# Factors of faults for variants that need rare ones: several thousand runs as they are find each of these.
_OFTEN: Mapping[str, Mapping[str, float]] = {
    **{name: {"cloud: answers nothing": 3.0} for name in _OF_TWO_CLOUDS},
    "what is read once is what is stored": {"rival: answer cut off": 10.0, "controller: answer cut off": 10.0},
    "a request without answer costs nothing": {"controller: cloud no reply to launch": 20.0},
}
MUTANTS = tuple(_MUTANTS)


def broken(name: str) -> _Broken:
    """Apply the variant of this name, one of `MUTANTS`, inside a `with` block."""
    return _MUTANTS[name]()


def find(place: Path, most_runs: int, name: str) -> MutantFound:
    """Simulate with one variant, from seed 0 on, until an invariant breaks.

    Args:
        place: Folder for the files of runs.
        most_runs: Runs after which the variant counts as not found.
        name: Name of the variant, one of `MUTANTS`.
    """
    with broken(name):
        for seed in range(most_runs):
            if name in _OF_TWO_CLOUDS and not has_two_clouds(Faults(seed)):
                continue
            run = simulate(seed, place / name.replace(" ", "-"), often=_OFTEN.get(name))
            if run.violations:
                return MutantFound(name, seed + 1, run.violations[0].what, run.violations[0].why)
    return MutantFound(name, None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Look for all variants, and write the report; returns 1 if one was not found."""
    parser = argparse.ArgumentParser(description="Broken variants that simulation must find.")
    parser.add_argument("report", type=Path, help="JSON file of the report")
    given = parser.parse_args(arguments)
    with in_memory() as place:
        found = in_processes(partial(find, place, _MOST_RUNS), MUTANTS)
    report = {
        "mutants": len(found),
        "found": sum(one.runs_to_find is not None for one in found),
        "runs_to_find": {one.name: one.runs_to_find for one in found},
        "each": [asdict(one) for one in found],
    }
    write_text(given.report, json.dumps(report, indent=2) + "\n")
    for one in found:
        runs = "NOT FOUND" if one.runs_to_find is None else f"{one.runs_to_find:4d} runs"
        sys.stdout.write(f"{runs:>10}  {one.name}: {one.what}\n")
    return 0 if report["found"] == len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
