"""What stand-ins of clouds share: machines as local processes, and a server on loopback."""
