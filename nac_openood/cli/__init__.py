"""The command line: the only place that prints, names options and sets exit codes.

A command is a function in a module of this package, which is imported when the command runs or
its help is shown. The module imports its work inside that function, so that `--help` and a
mistyped option answer without waiting for torch.
"""

from __future__ import annotations

import argparse
import codecs
import inspect
import os
import sys
import textwrap
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Callable, Mapping, Optional, Sequence, Union

from nac_openood import distributed
from nac_openood.__about__ import __version__
from nac_openood.cli import output
from nac_openood.errors import NACError, why_unreadable

#: The commands in the order of `--help`: name -> (module of this package, help).
COMMANDS: Mapping[str, tuple[str, str]] = {
    "demo": ("compare", "train a small network and compare all methods on it, in about a minute"),
    "fit": ("fit", "fit a detector on your network and images, and write it to a file"),
    "score": ("score", "judge images with a fitted detector: class, score, p-value, decision"),
    "merge": ("fit", "join the shards of fit or score that ran as separate jobs, or comparisons"),
    "serve": ("deploy", "judge images over HTTP, with metrics and a page to drop images on"),
    "drift": ("drift", "test whether images, as a whole, are like the calibration data"),
    "export": ("deploy", "write a detector and its network as one ONNX or torch.export program"),
    "run": ("openood", "run one of OpenOOD's own scripts with NAC and NAC+ registered"),
    "search": ("search", "find the best settings of NAC for a network; NAC+ has none"),
    "compare": ("compare", "compare methods on a network: tables, plots, published numbers"),
    "analyze": ("analyze", "study NAC or NAC+ on a network: layers, samples, settings, cost, ..."),
    "rank": ("rank", "rank the checkpoints of a run by NAC-ME, without out-of-distribution data"),
    "report": ("compare", "write the tables and the page of a comparison again"),
    "doctor": ("openood", "show what is installed, what is missing and how to fix it"),
}
#: Commands that several processes can share.
_PARALLEL = ("fit", "score", "drift", "search", "compare", "run")


def terminal() -> int:
    """Run `main` as the console script does, with warnings on one line."""
    if sys.argv[1:2] != ["run"]:  # OpenOOD's scripts warn as they always do
        output.one_line_warnings()
    codecs.register_error("file names", _encoded)
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "file names")):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=errors)
    return main()


def _encoded(error: UnicodeError) -> tuple[Union[str, bytes], int]:
    """Print file names that are not text as they are, and what the encoding lacks as escapes."""
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeError:
        return codecs.backslashreplace_errors(error)


def main(argv: Optional[Sequence[str]] = None) -> int:
    r"""Neuron Activation Coverage: know when a network's answer cannot be trusted.

    Examples:
      nac-openood demo
          train a small network on digits, fit NAC+ and NAC, compare them with other methods
      nac-openood fit --arch net.py:make --checkpoint net.pt --transform transform.yml \
          --train birds/train --val birds/val --out birds.nac
          fit a detector on your own network and images
      nac-openood score --detector birds.nac --arch net.py:make --checkpoint net.pt photos/
          judge new images: class, confidence, score, p-value, decision
      torchrun --nproc-per-node 4 -m nac_openood score --detector birds.nac --arch net.py:make \
          --checkpoint net.pt photos/
          the same in four processes; also works with fit, drift, search, compare and run
      nac-openood serve --detector birds.nac --arch net.py:make --checkpoint net.pt
          the same over HTTP, with a page to drop images on
      nac-openood export --detector birds.nac --arch net.py:make --checkpoint net.pt \
          --out birds.onnx
          detector and network as one program for ONNX Runtime or torch.export
      nac-openood run scripts/eval_ood.py --id-data cifar10 --postprocessor nac --save-csv \
          --root results/cifar10_resnet18_32x32_base_e100_lr0.1_default
          run OpenOOD's own evaluation script, unmodified, with NAC
      nac-openood search --checkpoint best.ckpt --arch resnet18_32x32 --id-data cifar10
          find the best settings of NAC for your network
      nac-openood compare --id-data cifar10 --arch resnet18_32x32 --checkpoint best.ckpt
          compare NAC+, NAC and the paper's baselines: tables and a page with plots
      nac-openood analyze all --embedded
          the paper's analyses: layers, settings, neuron states, number of samples, ...
      nac-openood rank run/*.pt --arch resnet50 --train PACS/photo PACS/sketch
          rank the checkpoints of a training run by coverage, which may tell how well they
          generalize
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
    argv = sys.argv[1:] if argv is None else argv
    parser, commands = build_parser(argv[0] if argv else "")
    args, unknown = parser.parse_known_args(argv)
    name, run = args.command, args.run
    if unknown:
        commands[name].error(_unrecognized(unknown, commands[name]))
    output.use_options(commands[name])
    try:
        code = _run_shared(name, run, args) if distributed.launched() else run(args)
        if sys.stdout is not None:
            sys.stdout.flush()  # while an error can still be reported
        return code
    except NACError as error:
        problem, code = str(error), 1
    except OSError as error:
        problem, code = f"{error}.", 1
        if output.stdout_failed():
            if name in ("score", "merge") and isinstance(error, BrokenPipeError):
                return 0  # they only print, and the reader, e.g. `head`, has seen enough
            problem = f"cannot write to stdout: {why_unreadable(error)}."
    except KeyboardInterrupt:
        problem, code = "interrupted", 130
        if name in ("demo", "compare", "analyze", "rank"):
            problem += f". Finished parts are in {args.out}; run the same command again to continue"
    output.print_error(problem)
    return code


def build_parser(
    command: Optional[str] = None,
) -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """The main parser, and the parsers of the commands by name.

    Args:
        command: the only command whose options are added; None adds those of all.
    """
    parser = argparse.ArgumentParser(
        prog="nac-openood", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    _describe(parser, main)
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", dest="command", required=True
    )
    for name, (module, text) in COMMANDS.items():
        sub = commands.add_parser(name, help=text, formatter_class=parser.formatter_class)
        if command in (None, name):
            from nac_openood.cli.options import add_options

            run = getattr(import_module(f"{__name__}.{module}"), f"{name}_command")
            _describe(sub, run)
            add_options(sub, run)
    return parser, commands.choices


def _describe(parser: argparse.ArgumentParser, function: Callable[..., int]) -> None:
    """Make the docstring of a function the help of a command: a description, then examples."""
    text = inspect.getdoc(function) or ""  # without the indent, which Python 3.13 takes away itself
    description, _, examples = text.partition("\n\nExamples:\n")
    parser.description = textwrap.fill(" ".join(description.split()), 79)
    parser.epilog = f"examples:\n{examples}".rstrip() + "\n"


def _unrecognized(words: Sequence[str], command: argparse.ArgumentParser) -> str:
    """The error for unknown options, with a suggestion if one is similar."""
    import difflib  # only errors need it

    problem = f"unrecognized arguments: {' '.join(words)}"
    typed = next((word.partition("=")[0] for word in words if word.startswith("--")), "")
    meant = difflib.get_close_matches(typed, command._option_string_actions, n=1)
    return f"{problem}. Did you mean {meant[0]}?" if meant else problem


def _run_shared(
    name: str, run: Callable[[argparse.Namespace], int], args: argparse.Namespace
) -> int:
    """Run a command in one of the processes that `torchrun` started; return its exit code.

    The first process prints and writes files. The others print nothing but errors of their own.
    """
    from contextlib import redirect_stdout

    if name not in _PARALLEL:
        raise NACError(
            f"nac-openood {name} runs in one process: start it without torchrun. Several processes "
            f"can share {', '.join(_PARALLEL)}."
        )
    with distributed.joined() as world:
        if not world.rank:
            return run(args)
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
            try:
                return run(args)
            except NACError as error:
                if distributed.was_shared(error):
                    return 1
                raise NACError(f"{error} (process {world.rank})") from error
