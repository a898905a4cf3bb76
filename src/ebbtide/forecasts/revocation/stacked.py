"""Many RevPred networks asked at once: their weights stacked, each layer one batched product over all of them.

A live loop asks about every market at every tick, a network and a single sample each. One after the other, the
time goes into starting some hundred small operations for each network; stacked, they are started once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ebbtide.forecasts.revocation.networks import RevPredNetwork

Weights = Mapping[str, Tensor]


def stack(networks: Sequence[RevPredNetwork]) -> Weights:
    """The weights of networks of one shape by name, a first axis over the networks added; matrices transposed, as
    they are multiplied with."""
    states = [network.state_dict() for network in networks]
    stacked = {name: torch.stack([state[name] for state in states]) for name in states[0]}
    return {name: value.mT.contiguous() if value.ndim == 3 else value for name, value in stacked.items()}


def ask_each(weights: Weights, records: Tensor, present: Tensor, max_prices: Tensor) -> Tensor:
    """What each network says about its own samples: `RevPredNetwork.forward` in evaluation, for g networks.

    Args:
        weights: From `stack`.
        records: Shape (g, n, 60, 6).
        present: Shape (g, n, 6).
        max_prices: Shape (g, n, k, 2).

    Returns:
        Log odds, shape (g, n, k).
    """
    outputs = records[:, :, :-1]
    tier = 0
    while f"history.weight_ih_l{tier}" in weights:
        outputs = _lstm_tier(weights, tier, outputs)
        tier += 1
    embedded = torch.cat([outputs[:, :, -1], outputs.amax(dim=2)], dim=-1)
    networks, samples, number, _ = max_prices.shape
    flat = networks, samples * number, -1
    now = torch.cat([present[:, :, None].expand(-1, -1, number, -1), max_prices], dim=-1).reshape(flat)
    for layer in (0, 2, 4):
        now = torch.relu(_linear(weights, f"present.{layer}", now))
    history = embedded[:, :, None].expand(-1, -1, number, -1).reshape(flat)
    hidden = torch.relu(_linear(weights, "out.0", torch.cat([history, now], dim=-1)))
    return _linear(weights, "out.3", hidden).reshape(networks, samples, number)


def _linear(weights: Weights, name: str, inputs: Tensor) -> Tensor:
    return torch.baddbmm(weights[f"{name}.bias"][:, None], inputs, weights[f"{name}.weight"])


def _lstm_tier(weights: Weights, tier: int, inputs: Tensor) -> Tensor:
    """One tier of each network's LSTM over (g, n, steps, width); gates in torch's order: in, forget, cell, out."""
    networks, samples, steps, _ = inputs.shape
    recurrent = weights[f"history.weight_hh_l{tier}"]
    width = recurrent.shape[1]
    bias = weights[f"history.bias_ih_l{tier}"] + weights[f"history.bias_hh_l{tier}"]
    from_inputs = torch.baddbmm(
        bias[:, None],
        inputs.reshape(networks, samples * steps, -1),
        weights[f"history.weight_ih_l{tier}"],
    )
    by_step = from_inputs.reshape(networks, samples, steps, -1).permute(2, 0, 1, 3).contiguous()
    output = cell = by_step.new_zeros(networks, samples, width)
    outputs = []
    for step in by_step:
        gates = torch.baddbmm(step, output, recurrent)
        let_in, forget, _, let_out = torch.sigmoid(gates).chunk(4, dim=-1)
        cell = torch.addcmul(forget * cell, let_in, torch.tanh(gates[..., 2 * width : 3 * width]))
        output = let_out * torch.tanh(cell)
        outputs.append(output)
    return torch.stack(outputs, dim=2)
