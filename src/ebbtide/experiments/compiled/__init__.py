"""`DeepSpotCloud` replayed in compiled code, by the ten thousand; `experiments.migration_replays` is its face."""
