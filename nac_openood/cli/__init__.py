"""The command line: one file per command, and the only place that prints and sets exit codes.

A command module has a light half, `add`, which describes the command to argparse and imports
nothing but the standard library and modules as light as itself. It imports its work inside the
function that runs, so that `--help` and a mistyped option answer without waiting for torch.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from io import TextIOWrapper
from typing import Mapping, Optional, Sequence

from nac_openood.__about__ import __version__
from nac_openood.cli.options import refuse_impossible_names
from nac_openood.cli.output import complain, say_warnings, speak_for, stdout_failed
from nac_openood.cli.processes import run_shared
from nac_openood.distributed import launched
from nac_openood.errors import NACError, why_unreadable

#: The commands, each a module of this package, in the order of `--help`.
_COMMANDS = (
    "demo", "fit", "score", "merge", "serve", "export", "run", "search", "compare", "analyze",
    "rank", "report", "doctor",
)  # fmt: skip
#: Those whose result is what they print, and nothing else.
_PRINTING = ("score", "merge")
_EPILOG = """\
examples:
  nac-openood demo
      train a small network on digits, fit NAC and compare it with other methods
  nac-openood fit --arch net.py:make --checkpoint net.pt --transform transform.yml \\
      --train birds/train --val birds/val --out birds.nac
      fit a detector on your own network and images
  nac-openood score --detector birds.nac --arch net.py:make --checkpoint net.pt photos/
      judge new images: class, confidence, score, p-value, decision
  torchrun --nproc-per-node 4 -m nac_openood score --detector birds.nac --arch net.py:make \\
      --checkpoint net.pt photos/
      the same in four processes; also works with fit, search, compare and run
  nac-openood serve --detector birds.nac --arch net.py:make --checkpoint net.pt
      the same over HTTP, with a page to drop images on
  nac-openood export --detector birds.nac --arch net.py:make --checkpoint net.pt --out birds.onnx
      detector and network as one program for ONNX Runtime or torch.export
  nac-openood run scripts/eval_ood.py --id-data cifar10 --postprocessor nac --save-csv \\
      --root results/cifar10_resnet18_32x32_base_e100_lr0.1_default
      run OpenOOD's own evaluation script, unmodified, with NAC registered
  nac-openood search --checkpoint best.ckpt --arch resnet18_32x32 --id-data cifar10
      find the best NAC settings for your network
  nac-openood compare --id-data cifar10 --arch resnet18_32x32 --checkpoint best.ckpt
      compare NAC with the paper's baselines: tables and a page with plots
  nac-openood analyze all --embedded
      the paper's analyses: layers, settings, neuron states, number of samples, ...
  nac-openood rank run/*.pt --arch resnet50 --train PACS/photo PACS/sketch
      rank the checkpoints of a training run by coverage, which may tell how well they generalize
  nac-openood report results/cifar10 --open
      write the tables and the page of a comparison again and open the page
  nac-openood doctor
      show what is installed, what is missing and how to fix it

`nac-openood COMMAND --help` describes a command and its options.

exit codes:
  0    success
  1    an error, explained on stderr; for `doctor`, something is missing
  2    an invalid option, or a comparison or analysis of which a part failed
  130  interrupted with Ctrl-C
  `run` returns the exit code of the script.
"""


def terminal() -> int:
    """What the console script calls: `main`, with warnings in one line."""
    if sys.argv[1:2] != ["run"]:  # OpenOOD's scripts warn as they always do
        say_warnings()
    for stream in (sys.stdin, sys.stdout):  # names of files may be no text
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="surrogateescape")
    return main()


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run a command and return its exit code, as listed in `nac-openood --help`."""
    parser, commands = build_parser()
    args, unknown = parser.parse_known_args(argv)
    name, command = next((n, c) for n, c in commands.items() if c.get_default("run") is args.run)
    if unknown:
        command.error(_unrecognized(unknown, command))
    speak_for(command)
    try:
        refuse_impossible_names(vars(args))
        code = run_shared(name, lambda: args.run(args)) if launched() else args.run(args)
        if sys.stdout is not None:
            sys.stdout.flush()  # an error now is told below, one at exit would not be
        return code
    except NACError as error:
        complain(str(error))
        return 1
    except OSError as error:
        if not stdout_failed():
            raise
        if name in _PRINTING and isinstance(error, BrokenPipeError):
            return 0  # as of `| head`, which has seen enough
        complain(f"cannot write to stdout: {why_unreadable(error)}.")
        return 1
    except KeyboardInterrupt:
        complain("interrupted")
        return 130


def _unrecognized(words: Sequence[str], command: argparse.ArgumentParser) -> str:
    """What is wrong with options that a command does not have, and which may have been meant."""
    import difflib  # only errors need it

    problem = f"unrecognized arguments: {' '.join(words)}"
    typed = next((word.partition("=")[0] for word in words if word.startswith("--")), "")
    meant = difflib.get_close_matches(typed, command._option_string_actions, n=1)
    return f"{problem}. Did you mean {meant[0]}?" if meant else problem


def build_parser() -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """The parser, and that of each command by its name."""
    parser = argparse.ArgumentParser(
        prog="nac-openood",
        description="Neuron Activation Coverage: know when a network's answer cannot be trusted.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in _COMMANDS:
        import_module(f"{__name__}.{name}").add(commands)
    return parser, commands.choices
