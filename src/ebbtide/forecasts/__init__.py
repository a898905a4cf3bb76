"""Models of what comes: revocations, learning curves, spells of capacity, prices."""
