"""Spells of capacity: for how long a market has machines, and for how long it has none."""
