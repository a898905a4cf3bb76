"""Work of a live run on machines, one state a kind of job."""
