"""Tools for tests of your own policies, clouds, object stores and price sources.

A test class inherits from a contract suite: the test class makes the object, and the suite checks it.

from ebbtide.testing import PolicyContract

class TestMine(PolicyContract):
    def make_policy(self):
        return Mine()
"""

import lazy_loader as _lazy

# Names in the stub beside this file are imported on first use.
__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
