"""`nac-openood serve`: a detector file behind HTTP."""

from __future__ import annotations

import argparse
import os
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Mapping, Optional

from nac_openood.cli import given, options
from nac_openood.cli.output import complain, say
from nac_openood.errors import NACError
from nac_openood.serving.limits import Limits

if TYPE_CHECKING:
    from nac_openood.serving.access import Access
    from nac_openood.serving.judge import Judge

_EXAMPLES = f"""\
examples:
  nac-openood serve --detector birds.nac --arch net.py:make --checkpoint net.pt
      serve on http://127.0.0.1:8000: a page to drop images on, and the API
  curl --data-binary @photo.jpg -H 'Content-Type: image/jpeg' http://127.0.0.1:8000/score
      judge one image; several: curl -F image=@a.jpg -F image=@b.jpg http://127.0.0.1:8000/score
  NAC_TOKEN=... nac-openood serve --detector birds.nac --arch net.py:make --checkpoint net.pt \\
      --host 0.0.0.0
      for other machines; they send the header Authorization: Bearer TOKEN

Paths: / (the page), /score, /health, /ready, /metrics (Prometheus) and /docs (OpenAPI).
Results have the columns of nac-openood score. On SIGTERM or Ctrl-C the service answers the requests
in progress, then stops. It speaks plain HTTP: put a proxy with TLS in front of it if others can
listen on the network. See docs/serving.md.
For exit codes see nac-openood --help.

{options.NETWORK_FORMS}"""
_TOKEN = "NAC_TOKEN"
_LIMITS: Mapping[str, tuple[str, str]] = {
    "max_pixels": ("N", "pixels of an image"),
    "max_bytes": ("N", "size of a request's body"),
    "max_images": ("N", "images in a request"),
    "max_requests": ("N", "requests at the same time"),
    "max_connections": ("N", "open connections"),
    "max_queue": ("N", "images that wait for the network"),
    "max_batch": ("N", "images in a pass over the network"),
    "max_wait_ms": ("MS", "milliseconds that an image waits for others to join its batch"),
    "timeout": ("S", "seconds that a request may take to arrive, and then to be answered"),
    "rate": ("N", "images per second from one client"),
}


def add(commands: options.Commands) -> None:
    """Add the command to the parser."""
    parser = options.add_command(
        commands, "serve", _serve, epilog=_EXAMPLES,
        help="judge images over HTTP, with metrics and a page to drop images on",
        description="Serve a detector that nac-openood fit wrote over HTTP, on this machine only "
        "unless --host says otherwise.",
    )  # fmt: skip
    group = parser.add_argument_group("detector and network")
    given.add_detector(group)
    options.add(group, "--alpha", "--device")
    _add_access(parser)
    group = parser.add_argument_group("limits")
    defaults = {field.name: field.default for field in fields(Limits)}
    for name, (metavar, meaning) in _LIMITS.items():
        default: Any = defaults[name]
        group.add_argument(
            options.option(name), type=int if isinstance(default, int) else float, default=default,
            metavar=metavar,
            help=f"{meaning} (default: {'unlimited' if default is None else '%(default)s'})",
        )  # fmt: skip


def _add_access(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("who may use it").add_argument
    add(
        "--host", default="127.0.0.1",
        help="address to listen on; other than this machine's own needs a token "
        "(default: %(default)s)",
    )  # fmt: skip
    add(
        "--port",
        type=int,
        default=8000,
        metavar="N",
        help="0 picks a free one (default: %(default)s)",
    )
    add(
        "--token-file", metavar="FILE",
        help=f"file with the token that clients must send (default: ${_TOKEN}, or none)",
    )  # fmt: skip
    add(
        "--allowed-host", action="append", default=[], metavar="NAME",
        help="name that a proxy passes on in the Host header; may be repeated",
    )  # fmt: skip


def _serve(args: argparse.Namespace) -> int:
    from nac_openood.serving import server

    server.check_extra()
    access, limits = _access(args), Limits(**{name: getattr(args, name) for name in _LIMITS})
    # before the network is loaded, which may take long
    opened = server.listening_socket(args.host, args.port)
    with opened:
        judge = _judge(args)
        serving = server.server(judge, limits=limits, access=access)
        say(f"serving {args.detector} on {server.address_of(opened)} (Ctrl-C stops)")
        if access.token is not None:
            say("clients must send the token: Authorization: Bearer TOKEN")
        server.run_until_signal(serving, opened, stopping=lambda: say("stopped"))
    return 0


def _judge(args: argparse.Namespace) -> Judge:
    import warnings

    from PIL import Image

    from nac_openood.serving.judge import Judge

    # every image is checked before it is decoded
    warnings.simplefilter("ignore", Image.DecompressionBombWarning)
    judge = Judge(given.deployed(args, images_to="serve"), alpha=args.alpha)
    failed = judge.warm_up()
    if failed:
        complain(
            f"warning: the network fails on a gray image of 64 x 64 pixels ({failed}). Does the "
            "transform resize images?"
        )
    return judge


def _access(args: argparse.Namespace) -> Access:
    from nac_openood.serving.access import Access, is_loopback

    token, hosts = _token(args), tuple(args.allowed_host)
    if is_loopback(args.host):
        return Access(token, hosts)
    if token is None:
        raise NACError(
            f"--host {args.host} lets other machines in, which needs a token: pass --token-file "
            f"FILE or set {_TOKEN}. Make one: python -c 'import secrets; "
            "print(secrets.token_urlsafe())'"
        )
    return Access(token, hosts or None)


def _token(args: argparse.Namespace) -> Optional[str]:
    from nac_openood.files import read_text

    if args.token_file is None:
        return os.environ.get(_TOKEN) or None
    return read_text(args.token_file, f"--token-file {args.token_file}").strip()
