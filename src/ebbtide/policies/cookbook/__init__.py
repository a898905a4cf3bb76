"""Cümülön-D: which machines to hold when, so that a workflow ends by its deadline at the least cost and risk."""
