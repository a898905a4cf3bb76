"""Access tokens for Google's services: from google-auth where it is installed, else from a machine's metadata."""

from __future__ import annotations

import json
import threading
import time
from calendar import timegm
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from ebbtide.errors import CloudError, InputError
from ebbtide.storage.metadata_values import google_url, google_value

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"

# Seconds before its end at which a token is renewed.
_EARLY_S = 120.0
_WITHIN_S = 5.0
# Assumed lifetime of a token that does not say when it ends.
_LASTS_S = 600.0

# Parts of Google's own library.
_LIBRARY = ("", ".exceptions", ".transport.requests")

# A token, and when it ends, seconds since 1970.
Token = tuple[str, float]


class GoogleTokens:
    """Gives a token that is valid now; it is kept only in memory.

    Args:
        source: Gets a new token; None: as `new_token` does.
    """

    def __init__(self, source: Callable[[], Token] | None = None) -> None:
        self._source = source or new_token
        self._lock = threading.Lock()
        self._token, self._ends_s = "", 0.0

    def token(self) -> str:
        """A token.

        Raises:
            InputError: There are no credentials, and never were.
            CloudError: They are refused or gone, or the token service does not answer.
        """
        with self._lock:
            if time.time() > self._ends_s - _EARLY_S:
                try:
                    self._token, self._ends_s = self._source()
                except InputError as error:
                    if not self._token:
                        raise
                    # There were credentials before, and a run that has machines waits until they are back.
                    raise CloudError(f"{error.problem}; the run continues then") from None
            return self._token

    def forget(self) -> None:
        """Get a new token the next time: this one was refused."""
        with self._lock:
            self._ends_s = 0.0


def new_token() -> Token:
    """Get a new token by Google's standard chain, or of the machine's account if google-auth is not installed.

    Raises:
        InputError: There are no credentials.
        CloudError: They are refused, or the token service does not answer.
    """
    try:
        # Imported by name: machines do not have google-auth, and its types are incomplete.
        library, errors, transport = (import_module(f"google.auth{part}") for part in _LIBRARY)
    except ImportError:
        return _machine_token()
    return _library_token(library, errors, transport)


def _library_token(google_auth: Any, errors: Any, transport: Any) -> Token:
    asks = partial(transport.Request(), timeout=_WITHIN_S)
    try:
        # Looked up again each time, to find credentials that were renewed meanwhile.
        credentials, _ = google_auth.default(scopes=[_SCOPE], request=asks)
        credentials.refresh(asks)
    except errors.DefaultCredentialsError as error:
        raise InputError(
            f"there are no Google credentials: {_line(error)}; run `gcloud auth application-default login`, or "
            "set GOOGLE_APPLICATION_CREDENTIALS to the file of a service account"
        ) from None
    except errors.GoogleAuthError as error:
        raise CloudError(f"the Google credentials give no token: {_line(error)}; renew them") from error
    # The expiry is in UTC, but has no time zone.
    expiry = credentials.expiry
    ends_s = time.time() + _LASTS_S if expiry is None else float(timegm(expiry.timetuple()))
    return str(credentials.token), ends_s


def _machine_token() -> Token:
    asked_s = time.time()
    try:
        found = json.loads(google_value(google_url(), "instance/service-accounts/default/token"))
        return str(found["access_token"]), asked_s + float(found["expires_in"])
    except (OSError, ValueError, KeyError) as error:
        raise CloudError(f"the machine's metadata give no token of a service account: {_line(error)}") from error


def _line(error: Exception) -> str:
    """First part of an error's message, in one line; what follows may be an answer with a secret."""
    return " ".join(str(error.args[0] if error.args else error).split())
