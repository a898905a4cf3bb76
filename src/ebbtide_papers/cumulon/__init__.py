"""Cümülön-D: matrix programs with a deadline on a market of machines."""
