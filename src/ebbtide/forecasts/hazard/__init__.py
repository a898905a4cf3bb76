"""Chance that a machine is refused or lost, by cause: price and capacity."""
