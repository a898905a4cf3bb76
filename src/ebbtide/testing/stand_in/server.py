"""An HTTP server on loopback around a WSGI application, served by a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from ebbtide.errors import InputError

Start = Callable[..., Any]
Application = Callable[[dict[str, Any], Start], Iterable[bytes]]


class LoopbackServer:
    """Serves an application until it is closed.

    Attributes:
        url: Address of the server, without a path.

    Args:
        application: Answers all requests.
    """

    def __init__(self, application: Application) -> None:
        from werkzeug.serving import WSGIRequestHandler, make_server

        quiet = type("Quiet", (WSGIRequestHandler,), {"log": lambda *_: None})
        self._server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=quiet)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        # The argument is the poll interval for a shutdown, seconds.
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


def moto_application() -> Application:
    """Return moto's API, which all stand-ins use for object storage.

    Raises:
        InputError: moto is not installed.
    """
    try:
        from moto.server import DomainDispatcherApplication, create_backend_app
    except ImportError:
        raise InputError("the stand-ins need moto: pip install 'moto[ec2,s3,server]'") from None
    application: Application = DomainDispatcherApplication(create_backend_app)
    return application


def one_at_a_time(application: Application) -> Application:
    """Serialise an application's requests: moto fails when one thread reads what another deletes."""
    lock = threading.Lock()

    def answered(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        with lock:
            return list(application(environ, start))

    return answered


def sent(start: Start, status: str, content: str, kind: str = "text/xml") -> Iterable[bytes]:
    """Send an answer with some content.

    Args:
        start: Begins the answer with status and headers.
        status: Status code and its name.
        content: The content as text.
        kind: Media type of the content.
    """
    body = content.encode()
    start(status, [("Content-Type", kind), ("Content-Length", str(len(body)))])
    return [body]
