"""`nac-openood serve` and `export`: a detector as an HTTP service or a program of its own."""

from __future__ import annotations

import argparse
import inspect
import os
import re
import warnings
from dataclasses import fields
from pathlib import Path

from nac_openood.cli import inputs
from nac_openood.cli.options import DETECTOR, command
from nac_openood.cli.output import print_error, say, show
from nac_openood.errors import NACError
from nac_openood.serving.limits import Access, Limits, is_loopback

_TOKEN = "NAC_TOKEN"


def _limits_table() -> str:
    """The options for the fields of `Limits`, with help from its docstring."""
    helps = dict(re.findall(r"^ {4}(\w+): (.*)\.$", inspect.getdoc(Limits) or "", re.MULTILINE))
    rows = []
    for field in fields(Limits):
        kind = "count" if isinstance(field.default, int) else "float"
        default = "" if field.default is None else f" = {field.default}"
        text = helps.get(field.name, "") + (" (default: %(default)s)" if default else "")
        rows.append(f"  {inputs.option(field.name)} N: {kind}{default}   {text}")
    return "\n".join(rows)


@command(
    f"""{DETECTOR}\
  --alpha --device
  --monitor FILE          keep the state of the drift monitor in FILE, and continue from it; written
      every minute and at the end
who may use it:
  --host HOST = 127.0.0.1   address to listen on; one that other machines can reach needs a token
      (default: %(default)s)
  --port N: port = 8000    0 picks a free one (default: %(default)s)
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

    Paths: / (the page), /score, /drift (are the images so far like the calibration data?), /health,
    /ready, /metrics (Prometheus) and /docs (OpenAPI).
    Results have the columns of nac-openood score. On SIGTERM or Ctrl-C the service answers the
    requests in progress, then stops. It speaks plain HTTP: put a proxy with TLS in front of it if
    others can listen on the network. See docs/deploy.md.
    For exit codes see nac-openood --help.
    """
    try:
        from nac_openood.serving import app
    except ImportError as error:
        problem = f"the service needs {error.name}: pip install 'nac-openood[serve]'."
        raise NACError(problem) from error
    from PIL import Image

    access = _access(args)
    limits = Limits(**{field.name: getattr(args, field.name) for field in fields(Limits)})
    # before the network is loaded, which may be slow
    with app.listening_socket(args.host, args.port) as opened:
        # every image is checked before it is decoded
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        judge = app.Judge(inputs.detector_of(args, images_for="serve"), alpha=args.alpha)
        judge.pipeline.detector._p_values().warn_if_never(args.alpha)
        failed = judge.warm_up()
        if failed:
            print_error(
                f"warning: the network fails on a gray image of 64 x 64 pixels ({failed}). Does "
                "the transform resize images?"
            )
        host, port = opened.getsockname()[:2]
        address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        with inputs.monitor_of(judge.pipeline.detector, args.monitor) as monitor:
            judge.monitor, judge.monitor_file = monitor or judge.monitor, args.monitor
            serving = app.server(judge, limits=limits, access=access)
            say(f"serving {args.detector} on {address} (Ctrl-C stops)")
            if access.token is not None:
                say("clients must send the token: Authorization: Bearer TOKEN")
            app.run_until_signal(serving, opened)
        say("stopped")
    return 0


def _access(args: argparse.Namespace) -> Access:
    from nac_openood.files import read_text

    token, hosts = os.environ.get(_TOKEN) or None, tuple(args.allowed_host)
    if args.token_file is not None:
        token = read_text(args.token_file, f"--token-file {args.token_file}").strip()
    is_local = is_loopback(args.host)
    if not is_local and token is None:
        raise NACError(
            f"--host {args.host} lets other machines in, which needs a token: pass --token-file "
            f"FILE or set {_TOKEN}."
        )
    return Access(token, hosts if is_local else hosts or None)


@command(
    f"""{DETECTOR}
program:
  --alpha
  --out FILE = detector.onnx   ends in .onnx or .pt2 (default: ./%(default)s)
  --device
""",
    inputs.NETWORK_FORMS,
)
def export_command(args: argparse.Namespace) -> int:
    r"""Write a fitted detector and its network as one program, which runs without this package.

    Examples:
      nac-openood export --detector birds.nac --arch net.py:make --checkpoint net.pt \
          --out birds.onnx
          for ONNX Runtime, in any of its languages (needs pip install 'nac-openood[export]')
      nac-openood export --detector birds.nac --arch net.py:make --checkpoint net.pt \
          --alpha 0.01 --out birds.pt2
          for torch.export.load

    The program takes images as the transform makes them, [batch, channels, height, width], and
    returns logits, score, p_value and decision (true where an image is out-of-distribution). A
    rule that needs gradients, such as the paper's NAC, cannot be exported. See docs/deploy.md.
    For exit codes see nac-openood --help.
    """
    out = Path(args.out)
    inputs.check_output(args, "out")
    pipeline = inputs.detector_of(args, images_for="export")
    images = pipeline.gray_input()
    pipeline.detector.export(out, images, alpha=args.alpha)
    shape = ", ".join(map(str, images.shape[1:]))
    show(f"Written to {out} ({out.stat().st_size / 1e6:.1f} MB): takes images [batch, {shape}]")
    return 0
