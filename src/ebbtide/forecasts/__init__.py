"""Forecasting models: revocations, learning curves, spells of capacity, prices."""
