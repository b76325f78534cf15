"""What publishes the package: workflows, container and hooks.

Nothing can be published from here, so every command in these files is tried as far as it goes:
targets of make exist, scripts and tools accept their options, requirements can be parsed.
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from script_module import script_module
from setuptools.config.setupcfg import read_configuration

from nac_openood.cli import build_parser

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
EXTRAS = read_configuration(ROOT / "setup.cfg")["options"]["extras_require"]
#: Programs that only exist where the files run.
ELSEWHERE = {"gh", "rm"}


def read(path):
    return yaml.safe_load(path.read_text())


def steps(path):
    return [step for job in read(path)["jobs"].values() for step in job.get("steps", ())]


def commands():
    """(file, command) for everything that the files run."""
    for path in WORKFLOWS:
        for step in steps(path):
            for line in step.get("run", "").splitlines():
                yield path.name, line
    for hook in read(ROOT / ".pre-commit-config.yaml")["repos"][0]["hooks"]:
        yield ".pre-commit-config.yaml", hook["entry"]
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        if line.startswith("RUN "):
            yield from (("Dockerfile", part) for part in line[4:].split(" && "))
        elif line.startswith("ENTRYPOINT "):
            yield "Dockerfile", shlex.join(json.loads(line.partition(" ")[2]))


def tried(words):
    """An error if a command cannot run here, as far as that can be told without running it."""
    program, *options = words
    name = Path(program).name
    if name == "pip":
        return check_pip(options)
    if name == "make":
        return run("make", "--dry-run", *options)
    if name == "nac-openood":
        return "" if build_parser()[0].parse_args([*options, "--detector", "x"]) else "refused"
    if name in ("ruff", "mypy"):
        return run(sys.executable, "-m", name, *options, "--help")
    if name == "python":
        options = [o for o in options if o not in ("dist/*", "empty", "-I", "--strict")]
        return "" if options == ["-m", "twine", "check"] else check_python(options)
    return "" if name in ELSEWHERE else f"there is no check for `{program}`"


def check_python(options):
    script = ROOT / options[0]
    if options[0] == "tests/readme_example.py":  # it has no options, and a test of its own
        return "" if script.is_file() else "no such script"
    lists = [option for option in options if option.startswith("@")]
    if not all(check_list(name[1:]) for name in lists):
        return f"{lists} names tests that do not exist"
    plain = ["--noconftest"] if "pytest" in options else []
    return run(sys.executable, *(o for o in options if o not in lists), *plain, "--help")


def check_list(name):
    """Whether a list of tests names files that exist."""
    tests = (ROOT / name).read_text().split() if (ROOT / name).is_file() else []
    return len(tests) > 40 and all((ROOT / test).is_file() for test in tests)


def check_pip(options):
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("install", choices=["install"])
    parser.add_argument("packages", nargs="*")
    parser.add_argument("-e", dest="editable", action="append", default=[])
    parser.add_argument("--index-url")
    parser.add_argument("--no-cache-dir", action="store_true")
    found = parser.parse_intermixed_args(options)
    for package in found.packages + found.editable:
        local = re.fullmatch(r"(?:\.|/src)\[(\w+)\]", package)
        if local and local[1] not in EXTRAS:
            return f"there is no extra {local[1]}"
        if not local and package != "dist/*.whl":
            Requirement(package)
    return ""


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    return done.stderr if done.returncode else ""


@pytest.mark.parametrize(("where", "command"), sorted(set(commands())))
def test_commands_run(where, command):
    assert tried(shlex.split(command)) == ""


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.name)
def test_workflows_are_whole(path):
    """Jobs wait for jobs that exist, actions have a version, and no secret is used."""
    document = read(path)
    assert True in document  # YAML reads `on` so
    for name, job in document["jobs"].items():
        needs = job.get("needs", [])
        assert {needs} if isinstance(needs, str) else set(needs) <= set(document["jobs"]), name
        called = job.get("uses")
        assert (ROOT / called).is_file() if called else job["runs-on"] and job["steps"]
    uses = [step["uses"] for step in steps(path) if "uses" in step]
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v1)", use) for use in uses), uses
    assert "secrets." not in path.read_text()


def test_what_is_tested_and_how_it_is_published():
    matrix = read(GITHUB / "workflows" / "tests.yml")["jobs"]["core"]["strategy"]["matrix"]
    assert {each.split("-")[0] for each in matrix["os"]} == {"ubuntu", "macos", "windows"}
    assert matrix["python"] == [f"3.{minor}" for minor in range(9, 15)]
    shown = re.findall(r"Python :: (3\.\d+)", (ROOT / "setup.cfg").read_text())
    assert shown == matrix["python"]
    # pip before 23.3, which comes with Python 3.9, does not find extras of other names
    assert all(name.isalnum() for name in EXTRAS)
    jobs = read(GITHUB / "workflows" / "release.yml")["jobs"]
    assert set(jobs["publish"]["needs"]) == {"tests", "build"}
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "pypa/gh-action-pypi-publish@release/v1" in [s["uses"] for s in jobs["publish"]["steps"]]


def test_templates_and_citation_can_be_read():
    for form in ("bug.yml", "idea.yml"):
        found = read(GITHUB / "ISSUE_TEMPLATE" / form)
        assert found["name"] and found["description"]
        assert all(part["attributes"]["label"] for part in found["body"])
    citation = read(ROOT / "CITATION.cff")
    title = citation["references"][0]["title"]
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert title in (ROOT / "docs" / "index.md").read_text()


def test_a_tag_must_fit_version_and_changelog():
    not_ready = script_module("build_wheel").not_ready
    about, log = '"""Doc."""\n\n__version__ = "0.2.0"\n', "## 0.2.0 (2027-01-31)\n"
    assert not_ready("v0.2.0", about, log) == ""
    assert "has version 0.2.0" in not_ready("v0.3.0", about, log)
    assert "no heading" in not_ready("v0.2.0", about, "## 0.2.0 (unreleased)\n")
