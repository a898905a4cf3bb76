"""Jobs of a live run on machines, a module a kind."""
