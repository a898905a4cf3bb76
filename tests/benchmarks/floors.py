"""Telling a measurement beside its floor."""

from __future__ import annotations


def tell(what: str, figure: str, seconds: float, floor_s: float) -> None:
    """Print a time, the floor measured in the same run, and their ratio."""
    print(f"\n{what}: {seconds:.3f} s ({figure}); floor {floor_s:.4f} s, ratio {seconds / floor_s:,.1f}")
