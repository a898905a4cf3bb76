"""Parity: each registered policy on the same tape, in replay and live on a virtual clock, decision by decision."""
