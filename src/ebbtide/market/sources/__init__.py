"""Readers of price exports in other formats; each returns a frame of the price schema."""
