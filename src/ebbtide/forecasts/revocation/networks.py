"""The two networks: RevPred's and Tributary's.

Both return the log odds that the price exceeds each of several max prices within the hour. RevPred reads the
history once for all max prices of a sample.
"""

from __future__ import annotations

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
