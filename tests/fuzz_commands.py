"""Command lines with odd options: an exit code and a sentence, never a traceback."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path
from random import Random
from typing import Any

from fuzz_case import FOREIGN, IDENTICAL, REFUSED, SILENT, VALID, Target
from mutations import ODD
from own_place import fill

from nac_openood.cli import build_parser, main

#: Options that would make a case long, or start a browser or a server.
_LEFT_OUT = ("--open", "--workers", "--demo", "--embedded")


class Commands(Target):
    """`nac-openood COMMAND ...` with options that are odd, missing, repeated, unknown."""

    name = "command line"
    tried = "options of fit, score, search, report, rank, compare, analyze, export and serve"
    weight = 4

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        fill(folder)
        network = ["--arch", f"{folder}/net.py:make", "--checkpoint", f"{folder}/net.pt"]
        data = ["--train", f"{folder}/birds/train", "--val", f"{folder}/birds/val"]
        given = [*network, "--transform", f"{folder}/transform.yml", "--device", "cpu"]
        detector, readings = f"{folder}/birds.nac", f"{folder}/readings"
        self._made(["fit", *given, *data, "--n-samples", "80", "--out", detector])
        kept = ["--save-readings", readings, "--out", f"{folder}/search", "--restarts", "1"]
        self._made(["search", *given, *data, *kept, "--n-samples", "80", "--held-out", "40"])
        images = [f"{folder}/stripes/{n}.png" for n in range(3)]
        self.commands = [
            ["score", "--detector", detector, *network, "--device", "cpu", *images],
            ["fit", *given, *data, "--n-samples", "40", "--out", "x.nac"],
            ["search", "--readings", readings, "--strategy", "random", "--budget-points", "20",
             "--out", "found"],
            ["report", f"{folder}/search"],
            ["export", "--detector", detector, *network, "--out", "x.txt"],
            ["serve", "--detector", f"{folder}/net.pt", *network],
            ["compare", *given, *data, "--out", "compared"],
            ["analyze", "layers", *given, "--train", f"{folder}/nowhere", "--out", "analyzed"],
            ["rank", f"{folder}/net.pt", *network, "--train", f"{folder}/birds", "--out", "ranked"],
        ]  # fmt: skip
        parsers = build_parser()[1]
        self.options = {
            name: [
                action.option_strings[-1]
                for action in parser._actions
                if action.option_strings and action.option_strings[-1] not in _LEFT_OUT
            ]
            for name, parser in parsers.items()
        }
        self.weights = [6, 3, 4, 1, 1, 1, 1, 1, 1]

    def _made(self, arguments: list[str]) -> None:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            assert main(arguments) == 0, arguments

    def case(self, rng: Random, place: Path) -> Any:
        (whole,) = rng.choices(self.commands, self.weights)
        arguments = self.changed(rng, whole)
        out, err = io.StringIO(), io.StringIO()
        before = Path.cwd()
        os.chdir(place)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = main(arguments)
        except SystemExit as stop:
            code = stop.code
        except Exception as error:
            raise RuntimeError(f"nac-openood {arguments}") from error
        finally:
            os.chdir(before)
        said = err.getvalue()
        if code not in (0, 1, 2) or "Traceback" in said:
            return FOREIGN, f"{arguments}: exit code {code}, {said}"
        if code:
            return REFUSED if "nac-openood" in said else (SILENT, f"{arguments}: no word of why")
        return IDENTICAL if arguments == whole else VALID

    def changed(self, rng: Random, whole: list[str]) -> list[str]:
        found = list(whole)
        for _ in range(rng.choice((1, 1, 2, 3))):
            place = rng.randrange(1, len(found) + 1)
            how = rng.randrange(6)
            value = str(rng.choice(ODD))
            if how == 0:
                del found[place:][:1]
            elif how == 1 and place < len(found):
                found[place] = value
            elif how == 2:
                found.insert(place, rng.choice((value, "--nonsense", "-x", "--")))
            elif how == 3 and place < len(found):
                found.insert(rng.randrange(1, len(found)), found[place])
            else:
                found += [rng.choice(self.options[whole[0]]), value]
        return found
