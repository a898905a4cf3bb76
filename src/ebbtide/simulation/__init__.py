"""Replays of the past: the market, the training, and fast simulators."""
