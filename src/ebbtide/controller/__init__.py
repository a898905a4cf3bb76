"""The controller of a live run: machines, work, journal and limits of money."""
