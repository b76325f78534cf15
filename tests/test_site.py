"""The documentation's site builds without a warning, and its reference is complete."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from pages import show

import nac_openood
from nac_openood.cli import build_parser

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for module in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(module, reason="the site needs the extra `docs`")
    out = tmp_path_factory.mktemp("site")
    build = ["-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    done = subprocess.run([sys.executable, *build], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


def test_it_has_few_pages(site):
    assert len(list(site.rglob("*.html"))) <= 23, "merge pages, or move one out of the site"


def test_its_reference_has_every_public_name(site):
    pages = (site / "api.html").read_text()
    documented = set(re.findall(r'id="nac_openood\.(?:\w+\.)*(\w+)"', pages))
    assert not set(nac_openood.__all__) - {"__version__"} - documented


def test_its_command_line_has_every_option(site):
    page = (site / "command_line.html").read_text()
    for name, command in build_parser()[1].items():
        section = page.split(f'id="nac-openood-{name}"')[1].split("<h2")[0]
        for option in command._option_string_actions:
            assert option in section, f"{name} {option}"


def test_it_loads_nothing_from_other_hosts(site):
    for path in site.rglob("*.html"):
        loads = r'<(?:script|img|iframe)[^>]+src="(https?:|//)|<link[^>]+href="(https?:|//)'
        assert not re.search(loads, path.read_text()), path.name


def test_its_search_works_when_it_is_opened_from_a_folder(browser, site):
    show(browser, (site / "tutorials" / "images.html").as_uri(), 1280)
    browser.find_element("css selector", "[data-md-component=search-query]").send_keys("wandb")
    browser.implicitly_wait(60)  # seconds until the index is read
    assert browser.find_elements("css selector", ".md-search-result__item")
    browser.implicitly_wait(0)


def commands(text):
    """`(command, options)` of every call of nac-openood in the code blocks of a page."""
    for block in re.findall(r"^```\w*\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            call = re.match(r"nac-openood (\w+)([^#|]*)", line.strip())
            if call:
                yield call[1], re.findall(r"(?<=\s)--[\w-]+", call[2])


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))], ids=lambda p: p.stem
)
def test_commands_and_options_exist(path):
    known = build_parser()[1]
    for name, options in commands(path.read_text(encoding="utf-8")):
        assert name in known
        if name != "run":  # its options are those of OpenOOD's script
            assert not set(options) - set(known[name]._option_string_actions), name
