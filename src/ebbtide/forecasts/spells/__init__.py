"""Spells: how long capacity lasts, and how long its absence."""
