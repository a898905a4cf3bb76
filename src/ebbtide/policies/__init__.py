"""Policies: what to rent, where, at what max price and for how long; and all that an author of a policy needs."""

import lazy_loader as _lazy

# What the stub beside this file names is imported when it is first used.
__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
