"""Parallel frameworks on machines that a market gives and takes: Spark, MPI, a bag of tasks (ExoSphere 4)."""
