"""Checkpoints in object storage: seen only when complete, checked when read, by one writer at a time."""
