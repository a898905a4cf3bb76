"""Storage without checksums, of which single answers are cut off."""

from __future__ import annotations

from collections.abc import Sequence

from ebbtide.storage.objects import FolderStore


class CutAnswers(FolderStore):
    """A folder whose next answers are cut off.

    Attributes:
        cuts: Length in bytes of each of the next answers to `get`, the first one first.
    """

    cuts: Sequence[int] = ()

    def get(self, key: str) -> bytes:
        content = super().get(key)
        if not self.cuts:
            return content
        length, *self.cuts = self.cuts
        return content[:length]
