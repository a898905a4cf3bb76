"""`DeepSpotCloud` replayed in compiled code, by the ten thousand; `simulation.migration_replays` is its face."""
