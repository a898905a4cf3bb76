"""Names and labels of instances, made from ids of runs and tokens, which may be longer and of other letters."""

from __future__ import annotations

import hashlib
import re
import uuid

_MOST = 63
_PLAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")


class Names:
    """Names of the instances of one run. From a name its token follows, unless it was too strange or long for one.

    Args:
        run: Id of the run.

    Attributes:
        beginning: What the names of all its instances begin with, and those of no other run.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self.beginning = f"ebbtide-{hashlib.sha256(run.encode()).hexdigest()[:12]}-"
        # Tokens whose names do not tell them.
        self._hidden: dict[str, str] = {}

    def name(self, token: str) -> str:
        """The name of the instance with a token: letters, digits and hyphens, 63 at most."""
        own = token.removeprefix(f"{self._run}-")
        for kind, text in (("r", own) if own != token else ("t", token), ("x", "")):
            name = f"{self.beginning}{kind}-{text}"
            if _PLAIN.fullmatch(text) and len(name) <= _MOST:
                return name
        name = f"{self.beginning}x-{hashlib.sha256(token.encode()).hexdigest()[:24]}"
        self._hidden[name] = token
        return name

    def token(self, name: str) -> str | None:
        """The token of the instance with a name; None: it is not of the run, or its name does not tell."""
        if not name.startswith(self.beginning):
            return None
        kind, _, text = name.removeprefix(self.beginning).partition("-")
        if kind == "r":
            return f"{self._run}-{text}"
        return text if kind == "t" else self._hidden.get(name)

    def request_id(self, token: str) -> str:
        """A UUID for the request for a token: a cloud that takes one rents once, however often it is sent."""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"ebbtide:{self._run}:{token}"))


def label(text: str) -> str:
    """A value of a label: small letters, digits, _ and -, 63 at most; another text has another."""
    plain = re.sub(r"[^a-z0-9_-]+", "-", text.lower())
    if plain == text and len(text) <= _MOST:
        return text
    return f"{plain[:50].rstrip('-')}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
