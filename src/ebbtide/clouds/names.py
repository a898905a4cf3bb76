"""Names and labels of instances, made from run ids and tokens that clouds may not accept unchanged."""

from __future__ import annotations

import hashlib
import re
import uuid

_MOST = 63
_PLAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")


class Names:
    """Names of the instances of one run. A name contains its token, unless the token is too long or unusual.

    Args:
        run: Id of the run.

    Attributes:
        beginning: Prefix of the names of the run's instances, and of no other run's.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self.beginning = f"ebbtide-{hashlib.sha256(run.encode()).hexdigest()[:12]}-"
        # By name, tokens that their names do not contain.
        self._hidden: dict[str, str] = {}

    def name(self, token: str) -> str:
        """Return the name of the instance with a token: letters, digits and hyphens, 63 at most."""
        own = token.removeprefix(f"{self._run}-")
        for kind, text in (("r", own) if own != token else ("t", token), ("x", "")):
            name = f"{self.beginning}{kind}-{text}"
            if _PLAIN.fullmatch(text) and len(name) <= _MOST:
                return name
        name = f"{self.beginning}x-{hashlib.sha256(token.encode()).hexdigest()[:24]}"
        self._hidden[name] = token
        return name

    def token(self, name: str) -> str | None:
        """Return the token of an instance's name; None: it belongs to another run, or the token is not known."""
        if not name.startswith(self.beginning):
            return None
        kind, _, text = name.removeprefix(self.beginning).partition("-")
        if kind == "r":
            return f"{self._run}-{text}"
        return text if kind == "t" else self._hidden.get(name)

    def request_id(self, token: str) -> str:
        """Return a request id for a token; clouds that accept one rent only once for repeated requests."""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"ebbtide:{self._run}:{token}"))


def label(text: str) -> str:
    """Return a unique label value for a text: lower-case letters, digits, _ and -, 63 at most."""
    plain = re.sub(r"[^a-z0-9_-]+", "-", text.lower())
    if plain == text and len(text) <= _MOST:
        return text
    return f"{plain[:50].rstrip('-')}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
