"""Secret environment variables of a program: encrypted on their way, and decrypted only on its machine.

The controller takes the values from its own environment when it starts. An order carries them encrypted with the
key of the machine that it is for, so that neither the journal nor storage has them; the agent puts them into the
environment of the program.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from itertools import count

from ebbtide.agent.config import Assignment

_NONCE_BYTES = 16


def with_secrets(assignment: Assignment, values: Mapping[str, str], key: bytes) -> Assignment:
    """An assignment for one machine, with the values of the secrets that it names, sealed.

    Args:
        assignment: The assignment.
        values: Values of secrets by name.
        key: The machine's key.
    """
    if not assignment.secrets:
        return assignment
    own = {name: values[name] for name in assignment.secrets}
    # A nonce that is new each time: no two messages are encrypted with the same bytes.
    nonce = os.urandom(_NONCE_BYTES)
    return replace(assignment, sealed=(nonce + _changed(json.dumps(own).encode(), key, nonce)).hex())


def opened(assignment: Assignment, key: bytes) -> Assignment:
    """An assignment as its machine runs it, with its secrets in the program's environment.

    Raises:
        ValueError: The secrets were not sealed for this machine.
    """
    if not assignment.sealed:
        return assignment
    content = bytes.fromhex(assignment.sealed)
    own = json.loads(_changed(content[_NONCE_BYTES:], key, content[:_NONCE_BYTES]))
    return replace(assignment, environment={**assignment.environment, **own}, sealed="")


def _changed(content: bytes, key: bytes, nonce: bytes) -> bytes:
    """Encrypt or decrypt content, which is the same: it is XORed with bytes that only the key gives.

    The seal of the whole order ensures that the content is genuine.
    """
    size = hashlib.sha256().digest_size
    blocks = (
        hmac.new(key, b"secrets/" + nonce + number.to_bytes(8, "big"), hashlib.sha256).digest()
        for number in count()
    )
    cover = b"".join(next(blocks) for _ in range(0, len(content), size))
    return bytes(one ^ other for one, other in zip(content, cover, strict=False))
