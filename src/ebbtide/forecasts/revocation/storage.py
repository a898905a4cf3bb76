"""Fitted network models as files, and their cards.

Weights are stored as safetensors, everything else as JSON; nothing is unpickled. A card is a page of Markdown for
one market: what the model is, what it was trained on, and its scores on later data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ebbtide.base.files import replacing, write_text
from ebbtide.base.input_files import read_json
from ebbtide.errors import InputError
from ebbtide.forecasts.revocation.calibration import Correction, OddsCalibration
from ebbtide.forecasts.revocation.inputs import MaxPrices, Scaling
from ebbtide.forecasts.revocation.network_model import NetworkModel
from ebbtide.forecasts.revocation.training import Fitted, Group, TrainingSettings
from ebbtide.market.markets import Market

_ABOUT = "model.json"
_FORMAT = 3


def save_model(model: NetworkModel, folder: str | Path) -> None:
    """Write a fitted model to a folder, `model.json` last, so that a folder with it is complete.

    Raises:
        InputError: The model is not fitted.
    """
    folder = Path(folder)
    if model.scaling is None:
        raise InputError("the model is not fitted yet")
    (folder / _ABOUT).unlink(missing_ok=True)
    groups = [*model.groups, *model.generals]
    for number, group in enumerate(groups):
        with replacing(folder / f"group-{number}.safetensors") as temporary:
            save_file(group.network.state_dict(), temporary)
    about = {
        "format": _FORMAT,
        "name": model.name,
        "kind": model.kind,
        "hidden": model.hidden,
        "dropout": model.dropout,
        "shared": model.shared,
        "correction": str(model.correction),
        "calibrate": model.calibrate,
        "training": asdict(model.training),
        "markets": [asdict(market) for market in model.markets],
        "scaling": {name: getattr(model.scaling, name).tolist() for name in Scaling.__dataclass_fields__},
        "constants": {str(row): value for row, value in model.constants.items()},
        # The general networks are the last ones in `groups`.
        "generals": len(model.generals),
        "groups": [
            {
                "markets": group.markets.tolist(),
                "fitted": asdict(group.fitted),
                "calibration": asdict(group.calibration),
            }
            for group in groups
        ],
    }
    write_text(folder / _ABOUT, json.dumps(about, indent=2) + "\n")


def load_model(folder: str | Path) -> NetworkModel:
    """Read what `save_model` wrote.

    Raises:
        InputError: The folder is not a complete model, or is of another version.
    """
    folder = Path(folder)
    try:
        about = read_json(folder / _ABOUT)
        if not isinstance(about, dict):
            raise InputError("holds no model", file=folder / _ABOUT)
    except InputError:
        problem = f"is not a revocation model: no readable {_ABOUT}; `ebbtide revocation train` makes one"
        raise InputError(problem, file=folder) from None
    if about.get("format") != _FORMAT:
        raise InputError(f"is of format {about.get('format')}; this version reads {_FORMAT}", file=folder)
    training = {**about["training"], "max_prices": MaxPrices(about["training"]["max_prices"])}
    model = NetworkModel(
        about["name"],
        about["kind"],
        about["hidden"],
        about["dropout"],
        about["shared"],
        Correction(about["correction"]),
        about["calibrate"],
        TrainingSettings(**training),
        tuple(Market(**market) for market in about["markets"]),
        Scaling(**{name: np.array(values) for name, values in about["scaling"].items()}),
        constants={int(row): value for row, value in about["constants"].items()},
    )
    for number, entry in enumerate(about["groups"]):
        network = model.shape.network()
        path = folder / f"group-{number}.safetensors"
        try:
            network.load_state_dict(load_file(path))
        except (OSError, SafetensorError, RuntimeError) as error:
            raise InputError(f"holds no weights of this model: {error}", file=path) from None
        network.eval()
        fitted, calibration = Fitted(**entry["fitted"]), OddsCalibration(**entry["calibration"])
        model.groups.append(Group(np.array(entry["markets"]), network, fitted, calibration))
    own = len(model.groups) - about["generals"]
    model.groups, model.generals = model.groups[:own], model.groups[own:]
    return model


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
