"""Tiles: parts of matrices in object storage, written once, checked whenever they are read (Cümülön-D, 2)."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save
from scipy.sparse import csr_array

from ebbtide.errors import CheckpointError
from ebbtide.jobs.tiled.program import TileName
from ebbtide.market.price_series import Floats
from ebbtide.storage.objects import ObjectStore, decoded_object

# Dense, or sparse by rows.
Tile = Floats | Any

_DIGEST_BYTES = 32


class DamagedTileError(CheckpointError):
    """A tile's bytes are not those that were written.

    Attributes:
        name: Name of the damaged tile.
    """

    def __init__(self, name: TileName) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"tile {self.name.key} is damaged"


class TileStore:
    """Tiles in object storage.

    Args:
        objects: The object store that holds tiles.
        cached: Number of tiles read or written last that are kept in memory, too; tiles never change.
    """

    def __init__(self, objects: ObjectStore, *, cached: int = 0) -> None:
        self._objects = objects
        self._cached = cached
        self._cache: OrderedDict[TileName, Tile] = OrderedDict()

    def write(self, name: TileName, tile: Tile) -> bool:
        """Write a tile, unless it exists; returns whether it was written."""
        payload = save(_arrays(tile))
        self._keep(name, _tile(load(payload)) if self._cached else tile)
        return self._objects.put_once(name.key, hashlib.sha256(payload).digest() + payload)

    def read(self, name: TileName) -> Tile:
        """Read a tile.

        Raises:
            DamagedTileError: Its bytes are not those that were written.
            MissingObjectError: There is no such tile.
        """
        if name in self._cache:
            self._cache.move_to_end(name)
            return self._cache[name]

        def decode(content: bytes) -> Tile:
            digest, payload = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
            if hashlib.sha256(payload).digest() != digest:
                raise DamagedTileError(name)
            try:
                return _tile(load(payload))
            except (SafetensorError, KeyError) as error:
                raise DamagedTileError(name) from error

        tile = decoded_object(self._objects, name.key, decode)
        self._keep(name, tile)
        return tile

    def has(self, name: TileName) -> bool:
        """Return whether a tile was written."""
        return self._objects.has(name.key)

    def discard(self, name: TileName) -> None:
        """Remove a damaged tile, so that it can be made again."""
        self._objects.delete(name.key)

    def _keep(self, name: TileName, tile: Tile) -> None:
        if self._cached:
            # A change in place would reach other readers of the cache, and differ from what is stored.
            for array in _arrays(tile).values():
                array.flags.writeable = False
            self._cache[name] = tile
            if len(self._cache) > self._cached:
                self._cache.popitem(last=False)

    def written(self) -> set[str]:
        """Keys of all stored tiles."""
        return set(self._objects.keys())


def _arrays(tile: Tile) -> dict[str, np.ndarray]:
    if isinstance(tile, csr_array):
        shape = np.array(tile.shape, dtype=np.int64)
        return {"values": tile.data, "indices": tile.indices, "starts": tile.indptr, "shape": shape}
    return {"dense": np.ascontiguousarray(tile)}


def _tile(arrays: dict[str, np.ndarray]) -> Tile:
    if "dense" in arrays:
        return arrays["dense"]
    rows, columns = (int(size) for size in arrays["shape"])
    return csr_array((arrays["values"], arrays["indices"], arrays["starts"]), shape=(rows, columns))
