"""Reproductions of the published systems: a folder for each paper, with its claims and our results."""
