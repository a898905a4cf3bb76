"""Model cards: what a revocation model is, what it was trained on, and its scores on later data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ebbtide.forecasts.revocation.network_model import NetworkModel
from ebbtide.market.markets import Market

_SHOWN = ("base_rate", "accuracy", "precision", "recall", "f1", "auc", "brier", "ece", "samples")


def model_card(model: NetworkModel, market: Market, trained: str, later: Mapping[str, Any]) -> str:
    """The card of one market, in Markdown.

    Args:
        model: The fitted revocation model.
        market: One of the model's markets.
        trained: What the model was trained on and when, in words.
        later: Scores on later data by delta, as from `Scores.to_dict`.
    """
    row = model.markets.index(market)
    group = next((group for group in model.groups if row in group.markets), None)
    lines = [f"# {model.name}: {market}", "", f"Trained on {trained}.", ""]
    if group is None:
        lines += [
            f"The price rose too rarely in training to fit a network: the model predicts the constant "
            f"{model.constants[row]:.4f} (Laplace's rule), whatever the max price.",
            "",
        ]
    else:
        origin = "tuned from a network trained on all markets" if model.shared else "trained on this market alone"
        lines += [
            f"- a network of its own, {origin}; LSTM of width {model.hidden}, {group.fitted.epochs} epochs of "
            f"{group.fitted.samples} samples",
            f"- {group.fitted.share_positive:.1%} of training triples were positive; class weights are undone by "
            f"Eq. 3 ({model.correction})",
            f"- its log odds are averaged with those of {len(model.generals)} networks trained on all markets and "
            "not tuned"
            if model.generals
            else "- no other network is averaged with it",
            f"- calibrated on the validation tail: log odds x {group.calibration.slope:.3f} "
            f"+ {group.calibration.offset:.3f}",
            "",
        ]
    lines += ["Later data, by how far the max price is above the price:", ""]
    lines += ["| delta | " + " | ".join(_SHOWN) + " |", "|---" * (len(_SHOWN) + 1) + "|"]
    for delta, scores in later.items():
        lines.append(f"| {delta} | " + " | ".join(_shown(scores.get(name)) for name in _SHOWN) + " |")
    lines += [
        "",
        "It predicts the hour after a moment from the hour before it. It predicts revocations by price only, not "
        "those for lack of capacity.",
        "",
    ]
    return "\n".join(lines)


def _shown(value: float | int | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.3f}"
