"""Checkpoints in object storage: visible only when complete, checked when read, with one writer at a time."""
