"""Deadlines when capacity, not price, decides: Uniform Progress and the optimum."""
