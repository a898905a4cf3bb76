"""Files, times, processes, JSON and compilation, on which everything else is built."""
