"""Deadlines where capacity decides, not price: Uniform Progress, our policy and the optimum."""
