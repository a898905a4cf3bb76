"""Policies: what to rent, where, at what max price and for how long."""
