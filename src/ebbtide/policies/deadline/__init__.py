"""Deadlines where capacity, not price, decides: spot machines while they can be had, on-demand as the way out."""
