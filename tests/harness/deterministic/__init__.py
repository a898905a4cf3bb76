"""Live runs on one thread and a virtual clock: a seed decides every interleaving and every fault.

Controller, agents and messages are the real ones; clock, storage, journal, cloud and programs are simulated behind
their interfaces. A run that breaks an invariant can be replayed exactly from its seed, and shrunk to few faults.
"""
