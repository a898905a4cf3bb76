"""Backtests, comparisons and the benchmark of policies."""
