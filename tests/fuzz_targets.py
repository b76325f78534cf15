"""The table of everything that is fuzzed. `scripts/fuzz.py` runs it long, `test_fuzz.py` short."""

from __future__ import annotations

from fuzz_case import Target
from fuzz_commands import Commands
from fuzz_files import (
    ChangedDetectors,
    ChangedReadings,
    Checkpoints,
    Detectors,
    OneFileOfReadings,
    SavedReadings,
    Shards,
)
from fuzz_inputs import Configs, Folders, Images, Lists, Tables, Transforms
from fuzz_programs import Programs
from fuzz_results import Comparisons, Findings, Rankings, Reports

TARGETS: tuple[type[Target], ...] = (
    Configs, Transforms, Detectors, ChangedDetectors, SavedReadings, ChangedReadings,
    OneFileOfReadings, Checkpoints, Programs, Shards, Comparisons, Reports, Rankings, Findings, Lists,
    Tables, Folders, Images, Commands,
)  # fmt: skip
