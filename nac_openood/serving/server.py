"""Runs the application: a socket, uvicorn, and a graceful shutdown."""

from __future__ import annotations

import signal
import socket
from importlib.util import find_spec
from typing import TYPE_CHECKING, Callable, Optional

from nac_openood.errors import NACError

if TYPE_CHECKING:
    from uvicorn import Server

    from nac_openood.serving.judge import Judge
    from nac_openood.serving.limits import Access, Limits

_NEEDED = ("fastapi", "fastapi_offline", "uvicorn", "python_multipart", "prometheus_client")


def check_extra() -> None:
    """Raise an error if libraries of the extra `serve` are missing."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise NACError(f"the service needs {', '.join(missing)}: pip install 'nac-openood[serve]'.")


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket on which connections wait until the service has started; port 0 is any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), port), family=family, backlog=1024)
    except OSError as error:
        raise NACError(
            f"cannot listen on {host}, port {port} ({error.strerror}). Choose another `port` or "
            "`host`."
        ) from error


def address_of(opened: socket.socket) -> str:
    """The URL of a listening socket."""
    host, port = opened.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def server(
    judge: Judge, *, limits: Optional[Limits] = None, access: Optional[Access] = None
) -> Server:
    """A uvicorn server of `judge`; `run(sockets=[...])` runs it, `should_exit` stops it."""
    check_extra()
    import uvicorn

    from nac_openood.serving.app import service
    from nac_openood.serving.limits import Limits

    limits = limits or Limits()
    config = uvicorn.Config(
        service(judge, limits=limits, access=access),
        http="h11", ws="none", lifespan="on", log_level="error", access_log=False,
        # clients are identified by the connection's address: any of them can claim to be a proxy
        proxy_headers=False, server_header=False,
        limit_concurrency=limits.max_connections + 1,  # uvicorn refuses this many
        timeout_keep_alive=max(1, int(limits.timeout)),
        timeout_graceful_shutdown=int(2 * limits.timeout) + 1,
    )  # fmt: skip
    return uvicorn.Server(config)


def run_until_signal(
    serving: Server, opened: socket.socket, *, stopping: Callable[[], None] = lambda: None
) -> None:
    """Serve until SIGINT or SIGTERM, then answer the requests under way, and return.

    Args:
        serving: from `server`.
        opened: from `listening_socket`; closed at the end.
        stopping: called when the signal has arrived and everything is answered.
    """
    received: list[int] = []
    # after its shutdown uvicorn raises the signals that it caught again; they are handled here
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {s: signal.signal(s, lambda which, _: received.append(which)) for s in signals}
    try:
        serving.run(sockets=[opened])
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
        opened.close()
    if received:
        stopping()
