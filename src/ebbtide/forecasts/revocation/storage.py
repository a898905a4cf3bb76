"""Fitted network models as files: weights as safetensors, everything else as JSON. Nothing is unpickled."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ebbtide._files import replacing, write_text
from ebbtide._input_files import read_json
from ebbtide.errors import InputError
from ebbtide.forecasts.revocation.calibration import Calibration
from ebbtide.forecasts.revocation.correction import Correction
from ebbtide.forecasts.revocation.group_fitting import Group
from ebbtide.forecasts.revocation.inputs import Scaling
from ebbtide.forecasts.revocation.max_prices import MaxPrices
from ebbtide.forecasts.revocation.network_model import NetworkModel
from ebbtide.forecasts.revocation.training import Fitted, Training
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
        Training(**training),
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
        fitted, calibration = Fitted(**entry["fitted"]), Calibration(**entry["calibration"])
        model.groups.append(Group(np.array(entry["markets"]), network, fitted, calibration))
    own = len(model.groups) - about["generals"]
    model.groups, model.generals = model.groups[:own], model.groups[own:]
    return model
