"""Damage of all kinds: to bytes, to texts, to JSON and YAML values.

Each function takes a seeded `random.Random` and returns a changed copy; what it returns may be
equal to what it was given.
"""

import copy
from pathlib import Path
from random import Random
from typing import Any, Iterator

#: Values of the wrong type or size, for the entries of a document.
ODD: list[Any] = [
    None, True, False, "", "abc", "no", "False", "nan", "²", "--5", "-1", "1e400", "\u202e", "a" * 500,
    0, -1, 1, 2, 2**31, 2**63, 10**40, -0.5, 0.5, 1e-320, 1e308, float("nan"), float("inf"),
    [], {}, [1], ["a", None], {"a": 1}, {"": []}, [[[[[]]]]], [0.1, 0.2, 0.3], {"layers": None},
]  # fmt: skip
_TOKENS = ("\0", "\n", "\t", " ", ":", "- ", "{", "}", "[", "]", '"', "'", "#", ",", "&a ", "*a", "!!",
           "---", "%", "é", "\ufeff", "\r", "0", "9" * 30, "null", "../", "/")  # fmt: skip


def bytes_mutated(rng: Random, content: bytes) -> bytes:
    """Flipped, lost, repeated, foreign and zeroed bytes."""
    found = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        size = len(found)
        at, end = sorted((rng.randrange(size + 1), rng.randrange(size + 1)))
        how = rng.randrange(8)
        if how <= 2 and size:
            found[rng.randrange(min(size, rng.choice((16, 400, size))))] ^= 1 << rng.randrange(8)
        elif how == 3:
            del found[at : min(end, at + rng.choice((1, 4, size)))]
        elif how == 4:
            found[at:at] = found[at : min(end, at + 64)]
        elif how == 5:
            found[at:at] = rng.randbytes(rng.choice((1, 3, 100)))
        elif how == 6:
            del found[at:]
        else:
            found[at:end] = bytes(end - at)
    return bytes(found)


def text_mutated(rng: Random, text: str) -> str:
    """Lines lost, repeated and swapped; characters and tokens that do not belong there."""
    lines = text.split("\n")
    for _ in range(rng.choice((1, 1, 2, 4))):
        how, line, other = rng.randrange(5), *(rng.randrange(len(lines)) for _ in range(2))
        text = lines[line]
        at = rng.randrange(len(text) + 1)
        if how == 0 and len(lines) > 1:
            del lines[line]
        elif how == 1:
            lines.insert(other, text)
        elif how == 2:
            lines[line], lines[other] = lines[other], text
        elif how == 3:  # a token, or a character less
            lines[line] = text[:at] + rng.choice((*_TOKENS, "")) + text[at + rng.randrange(2) :]
        else:
            words = text.split(" ")
            words[rng.randrange(len(words))] = str(rng.choice(ODD))
            lines[line] = " ".join(words)
    return "\n".join(lines)


def value_mutated(rng: Random, value: Any) -> Any:
    """A JSON value in which entries are of another type, missing, renamed, new or swapped."""
    found = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 1, 2))):
        entries = list(_entries(found))
        if not entries:
            return rng.choice(ODD)
        parent, key = rng.choice(entries)
        how = rng.randrange(8)
        if how <= 3:
            parent[key] = copy.deepcopy(rng.choice(ODD))
        elif how == 4:
            del parent[key]
        elif how == 5 and isinstance(parent, dict):
            parent[f"{key}_"] = parent.pop(key)
        elif how == 6:
            other, name = rng.choice(entries)
            parent[key] = copy.deepcopy(other[name])
        elif isinstance(parent[key], (int, float)) and not isinstance(parent[key], bool):
            parent[key] = -parent[key] * rng.choice((1, 2, 1e9))
        else:
            parent[key] = [parent[key]]
    return found


def _entries(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) in a JSON value."""
    keys = range(len(value)) if isinstance(value, list) else value
    for key in keys if isinstance(value, (dict, list)) else ():
        yield value, key
        yield from _entries(value[key])


def mutate_bytes(rng: Random, path: Path) -> None:
    """Damage a file; what the machine or a program may do to it by accident."""
    path.write_bytes(bytes_mutated(rng, path.read_bytes()))
