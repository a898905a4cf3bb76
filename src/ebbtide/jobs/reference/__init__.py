"""Real trainings: the algorithms of SpotTune's Table II, each able to stop and resume at any step."""
