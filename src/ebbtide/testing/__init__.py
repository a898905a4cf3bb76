"""Tools for tests of your own policies, clouds, object stores and price sources.

Contract suites are classes that a test class inherits from: it makes the object, the suite checks it.

from ebbtide.testing import PolicyContract

class TestMine(PolicyContract):
    def make_policy(self):
        return Mine()
"""

import lazy_loader as _lazy

# What the stub beside this file names is imported when it is first used.
__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
