"""What the shell offers after Tab: names read from files and tables, nothing computed, nothing that can fail."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

# Where `run` keeps its runs unless told otherwise.
_RUNS = Path("runs")


def complete_policies(incomplete: str) -> list[str]:
    """Policies after the last comma of a list of them, those named before left out."""
    from ebbtide.policies.registry import POLICIES

    *before, last = incomplete.split(",")
    named = ",".join(before) + "," if before else ""
    return [f"{named}{name}" for name in _beginning(POLICIES, last) if name not in before]


def complete_policy(incomplete: str) -> list[str]:
    """One policy."""
    from ebbtide.policies.registry import POLICIES

    return _beginning(POLICIES, incomplete)


def complete_billing(incomplete: str) -> list[str]:
    """Billing presets."""
    from ebbtide.market.billing import PRESETS

    return _beginning(PRESETS, incomplete)


def complete_runs(incomplete: str) -> list[str]:
    """Ids of the runs in the folder where `run` keeps them by default."""
    try:
        names = [path.name for path in _RUNS.iterdir() if (path / "run.json").is_file()]
    except OSError:
        return []
    return _beginning(sorted(names), incomplete)


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
