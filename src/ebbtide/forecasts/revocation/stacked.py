"""Many RevPred networks run at once: their weights are stacked, and each layer is one batched product over all.

A live loop asks about every market at every tick, with one network and one sample each. One after the other, most
of the time goes into launching some hundred small operations per network; stacked, they are launched once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ebbtide.forecasts.revocation.networks import RevPredNetwork

Weights = Mapping[str, Tensor]


def stack(networks: Sequence[RevPredNetwork]) -> Weights:
    """The weights of networks of one shape, by name, with a first axis over the networks.

    Matrices are transposed, as they are used in products.
    """
    states = [network.state_dict() for network in networks]
    stacked = {name: torch.stack([state[name] for state in states]) for name in states[0]}
    return {name: value.mT.contiguous() if value.ndim == 3 else value for name, value in stacked.items()}


def ask_each(weights: Weights, records: Tensor, present: Tensor, max_prices: Tensor) -> Tensor:
    """Log odds of each network on its own samples: `RevPredNetwork.forward` in evaluation mode, for g networks.

    Args:
        weights: Stacked weights returned by `stack`.
        records: Records of the hour of each sample, shape (g, n, 60, 6).
        present: The present record of each sample, shape (g, n, 6).
        max_prices: Inputs of each max price, shape (g, n, k, 2).

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
    """One layer of each network's LSTM over (g, n, steps, width); gates in the order in, forget, cell, out."""
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
        input_gate, forget_gate, _, output_gate = torch.sigmoid(gates).chunk(4, dim=-1)
        cell = torch.addcmul(forget_gate * cell, input_gate, torch.tanh(gates[..., 2 * width : 3 * width]))
        output = output_gate * torch.tanh(cell)
        outputs.append(output)
    return torch.stack(outputs, dim=2)
