"""Shared parts of stand-ins of clouds: machines as local processes, and a server on loopback."""
