"""Where a training's metric will end, from its first part (SpotTune III-C)."""
