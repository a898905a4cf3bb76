"""SpotTune's policy."""
