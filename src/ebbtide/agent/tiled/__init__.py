"""Matrix programs as tasks on tiles, which can be begun again at any of them (Cümülön-D, 2)."""
