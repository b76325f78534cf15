"""The process around the application: a socket, uvicorn, and an orderly end."""

from __future__ import annotations

import signal
import socket
import threading
from importlib.util import find_spec
from typing import TYPE_CHECKING, Callable, Optional

from nac_openood.errors import NACError

if TYPE_CHECKING:
    from uvicorn import Server

    from nac_openood.serving.access import Access
    from nac_openood.serving.judge import Judge
    from nac_openood.serving.limits import Limits

_NEEDED = ("fastapi", "fastapi_offline", "uvicorn", "python_multipart", "prometheus_client")


def check_extra() -> None:
    """Refuse to go on where the libraries of the extra `serve` are missing."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise NACError(f"the service needs {', '.join(missing)}: pip install 'nac-openood[serve]'.")


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that accepts connections; port 0 takes any free one."""
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        opened = socket.socket(family, kind, number)
    except OSError as error:
        raise NACError(f"`host`: there is no address '{host}' ({error}).") from error
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        # listens from now on: connections wait until the service has started
        opened.listen(1024)
    except OSError as error:
        opened.close()
        raise NACError(
            f"cannot listen on {host}, port {port} ({error.strerror}). Choose another `port` or "
            "`host`."
        ) from error
    return opened


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
    from nac_openood.serving.connections import protocol
    from nac_openood.serving.limits import Limits

    limits = limits or Limits()
    config = uvicorn.Config(
        service(judge, limits=limits, access=access),
        http=protocol(limits), ws="none", lifespan="on", log_level="error", access_log=False,
        # the address of the connection counts: any client can claim to be a proxy
        proxy_headers=False, server_header=False,
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
    main = threading.current_thread() is threading.main_thread()
    # uvicorn raises the signals that it caught once more when it is done; here they end
    signals = (signal.SIGINT, signal.SIGTERM) if main else ()
    before = {s: signal.signal(s, lambda which, _: received.append(which)) for s in signals}
    try:
        serving.run(sockets=[opened])
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
        opened.close()
    if received:
        stopping()
