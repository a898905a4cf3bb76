"""Model cards: what a revocation model is, what it was trained on, and how well it does on later data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ebbtide.forecasts.revocation.network_model import NetworkModel
from ebbtide.market.markets import Market

_SHOWN = ("base_rate", "accuracy", "precision", "recall", "f1", "auc", "brier", "ece", "samples")


def model_card(model: NetworkModel, market: Market, trained: str, later: Mapping[str, Any]) -> str:
    """The card of one market, in Markdown.

    Args:
        model: Fitted.
        market: One of its markets.
        trained: On what and when, in words.
        later: Scores on later data by delta, as `Scores.to_dict` has them.
    """
    row = model.markets.index(market)
    group = next((group for group in model.groups if row in group.markets), None)
    lines = [f"# {model.name}: {market}", "", f"Trained on {trained}.", ""]
    if group is None:
        lines += [
            f"The price rose too seldom in training to learn from: the model answers the constant "
            f"{model.constants[row]:.4f} (Laplace's rule), whatever the max price.",
            "",
        ]
    else:
        begun = "tuned from a network trained on all markets" if model.shared else "trained on this market alone"
        lines += [
            f"- a network of its own, {begun}; LSTM of width {model.hidden}, {group.fitted.epochs} epochs of "
            f"{group.fitted.samples} samples",
            f"- {group.fitted.share_positive:.1%} of training triples were positive; class weights undone by "
            f"Eq. 3 ({model.correction})",
            f"- half of the say have {len(model.generals)} networks trained on all markets and not tuned"
            if model.generals
            else "- no other network has a say",
            f"- calibrated on the validation tail: log odds x {group.calibration.slope:.3f} "
            f"+ {group.calibration.offset:.3f}",
            "",
        ]
    lines += ["Later data, by how far the max price is above the price:", ""]
    lines += ["| delta | " + " | ".join(_SHOWN) + " |", "|---" * (len(_SHOWN) + 1) + "|"]
    for delta, scores in later.items():
        lines.append(f"| {delta} | " + " | ".join(_told(scores.get(name)) for name in _SHOWN) + " |")
    lines += [
        "",
        "It answers for the hour after a moment, from the hour before it. It knows nothing of capacity: where "
        "machines are taken for other reasons than price, it is silent.",
        "",
    ]
    return "\n".join(lines)


def _told(value: float | int | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.3f}"
