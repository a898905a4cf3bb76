"""Every registered policy keeps the contract of policies, and so do the wrappers of policies."""

from __future__ import annotations

import pytest

from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.backoff import BacksOff
from ebbtide.policies.baselines import Reactive
from ebbtide.policies.budget import WithinBudget
from ebbtide.policies.registry import POLICIES
from ebbtide.testing.contracts.policies import PolicyContract

WRAPPED = {
    "reactive, backing off": lambda: BacksOff(Reactive()),
    "reactive, within a budget": lambda: WithinBudget(Reactive(), 5.0),
}
MADE = {**POLICIES, **WRAPPED}


@pytest.mark.parametrize("name", MADE)
class TestPolicies(PolicyContract):
    @pytest.fixture(autouse=True)
    def _named(self, name: str) -> None:
        self.name = name

    def make_policy(self) -> Policy:
        return MADE[self.name]()
