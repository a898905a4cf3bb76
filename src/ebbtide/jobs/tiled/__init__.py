"""Programs of tiled matrices: jobs in order, each of tasks that do not talk to each other (Cümülön-D, 2)."""
