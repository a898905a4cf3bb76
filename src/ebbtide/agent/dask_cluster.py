"""Dask on several machines: the scheduler, the user's program and a worker on the first, a worker on each other.

A worker whose machine is to be left ends the task that it is at, hands what it has computed to the others and
goes. What goes with a machine that is lost Dask computes again.

All processes prove to each other that they know the secret of this assignment, and encrypt what they say: key and
certificate follow from the secret, so that every machine has the same and none is sent.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import hashlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from ebbtide.base.dask_security import NO_HTTP
from ebbtide.trial import MACHINES, SECRET

_PORT = "EBBTIDE_DASK_PORT"
_RETRY_S = 0.5
_LOOK_S = 0.05
# A worker that ends within this many seconds, this many times in a row, is not restarted.
_SHORT_S, _MOST_SHORT = 30.0, 5
# A worker that cannot join its scheduler for so long ends, seconds.
_JOINS_WITHIN_S = 300.0
# Longest time for a leaving worker to hand its results to others.
_CLOSE_S = 20.0
# A revoked machine is not the fault of the task that it ran, but a task that loses this many machines is at fault.
# Lost workers are noticed soon.
_SCHEDULER: Mapping[str, Any] = NO_HTTP | {
    "distributed.scheduler.allowed-failures": 30,
    "distributed.scheduler.worker-ttl": "30s",
    # Tasks wait at the scheduler, not at busy workers, so that a worker that joins later gets some.
    "distributed.scheduler.worker-saturation": 1.0,
}


def as_one_of(words: Sequence[str], rank: int) -> list[str]:
    """The command of one machine, for a Python program given as its file and arguments."""
    own = [sys.executable, "-m", "ebbtide.agent.dask_cluster"]
    return [*own, "head", "--", *words] if rank == 0 else [*own, "worker"]


def meeting_port(port: int) -> dict[str, str]:
    """The environment variable by which workers find the scheduler's port."""
    return {_PORT: str(port)}


def environment_of(secret: str, scheduler: str) -> dict[str, str]:
    """Environment variables with which `distributed.Client()` joins the cluster without arguments.

    Args:
        secret: Secret that the machines of this assignment share.
        scheduler: Address of the scheduler.
    """
    key, certificate = key_and_certificate(secret)
    return {
        "DASK_SCHEDULER_ADDRESS": scheduler,
        "DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "True",
        "DASK_DISTRIBUTED__COMM__TLS__CA_FILE": certificate,
        "DASK_DISTRIBUTED__COMM__TLS__CLIENT__CERT": certificate,
        "DASK_DISTRIBUTED__COMM__TLS__CLIENT__KEY": key,
    }


def key_and_certificate(secret: str) -> tuple[str, str]:
    """Key and certificate of a cluster as PEM text: the same for the same secret.

    Args:
        secret: Secret that the machines of this assignment share.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(f"dask {secret}".encode()).digest())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ebbtide")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        # Not limited in time, since machines' clocks may differ; the key follows from this assignment's secret.
        .not_valid_before(datetime(2000, 1, 1, tzinfo=timezone.utc))  # noqa: UP017
        .not_valid_after(datetime(2100, 1, 1, tzinfo=timezone.utc))  # noqa: UP017
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, None)
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private.decode(), certificate.public_bytes(Encoding.PEM).decode()


def _security() -> Any:
    from distributed.security import Security

    key, certificate = key_and_certificate(os.environ[SECRET])
    parts = ("scheduler", "worker", "client")
    keys = {f"tls_{part}_key": key for part in parts} | {f"tls_{part}_cert": certificate for part in parts}
    return Security(require_encryption=True, tls_ca_file=certificate, **keys)


def _scheduler_address() -> str:
    return f"tls://{os.environ[MACHINES].split(',')[0]}:{os.environ[_PORT]}"


async def _head(words: Sequence[str]) -> int:
    """Run the scheduler, a worker and the user's program; returns the program's exit code."""
    import dask
    from distributed import Scheduler

    dask.config.set(_SCHEDULER)
    own = os.environ[MACHINES].split(",")[0]
    scheduler = Scheduler(
        host=own,
        port=int(os.environ[_PORT]),
        protocol="tls://",
        security=_security(),
        dashboard=False,
        dashboard_address="127.0.0.1:0",
    )
    async with scheduler:
        workers: list[asyncio.subprocess.Process] = []
        keeping = asyncio.create_task(_keep_worker(workers))
        joins = environment_of(os.environ[SECRET], _scheduler_address())
        program = await _start([sys.executable, *words], joins)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, program.send_signal, signal.SIGTERM)
        try:
            code = await program.wait()
        finally:
            keeping.cancel()
            for process in (program, *workers):
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
    return code if code >= 0 else 128 - code


async def _keep_worker(started: list[asyncio.subprocess.Process]) -> None:
    """Keep a worker on the head's machine, and restart it if it ends, for example for lack of memory.

    A worker that ends soon several times in a row is itself at fault: the other machines go on without it.
    """
    short = 0
    while short < _MOST_SHORT:
        began_s = time.monotonic()
        started[:] = [await _start([sys.executable, "-m", "ebbtide.agent.dask_cluster", "worker"], {})]
        code = await started[0].wait()
        short = short + 1 if time.monotonic() - began_s < _SHORT_S else 0
        await asyncio.sleep(_RETRY_S)
    print(f"the worker beside the head ended {short} times at once, last with exit code {code}", file=sys.stderr)


async def _start(command: Sequence[str], environment: Mapping[str, str]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *command, env={**os.environ, **environment}, stdin=asyncio.subprocess.DEVNULL, preexec_fn=_die_with_parent
    )


async def _worker() -> int:
    """Run a worker, restarted until it is asked to leave: the scheduler may not be up yet."""
    import dask
    from distributed import Worker
    from distributed.core import Status

    dask.config.set(NO_HTTP)
    own = os.environ[MACHINES].split(",")[-1]
    leaving = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leaving.set)
    security = _security()
    with tempfile.TemporaryDirectory(prefix="ebbtide-dask-", ignore_cleanup_errors=True) as place:
        joined_s = time.monotonic()
        while not leaving.is_set():
            worker = Worker(
                _scheduler_address(),
                host=own,
                nthreads=1,
                name=own,
                memory_limit=0,
                security=security,
                local_directory=place,
                dashboard=False,
                dashboard_address="127.0.0.1:0",
                death_timeout=60,
                protocol="tls://",
            )
            joining = asyncio.create_task(_joined(worker))
            wanted = asyncio.create_task(leaving.wait())
            # A worker that is asked to leave does not wait for a scheduler that may be gone.
            await asyncio.wait({joining, wanted}, return_when=asyncio.FIRST_COMPLETED)
            if not joining.done():
                joining.cancel()
                break
            if problem := joining.result():
                wanted.cancel()
                if time.monotonic() - joined_s > _JOINS_WITHIN_S:
                    print(f"the scheduler was not reached for {_JOINS_WITHIN_S:.0f} s: {problem}", file=sys.stderr)
                    return 1
                await asyncio.sleep(_RETRY_S)
                continue
            gone = asyncio.create_task(worker.finished())
            await asyncio.wait({gone, wanted}, return_when=asyncio.FIRST_COMPLETED)
            joined_s = time.monotonic()
            wanted.cancel()
            if leaving.is_set() and worker.status == Status.running:
                worker.status = Status.paused
                while worker.state.executing_count:
                    await asyncio.sleep(_LOOK_S)
                await asyncio.wait({asyncio.create_task(worker.close_gracefully())}, timeout=_CLOSE_S)
            if not leaving.is_set():
                await asyncio.sleep(_RETRY_S)
    return 0


async def _joined(worker: Any) -> str:
    """Wait for a worker to join its scheduler; returns why it did not, empty if it did."""
    try:
        await worker
    except (OSError, TimeoutError, RuntimeError) as error:
        return str(error) or type(error).__name__
    return ""


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def main() -> None:
    """Run the part named on the command line, head or worker."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("head", "worker"))
    parser.add_argument("words", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    words = options.words[1:] if options.words[:1] == ["--"] else options.words
    # Otherwise the user's output would be lost among Dask's messages about machines that come and go.
    os.environ.setdefault("DASK_LOGGING__DISTRIBUTED", "critical")
    try:
        code = asyncio.run(_head(words) if options.part == "head" else _worker())
    except ImportError as error:
        print(f"Dask is not found on the machine ({error}): pip install 'ebbtide[dask]'", file=sys.stderr)
        code = 1
    except OSError as error:
        print(error, file=sys.stderr)
        code = 1
    sys.exit(code)


if __name__ == "__main__":
    main()
