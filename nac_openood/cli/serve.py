"""`nac-openood serve`: serve a detector over HTTP."""

from __future__ import annotations

import argparse
import os
import re
from dataclasses import fields
from typing import TYPE_CHECKING

from nac_openood.cli import inputs
from nac_openood.cli.options import DETECTOR, command
from nac_openood.cli.output import print_error, say
from nac_openood.errors import NACError
from nac_openood.serving.limits import Limits

if TYPE_CHECKING:
    from nac_openood.serving.judge import Judge
    from nac_openood.serving.limits import Access

_TOKEN = "NAC_TOKEN"


def _limits_table() -> str:
    """The options for the fields of `Limits`, with help from its docstring."""
    helps = dict(re.findall(r"^ {8}(\w+): (.*)\.$", Limits.__doc__ or "", re.MULTILINE))
    rows = []
    for field in fields(Limits):
        kind = "int" if isinstance(field.default, int) else "float"
        default = "" if field.default is None else f" = {field.default}"
        text = helps.get(field.name, "") + (" (default: %(default)s)" if default else "")
        rows.append(f"  {inputs.option(field.name)} N: {kind}{default}   {text}")
    return "\n".join(rows)


@command(
    f"""{DETECTOR}\
  --alpha --device
who may use it:
  --host HOST = 127.0.0.1   address to listen on; other than this machine's own needs a token
      (default: %(default)s)
  --port N: int = 8000    0 picks a free one (default: %(default)s)
  --token-file FILE       file with the token that clients must send (default: ${_TOKEN}, or none)
  --allowed-host NAME: append   name that a proxy passes on in the Host header; may be repeated
limits:
{_limits_table()}
""",
    inputs.NETWORK_FORMS,
)
def serve_command(args: argparse.Namespace) -> int:
    r"""Serve a detector that nac-openood fit wrote over HTTP.

    It listens on this machine only unless --host says otherwise.

    Examples:
      nac-openood serve --detector birds.nac --arch net.py:make --checkpoint net.pt
          serve on http://127.0.0.1:8000: a page to drop images on, and the API
      curl --data-binary @photo.jpg -H 'Content-Type: image/jpeg' http://127.0.0.1:8000/score
          judge one image; several: curl -F image=@a.jpg -F image=@b.jpg http://127.0.0.1:8000/score
      NAC_TOKEN=... nac-openood serve --detector birds.nac --arch net.py:make --checkpoint net.pt \
          --host 0.0.0.0
          for other machines; they send the header Authorization: Bearer TOKEN

    Paths: / (the page), /score, /health, /ready, /metrics (Prometheus) and /docs (OpenAPI).
    Results have the columns of nac-openood score. On SIGTERM or Ctrl-C the service answers the
    requests in progress, then stops. It speaks plain HTTP: put a proxy with TLS in front of it if
    others can listen on the network. See docs/serving.md.
    For exit codes see nac-openood --help.
    """
    from nac_openood.serving import server

    server.check_extra()
    access = _access(args)
    limits = Limits(**{field.name: getattr(args, field.name) for field in fields(Limits)})
    # before the network is loaded, which may be slow
    opened = server.listening_socket(args.host, args.port)
    with opened:
        serving = server.server(_judge(args), limits=limits, access=access)
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
    judge = Judge(inputs.detector_of(args, images_to="serve"), alpha=args.alpha)
    failed = judge.warm_up()
    if failed:
        print_error(
            f"warning: the network fails on a gray image of 64 x 64 pixels ({failed}). Does the "
            "transform resize images?"
        )
    return judge


def _access(args: argparse.Namespace) -> Access:
    from nac_openood.files import read_text
    from nac_openood.serving.limits import Access, is_loopback

    token, hosts = os.environ.get(_TOKEN) or None, tuple(args.allowed_host)
    if args.token_file is not None:
        token = read_text(args.token_file, f"--token-file {args.token_file}").strip()
    if is_loopback(args.host):
        return Access(token, hosts)
    if token is None:
        raise NACError(
            f"--host {args.host} lets other machines in, which needs a token: pass --token-file "
            f"FILE or set {_TOKEN}. Make one: python -c 'import secrets; "
            "print(secrets.token_urlsafe())'"
        )
    return Access(token, hosts or None)
