"""Prediction of a training's final metric from the first part of its learning curve (SpotTune III-C)."""
