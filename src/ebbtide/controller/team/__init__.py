"""Limits of money and machines that runs of a team share."""
