"""Names that MLflow takes, and what becomes of a run when MLflow refuses something or is away."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from mlflow.exceptions import MlflowException

from ebbtide.errors import EbbtideError

_LOGGER = logging.getLogger(__name__)

# The longest name of a metric, parameter or tag.
_MOST_CHARACTERS = 250
_REFUSED = re.compile(r"[^\w.\- /:]")
_DIGITS = 8
_MOST_WORDS = 300


def allowed_names(names: Iterable[str]) -> dict[str, str]:
    """The name that MLflow takes for each of some names, the same whenever it is asked, and no two the same.

    Characters that it refuses become `_`, as do the parts of a path that lead elsewhere; a name that is too long
    is cut. Where that makes two names the same, one of them has a part of its hash after it.
    """
    wanted = sorted(set(names))
    found = {name: name for name in wanted if _allowed(name) == name}
    taken = set(found.values())
    for name in wanted:
        if name not in found:
            allowed = _allowed(name)
            found[name] = allowed if allowed not in taken else _marked(allowed, name)
            taken.add(found[name])
    return found


def allowed_name(name: str) -> str:
    """The name that MLflow takes for one that stands alone."""
    return allowed_names([name])[name]


def renamed(names: Iterable[str]) -> str:
    """Describe, in one line, the names that have to be changed for MLflow; empty: none."""
    other = {name: allowed for name, allowed in allowed_names(names).items() if name != allowed}
    if not other:
        return ""
    return "MLflow refuses some names, which are others there: " + ", ".join(
        f"{name[:_MOST_CHARACTERS]!r} is {allowed!r}" for name, allowed in other.items()
    )


def _allowed(name: str) -> str:
    parts = [_REFUSED.sub("_", part) for part in name.split("/") if part not in ("", ".")]
    parts = ["_" * len(part) if part == ".." else part for part in parts]
    path = "/".join(parts) or "_"
    if path.startswith(".."):
        path = "__" + path[2:]
    return path if len(path) <= _MOST_CHARACTERS else _marked(path, name)


def _marked(allowed: str, name: str) -> str:
    mark = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:_DIGITS]
    return f"{allowed[: _MOST_CHARACTERS - _DIGITS - 1]}_{mark}"


def is_refusal(error: Exception) -> bool:
    """Return whether MLflow answered and refused the request; otherwise it is unreachable or cannot write."""
    return isinstance(error, MlflowException) and error.error_code in (
        "INVALID_PARAMETER_VALUE",
        "BAD_REQUEST",
        "RESOURCE_DOES_NOT_EXIST",
        "RESOURCE_ALREADY_EXISTS",
        "PERMISSION_DENIED",
    )


def words_of(error: BaseException) -> str:
    """Message of an MLflow error in one line."""
    return (" ".join(str(error).split()) or type(error).__name__)[:_MOST_WORDS]


@contextmanager
def untold(run: str, what: str, *, goes_on: bool = False, is_said: bool = False) -> Iterator[None]:
    """Warn of a failure of MLflow in the block, instead of raising it: tracking ends no run.

    Args:
        run: Id of the run.
        what: What MLflow is told in the block.
        goes_on: Whether to raise what shows that MLflow is away, so that nothing else is tried in vain.
        is_said: Whether the failure was warned of before.

    Raises:
        EbbtideError: One of our own, such as a journal that cannot be read.
    """
    try:
        yield
    except EbbtideError:
        raise
    except Exception as error:
        if goes_on and not is_refusal(error):
            raise
        _LOGGER.log(
            logging.DEBUG if is_said else logging.WARNING,
            "MLflow was not told %s of run %s: %s; `ebbtide resume %s` tells it later",
            what,
            run,
            words_of(error),
            run,
        )
