"""Address of a run's journal in Postgres, without a password, as `--journal` takes it.

The address never holds a password, since it is kept with the run and named in messages: libpq, the client library
of Postgres, finds passwords by itself.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from itertools import zip_longest

from ebbtide.errors import InputError

# Environment variable that names the database of journals if no option does.
JOURNAL = "EBBTIDE_JOURNAL"

_SCHEMES = ("postgresql://", "postgres://")
_RIGHT = "write it as postgresql://HOST[:PORT]/DATABASE"
_SECRETS = ("password", "sslpassword", "oauth_client_secret")
# A session setting with such a name holds a password, too.
_LIKE_SECRET = re.compile("passw|secret|token", re.IGNORECASE)
# Parameters that have to be numbers, which libpq only checks when it connects.
_WHOLE = (
    "connect_timeout",
    "tcp_user_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
)
_NO_PASSWORD = (
    "holds a password, which would be kept with the run; leave it out, and give it by the environment variable "
    "PGPASSWORD, in ~/.pgpass, or in a service file (postgresql://?service=NAME)"
)


@dataclass(frozen=True)
class PostgresPlace:
    """The journal of one run in a database of Postgres, which many runs share.

    Attributes:
        address: The address of the database, without a password.
        run: Unique name of the run; an older Ebbtide used its id.
        name: The database as messages name it: HOST[:PORT]/DATABASE.
    """

    address: str
    run: str
    name: str

    @classmethod
    def of(cls, address: str, run: str = "") -> PostgresPlace:
        """The place of a run's journal.

        Args:
            address: The address of the database, as `--journal` takes it.
            run: Unique name of the run; empty: the database alone is meant.

        Raises:
            InputError: The address names no database, or holds a password; the extra `postgres` is not installed.
        """
        return cls(address, run, _name(_parts(address)))

    def __str__(self) -> str:
        return f"journal at {self.name}"


def journal_address(named: str | None = None) -> str:
    """The address of the journals' database for a new run.

    Args:
        named: The address that the user gave; None: that in `EBBTIDE_JOURNAL`, if any; empty: none.

    Returns:
        The address; empty: the journal is a file in the run's folder.

    Raises:
        InputError: The address names no database, or holds a password; the extra `postgres` is not installed.
    """
    address = os.environ.get(JOURNAL, "") if named is None else named
    if address:
        try:
            _parts(address)
        except InputError as error:
            raise InputError(error.problem, field=JOURNAL if named is None else "journal") from None
    return address


def _parts(address: str) -> dict[str, str]:
    """Parse an address with libpq into parameters by name. No error message repeats any part of the address."""
    if not address.startswith(_SCHEMES):
        raise InputError(f"is no address of a Postgres database; {_RIGHT}")
    try:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict
    except ImportError:
        raise InputError("its journal needs psycopg, of an extra: pip install 'ebbtide[postgres]'") from None
    try:
        found = {name: str(value) for name, value in conninfo_to_dict(address).items() if value is not None}
    except psycopg.Error:
        raise InputError(f"is no address of a Postgres database; {_RIGHT}") from None
    if any(found.get(name) for name in _SECRETS) or _LIKE_SECRET.search(found.get("options", "")):
        raise InputError(_NO_PASSWORD)
    ports = found.get("port", "").split(",")
    # A password that contains a `/` ends up in what looks like the database or host.
    whole = [*filter(None, ports), *(found[name] for name in _WHOLE if name in found)]
    if not all(number.isdecimal() for number in whole) or "@" in found.get("dbname", "") + found.get("host", ""):
        raise InputError(f"is no address of a Postgres database; {_RIGHT}, without a password")
    if not found.get("dbname") and not found.get("service"):
        raise InputError(f"names no database; {_RIGHT}")
    return found


def _name(parts: dict[str, str]) -> str:
    named = parts.get("host") or parts.get("hostaddr") or ""
    if not named and "service" in parts:
        return f"service {parts['service']}"
    hosts, ports = (named or "localhost").split(","), parts.get("port", "").split(",")
    # A single port applies to all hosts.
    ports = ports * len(hosts) if len(ports) == 1 else ports
    pairs = zip_longest(hosts, ports, fillvalue="")
    return ",".join(f"{host}:{port}" if port else host for host, port in pairs) + f"/{parts.get('dbname', '')}"
