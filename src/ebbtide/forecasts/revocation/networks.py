"""The two networks, RevPred's and Tributary's, and many RevPred networks run at once.

Both return the log odds that the price exceeds each of several max prices within the hour. RevPred reads the
history once for all max prices of a sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ebbtide.forecasts.revocation.inputs import MAX_PRICE_INPUTS, PRESENT_INPUTS
from ebbtide.forecasts.revocation.minutes import FEATURES


class RevPredNetwork(nn.Module):
    """SpotTune III-B: a three-layer LSTM over the past 59 records, three dense layers over the present record and
    the max price, the two concatenated.

    The LSTM's embedding is its last output and the maximum of each output over time, since one spike within the
    hour matters as much as its end. The market is not an input, so that what is learnt on one market holds for all
    that share the network, and for later months.

    Args:
        hidden: Width of the LSTM.
        dropout: Dropout rate between the LSTM's layers and before the output.
    """

    def __init__(self, hidden: int, dropout: float) -> None:
        super().__init__()
        self.history = nn.LSTM(len(FEATURES), hidden, num_layers=3, batch_first=True, dropout=dropout)
        width = 32
        self.present = nn.Sequential(
            nn.Linear(PRESENT_INPUTS, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
        )
        self.out = nn.Sequential(
            nn.Linear(2 * hidden + width, 48), nn.ReLU(), nn.Dropout(dropout), nn.Linear(48, 1)
        )

    def forward(self, records: Tensor, present: Tensor, max_prices: Tensor) -> Tensor:
        """Log odds, shape (n, k).

        Args:
            records: Records of the hour, the last one the present, shape (n, 60, 6).
            present: The present record on its own scale, shape (n, 6).
            max_prices: Inputs of each max price, shape (n, k, 2).
        """
        outputs, _ = self.history(records[:, :-1])
        embedded = torch.cat([outputs[:, -1], outputs.amax(dim=1)], dim=-1)
        number = max_prices.shape[1]
        now = self.present(torch.cat([present[:, None].expand(-1, number, -1), max_prices], dim=-1))
        both = torch.cat([embedded[:, None].expand(-1, number, -1), now], dim=-1)
        odds: Tensor = self.out(both)[..., 0]
        return odds


class TributaryNetwork(nn.Module):
    """Tributary's predictor as SpotTune rebuilt it (IV-D): one LSTM over all 60 records, the max price in each.

    Args:
        hidden: Width of the LSTM.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        inputs = len(FEATURES) * 2 + MAX_PRICE_INPUTS
        self.lstm = nn.LSTM(inputs, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 1)

    def forward(self, records: Tensor, present: Tensor, max_prices: Tensor) -> Tensor:
        """Log odds, shape (n, k); arguments as for `RevPredNetwork`."""
        samples, length, _ = records.shape
        number = max_prices.shape[1]
        shared = torch.cat([records, present[:, None].expand(-1, length, -1)], dim=-1)
        sequences = torch.cat(
            [
                shared[:, None].expand(-1, number, -1, -1),
                max_prices[:, :, None].expand(-1, -1, length, -1),
            ],
            dim=-1,
        ).reshape(samples * number, length, -1)
        outputs, _ = self.lstm(sequences)
        odds: Tensor = self.out(outputs[:, -1])[:, 0].reshape(samples, number)
        return odds


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
