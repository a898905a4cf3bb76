"""The two networks, RevPred's and Tributary's, and many RevPred networks run at once.

Both return the log odds that the price exceeds each of several max prices within the hour. RevPred reads the
history once for all max prices of a sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ebbtide.base.compiling import compiled, inner
from ebbtide.forecasts.revocation.inputs import MAX_PRICE_INPUTS, PRESENT_INPUTS
from ebbtide.forecasts.revocation.minutes import FEATURES, Floats32


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
    """The weights of networks of one shape, by name, with an axis over the networks.

    Matrices are transposed, as they are used in products. Those of the LSTM's layers are `lstm.weight`, shape
    (networks, layers, inputs + hidden, 4 * hidden), inputs of narrower layers padded with zeros, and `lstm.bias`.
    """
    states = [network.state_dict() for network in networks]
    stacked = {name: torch.stack([state[name] for state in states]) for name in states[0]}
    matrices = {name: value.mT.contiguous() if value.ndim == 3 else value for name, value in stacked.items()}
    layers = sum(name.startswith("history.weight_ih_l") for name in matrices)
    inputs = [matrices.pop(f"history.weight_ih_l{layer}") for layer in range(layers)]
    recurrent = torch.stack([matrices.pop(f"history.weight_hh_l{layer}") for layer in range(layers)], dim=1)
    widest = max(part.shape[1] for part in inputs)
    padded = torch.stack([nn.functional.pad(part, (0, 0, 0, widest - part.shape[1])) for part in inputs], dim=1)
    biases = [
        matrices.pop(f"history.bias_ih_l{layer}") + matrices.pop(f"history.bias_hh_l{layer}")
        for layer in range(layers)
    ]
    return matrices | {
        "lstm.weight": torch.cat([padded, recurrent], dim=2),
        "lstm.bias": torch.stack(biases, dim=1),
    }


def some_of(weights: Weights, networks: Tensor) -> Weights:
    """The stacked weights of some of the networks, by their indices."""
    return {name: value[networks] for name, value in weights.items()}


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
    last, highest = _last_and_highest(weights, records[:, :, :-1])
    embedded = torch.cat([last, highest], dim=-1)
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


def _last_and_highest(weights: Weights, records: Tensor) -> tuple[Tensor, Tensor]:
    """The last output of each network's LSTM over (g, n, steps, width), and the maximum of each output."""
    last, highest = _run_lstms(
        weights["lstm.weight"].numpy(), weights["lstm.bias"].numpy(), np.ascontiguousarray(records.numpy())
    )
    return torch.from_numpy(last), torch.from_numpy(highest)


@compiled
def _run_lstms(weight: Floats32, bias: Floats32, records: Floats32) -> tuple[Floats32, Floats32]:
    """Many small LSTMs, one after the other, so that the weights of each stay in the processor's cache.

    In batches over the networks, as PyTorch runs them, all weights are read from main memory at every step. Arrays
    are filled in loops: an assignment of slices, with its check of shapes, takes four seconds longer to compile.

    Args:
        weight: Weights by layer, rows of inputs first, then of the last output; gates in the order in, forget,
            cell, out; shape (networks, layers, inputs + hidden, 4 * hidden).
        bias: Sum of both biases, shape (networks, layers, 4 * hidden).
        records: Inputs of the first layer, shape (networks, samples, steps, width).

    Returns:
        The last layer's last output, and the maximum of each of its outputs over time; shape (networks, samples,
        hidden) each.
    """
    networks, layers, both, gates = weight.shape
    hidden = gates // 4
    samples, steps, width = records.shape[1:]
    last = np.empty((networks, samples, hidden), dtype=np.float32)
    highest = np.empty((networks, samples, hidden), dtype=np.float32)
    # The outputs of a layer overwrite those of the layer below it, step by step.
    inputs = np.zeros((steps, both - hidden), dtype=np.float32)
    summed = np.empty(gates, dtype=np.float32)
    cell = np.empty(hidden, dtype=np.float32)
    output = np.empty(hidden, dtype=np.float32)
    half = np.float32(0.5)
    for network in range(networks):
        for sample in range(samples):
            for step in range(steps):
                for column in range(width):
                    inputs[step, column] = records[network, sample, step, column]
            used = width
            for layer in range(layers):
                for unit in range(hidden):
                    cell[unit] = output[unit] = np.float32(0.0)
                for step in range(steps):
                    for gate in range(gates):
                        summed[gate] = bias[network, layer, gate]
                    _add_product(summed, inputs[step, :used], weight[network, layer, :used])
                    _add_product(summed, output, weight[network, layer, both - hidden :])
                    for gate in range(2 * hidden):
                        summed[gate] = half + half * _tanh(half * summed[gate])
                    for gate in range(2 * hidden, 3 * hidden):
                        summed[gate] = _tanh(summed[gate])
                    for gate in range(3 * hidden, gates):
                        summed[gate] = half + half * _tanh(half * summed[gate])
                    for unit in range(hidden):
                        cell[unit] = summed[hidden + unit] * cell[unit] + summed[unit] * summed[2 * hidden + unit]
                    for unit in range(hidden):
                        output[unit] = summed[3 * hidden + unit] * _tanh(cell[unit])
                    if layer == layers - 1:
                        for unit in range(hidden):
                            before = output[unit] if step == 0 else highest[network, sample, unit]
                            highest[network, sample, unit] = max(before, output[unit])
                    else:
                        for unit in range(hidden):
                            inputs[step, unit] = output[unit]
                used = hidden
            for unit in range(hidden):
                last[network, sample, unit] = output[unit]
    return last, highest


@inner
def _add_product(total: Floats32, values: Floats32, matrix: Floats32) -> None:
    """Add `values @ matrix`, eight rows at a time: the total is then read and written an eighth as often."""
    whole = len(values) - len(values) % 8
    for row in range(0, whole, 8):
        a, b, c, d = values[row], values[row + 1], values[row + 2], values[row + 3]
        e, f, g, h = values[row + 4], values[row + 5], values[row + 6], values[row + 7]
        for place in range(len(total)):
            total[place] += (
                a * matrix[row, place]
                + b * matrix[row + 1, place]
                + c * matrix[row + 2, place]
                + d * matrix[row + 3, place]
                + e * matrix[row + 4, place]
                + f * matrix[row + 5, place]
                + g * matrix[row + 6, place]
                + h * matrix[row + 7, place]
            )
    for row in range(whole, len(values)):
        for place in range(len(total)):
            total[place] += values[row] * matrix[row, place]


@inner
def _tanh(value: np.float32) -> np.float32:
    """The hyperbolic tangent to single precision, as a ratio of polynomials: it runs on many values at once."""
    limited = min(max(value, np.float32(-7.90531110763549805)), np.float32(7.90531110763549805))
    square = limited * limited
    above = np.float32(-2.76076847742355e-16)
    for coefficient in (
        2.00018790482477e-13,
        -8.60467152213735e-11,
        5.12229709037114e-08,
        1.48572235717979e-05,
        6.37261928875436e-04,
        4.89352455891786e-03,
    ):
        above = above * square + np.float32(coefficient)
    below = np.float32(1.19825839466702e-06)
    for coefficient in (1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03):
        below = below * square + np.float32(coefficient)
    return limited * above / below
