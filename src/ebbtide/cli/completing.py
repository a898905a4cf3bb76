"""Shell completions: names read from files and tables, without computation or errors."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

# Default folder of runs.
_RUNS = Path(".ebbtide") / "runs"


def complete_policies(incomplete: str) -> list[str]:
    """Complete the last policy of a comma-separated list, without those named before."""
    from ebbtide.policies.registry import POLICIES

    *before, last = incomplete.split(",")
    named = ",".join(before) + "," if before else ""
    return [f"{named}{name}" for name in _beginning(POLICIES, last) if name not in before]


def complete_policy(incomplete: str) -> list[str]:
    """Complete the name of a policy."""
    from ebbtide.policies.registry import POLICIES

    return _beginning(POLICIES, incomplete)


def complete_billing(incomplete: str) -> list[str]:
    """Complete the name of a billing preset."""
    from ebbtide.market.billing import PRESETS

    return _beginning(PRESETS, incomplete)


def complete_runs(incomplete: str) -> list[str]:
    """Complete the id of a run in the default folder."""
    try:
        names = [path.name for path in _RUNS.iterdir() if (path / "run.json").is_file()]
    except OSError:
        return []
    return _beginning(sorted(names), incomplete)


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
