"""Training for real: the algorithms of SpotTune's Table II, each able to stop and go on at any step."""
