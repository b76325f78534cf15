"""Build the wheel and the sdist of a commit, the same bytes whoever builds them.

    python scripts/build_wheel.py [--out dist] [--tag v0.1.0]

The last commit is exported twice and built twice, with the tools of constraints/build.txt. Times
are those of the commit, owners and permissions are fixed. If the two builds differ, nothing is
written and the exit code is 1. The SHA-256 sums are printed, for others to compare. With a tag,
that commit must be ready for its release.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Iterator

from build import ProjectBuilder
from build.env import DefaultIsolatedEnv

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("wheel", "sdist")


def git(*words: str) -> bytes:
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True).stdout


def export(folder: Path) -> Path:
    """The files of the last commit, and nothing else."""
    archive = git("-c", "tar.umask=0022", "archive", "--format=tar", "HEAD")
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        tar.extractall(folder, **safely)  # type: ignore[arg-type]
    return folder


@contextlib.contextmanager
def same_for_all(epoch: str) -> Iterator[None]:
    """Surroundings that leave a trace in files: the time, permissions, the order of hashes."""
    fixed = {"SOURCE_DATE_EPOCH": epoch, "PYTHONHASHSEED": "0", "TZ": "UTC", "LC_ALL": "C.UTF-8"}
    before = {name: os.environ.get(name) for name in fixed}
    mask = os.umask(0o022)
    os.environ.update(fixed)
    try:
        yield
    finally:
        os.umask(mask)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def rewritten(sdist: Path, epoch: int) -> None:
    """Write an sdist again, sorted, without owners, with the time of the commit."""
    with tarfile.open(sdist) as old:
        members = sorted(old.getmembers(), key=lambda member: member.name)
        content = {m.name: old.extractfile(m).read() for m in members if m.isfile()}  # type: ignore[union-attr]
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in members:
            member.mtime, member.uid, member.gid = epoch, 0, 0
            member.uname = member.gname = ""
            member.pax_headers = {}
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            new.addfile(member, io.BytesIO(content[member.name]) if member.isfile() else None)
    sdist.write_bytes(gzip.compress(raw.getvalue(), mtime=epoch))


def build(env: DefaultIsolatedEnv, source: Path, out: Path, epoch: str) -> dict[str, str]:
    """Build both; the SHA-256 sum of each file by its name."""
    builder = ProjectBuilder.from_isolated_env(env, export(source), runner=_quietly)
    with same_for_all(epoch):
        for kind in KINDS:
            made = Path(builder.build(kind, str(out)))
            if kind == "sdist":
                rewritten(made, int(epoch))
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(out.iterdir())
    }


def _quietly(words: list[str], cwd: str | None = None, extra_environ: dict | None = None) -> None:
    env = {**os.environ, **(extra_environ or {})}
    done = subprocess.run(words, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        sys.stderr.write(done.stdout.decode(errors="replace"))
        done.check_returncode()


def not_ready(tag: str, about: str, changelog: str) -> str:
    """Why a commit with these files cannot be released under a tag; "" if it can."""
    version = about.split('__version__ = "')[1].split('"')[0]
    if tag != f"v{version}":
        return f"the tag is {tag}, but nac_openood/__about__.py has version {version}"
    if not re.search(rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$", changelog, re.MULTILINE):
        return f"CHANGELOG.md has no heading '## {version} (YYYY-MM-DD)'"
    return ""


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("dist"), help="default: %(default)s")
    parser.add_argument("--tag", help="refuse a commit that is not ready for this release")
    args = parser.parse_args(words)
    if args.tag:
        files = "nac_openood/__about__.py", "CHANGELOG.md"
        problem = not_ready(args.tag, *(git("show", f"HEAD:{name}").decode() for name in files))
        if problem:
            print(f"not ready for a release: {problem}", file=sys.stderr)
            return 1
    epoch = git("log", "-1", "--format=%ct").decode().strip()
    tools = [
        line
        for line in (ROOT / "constraints" / "build.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    with tempfile.TemporaryDirectory() as folder, DefaultIsolatedEnv() as env:
        env.install(tools)
        made = [Path(folder) / f"made_{number}" for number in (1, 2)]
        sums = [build(env, Path(folder) / f"source_{out.name}", out, epoch) for out in made]
        if sums[0] != sums[1]:
            print(f"two builds of one commit differ: {sums}", file=sys.stderr)
            return 1
        args.out.mkdir(parents=True, exist_ok=True)
        for name, digest in sums[0].items():
            shutil.copyfile(made[0] / name, args.out / name)
            print(f"{digest}  {args.out / name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
