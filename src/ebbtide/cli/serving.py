"""`ebbtide ui`: serve the page of live runs, by default on loopback only."""

from __future__ import annotations

import ipaddress
import socket
from contextlib import closing
from typing import Annotated

import typer

from ebbtide.cli.runs import RunsOption
from ebbtide.clouds.settings import RUNS
from ebbtide.errors import InputError

_PORT = 8787


def ui_command(
    runs: RunsOption = RUNS,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen at; whoever reaches it can read the runs.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0: any that is free.")] = _PORT,
    name: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="HOST", help="Another name by which browsers may ask; may be given again."),
    ] = None,
) -> None:
    """Show live runs in a browser: trials, machines, spend and decisions; read only. Ctrl-C ends it."""
    import uvicorn

    from ebbtide.ui.server import app_for

    with closing(_bound(host, port)) as listening:
        at = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"
        typer.echo(f"{at} shows the runs in {runs}; {at}/metrics has them for Prometheus; Ctrl-C ends it")
        if not _is_loopback(host):
            typer.echo(
                f"whoever reaches {host} can read the runs: there are no passwords; browsers may ask by that "
                "address, and by the names that --name gives",
                err=True,
            )
        app = app_for(runs, [*(name or ()), *([] if _is_loopback(host) else [host])])
        settings = uvicorn.Config(app, log_level="warning", access_log=False)
        uvicorn.Server(settings).run(sockets=[listening])


def _bound(host: str, port: int) -> socket.socket:
    """Open a socket that is bound to an address and port.

    Raises:
        InputError: The address is not one of this machine's, or the port is in use.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InputError(f"{host} is no address to listen at: {error.strerror}", field="--host") from None
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen()
    except OSError as error:
        found.close()
        problem = f"cannot listen at {host}, port {port}: {error.strerror}; --port 0 takes any that is free"
        raise InputError(
            problem,
            field="--port",
        ) from None
    return found


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
