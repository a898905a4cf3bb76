"""The parity test: each registered policy on the same tapes, in replay and live, decision by decision.

python -m tests.harness.parity.parity reports/parity.json

The live run is the real one (`AgentProvider`, its orders and reports) but for clock, machines and storage. Every
call of `decide` is compared: its time, its events and its actions, in order; and every line of the ledger.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.harness.parity.decisions import Difference, Recorded, differences, ledger_difference_usd
from tests.harness.parity.tape_cloud import run_live
from tests.harness.parity.tapes import BILLINGS, Tape, scenario_of, small_bundle, tapes, work_for

from ebbtide.base.cores import one_thread
from ebbtide.base.files import write_text
from ebbtide.engine.outcome import Outcome
from ebbtide.forecasts.bundle import ModelBundle
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.registry import POLICIES, policy
from ebbtide.replay.scenario import Scenario

# Runs a scenario live, with a policy, from a start.
RunLive = Callable[[Scenario, Policy, float], Outcome]


@dataclass(frozen=True)
class Parity:
    """Comparison of a replay and a live run: one policy on one tape.

    Attributes:
        policy: Name of the policy in the registry.
        tape: Name of the tape, and of the billing preset.
        decisions: Number of decisions in the replay.
        differences: Decisions that differ.
        ledger_difference_usd: USD by which the ledgers differ, summed over lines.
        cost_usd: Cost in the replay, USD.
        revocations: Number of revoked machines in the replay.
        finished: Whether both runs finished all jobs.
    """

    policy: str
    tape: str
    decisions: int
    differences: tuple[Difference, ...]
    ledger_difference_usd: float
    cost_usd: float
    revocations: int
    finished: bool

    @property
    def is_same(self) -> bool:
        """True if neither decisions nor ledgers differ."""
        return not self.differences and not self.ledger_difference_usd


def compare(
    name: str, scenario: Scenario, tape: str, start_s: float, made: Policy, live: RunLive = run_live
) -> Parity:
    """Run a policy on one tape in replay and live, and compare.

    Args:
        name: Name of the policy in the report.
        scenario: The scenario to run.
        tape: Name of the tape in the report.
        start_s: Start of both runs, seconds since 1970.
        made: The policy.
        live: Makes the live run.
    """
    replayed, lived = Recorded(made), Recorded(made)
    one = scenario.run(replayed, start_s, record=True)
    other = live(scenario, lived, start_s)
    return Parity(
        name,
        tape,
        len(replayed.decisions),
        tuple(differences(replayed.decisions, lived.decisions)),
        ledger_difference_usd(one.ledger, other.ledger),
        one.cost_usd,
        one.revocations,
        one.finished and other.finished,
    )


def compare_all(
    models: ModelBundle, on: Iterable[tuple[str, Tape, str]], live: RunLive = run_live
) -> list[Parity]:
    """Compare registered policies.

    Args:
        models: Models for policies that use a bundle.
        on: Name of each policy, with a tape and the name of a billing preset.
        live: Makes the live runs.
    """
    with one_thread():
        return [
            compare(
                name,
                scenario_of(name, tape, billing),
                f"{tape.name}, {billing}",
                tape.start_s,
                policy(name, models),
                live,
            )
            for name, tape, billing in on
        ]


def report_of(found: Sequence[Parity]) -> dict[str, object]:
    """Return the report of comparisons, as plain values."""
    names = list(dict.fromkeys(each.policy for each in found))
    return {
        "policies": names,
        "tapes": list(dict.fromkeys(each.tape for each in found)),
        "decisions": sum(each.decisions for each in found),
        "differing_decisions": sum(len(each.differences) for each in found),
        "ledger_difference_usd": sum(each.ledger_difference_usd for each in found),
        "work": {name: work_for(name) for name in names},
        "details": [
            {
                "policy": each.policy,
                "tape": each.tape,
                "decisions": each.decisions,
                "differing_decisions": len(each.differences),
                "first_difference": str(each.differences[0]) if each.differences else None,
                "ledger_difference_usd": each.ledger_difference_usd,
                "cost_usd": each.cost_usd,
                "revocations": each.revocations,
                "finished": each.finished,
            }
            for each in found
        ],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare every registered policy on every tape, write the report, and print a table of it.

    Returns:
        The exit code: 1 where anything differs.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", type=Path, nargs="?", default=Path("reports/parity.json"))
    parser.add_argument("--policies", nargs="*", default=list(POLICIES), help="names; all by default")
    parser.add_argument(
        "--tapes", nargs="*", default=[tape.name for tape in tapes()], help="names; all by default"
    )
    options = parser.parse_args(arguments)
    used = [tape for tape in tapes() if tape.name in options.tapes]
    found = []
    with tempfile.TemporaryDirectory(prefix="ebbtide-parity-") as folder:
        models = small_bundle(tapes()[0].known, Path(folder) / "models")
        for name in options.policies:
            began_s = time.monotonic()
            of_it = compare_all(models, [(name, tape, billing) for tape in used for billing in BILLINGS])
            found += of_it
            sys.stdout.write(f"{_row(name, of_it)} {time.monotonic() - began_s:6.1f} s\n")
            sys.stdout.flush()
    for each in found:
        if not each.is_same:
            first = each.differences[0] if each.differences else "every decision is the same"
            sys.stdout.write(
                f"{each.policy} on {each.tape} differs: {each.ledger_difference_usd:g} USD; {first}\n"
            )
    write_text(options.json, json.dumps(report_of(found), indent=2) + "\n")
    sys.stdout.write(f"wrote {options.json}\n")
    return 0 if all(each.is_same for each in found) else 1


def _row(name: str, found: Sequence[Parity]) -> str:
    decisions, differing = sum(each.decisions for each in found), sum(len(each.differences) for each in found)
    usd = sum(each.ledger_difference_usd for each in found)
    revoked = sum(each.revocations for each in found)
    return (
        f"{name:<28} {decisions:7,d} decisions, {differing:5,d} differ, ledgers by {usd:.6f} USD, "
        f"{revoked:3d} revocations, {sum(each.finished for each in found)} of {len(found)} finished"
    )


if __name__ == "__main__":
    # Hide warnings about jobs, such as a missing metric.
    logging.getLogger("ebbtide").setLevel(logging.ERROR)
    sys.exit(main())
