"""Backtests, comparisons and plans, and the reports, figures and tracking of their results."""
