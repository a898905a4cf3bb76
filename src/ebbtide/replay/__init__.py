"""Replay of jobs on recorded markets."""
