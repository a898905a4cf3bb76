"""Readers of price records from elsewhere; each gives a frame of the price schema."""
