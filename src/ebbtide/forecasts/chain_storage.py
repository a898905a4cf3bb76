"""Price chains as files: arrays as safetensors, the data they were fitted to in the header. No pickle is used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ebbtide._files import replacing
from ebbtide.errors import InputError
from ebbtide.forecasts.price_chain import PriceChain

_KEY = "ebbtide-price-chain"


def save_chain(chain: PriceChain, path: str | Path, about: Mapping[str, Any]) -> None:
    """Write a chain atomically, with a description of its data (`about`, JSON values)."""
    header = json.dumps({"tick_s": chain.tick_s, "about": dict(about)})
    with replacing(path) as temporary:
        save_file({"prices": chain.prices, "transition": chain.transition}, temporary, metadata={_KEY: header})


def load_chain(path: str | Path) -> tuple[PriceChain, dict[str, Any]]:
    """Read what `save_chain` wrote: the chain and the description of its data.

    Raises:
        InputError: The file is not a price chain.
    """
    try:
        with safe_open(str(path), framework="numpy") as file:
            header = json.loads((file.metadata() or {}).get(_KEY, "null"))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, RecursionError) as error:
        raise InputError(f"cannot be read as a price chain: {error}", file=path) from None
    if header is None or set(arrays) != {"prices", "transition"}:
        raise InputError("is no price chain", file=path)
    return PriceChain(arrays["prices"], arrays["transition"], header["tick_s"]), header["about"]
