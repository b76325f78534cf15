"""The page as a reader meets it: in a real browser, on a desk and on a phone."""

import base64
from dataclasses import replace

import pytest
from pages import check_width, keep_picture, requests, show
from PIL import Image
from report_example import SETS, WORKED, build

from nac_openood.benchmark.run.results import ConfidentMistakes, Mistake
from nac_openood.report.comparison import write_page

#: The column of far-OOD AUROC in the ranking: #, method and three metrics of near-OOD before it.
FAR_AUROC = 5


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    files = [f"gallery/{number:02d}.png" for number in range(12)]
    sets = {info.name: (info.images, 40, 30) for info in SETS[1:]}
    mistakes = tuple(Mistake(name, "1.png", "cat", 0.9996, 0.004, files[0]) for name in [*sets][:3])
    shown = dict.fromkeys(sets, files[:4])
    told = ConfidentMistakes("NAC", 10, 300, sets, mistakes, 0.9, 0.05, files[:8], shown)
    found = build(tmp_path_factory.mktemp("page"), lambda r: replace(r, confident=told))
    return write_page(found).resolve().as_uri()


def column(browser, place):
    script = (
        "return [...document.querySelectorAll('#ranking tbody tr')]"
        ".map(row => row.cells[arguments[0]]?.dataset.value || '')"
    )
    return browser.execute_script(script, place)


def buttons(browser):
    return browser.find_elements("css selector", "#ranking thead button")


@pytest.mark.parametrize(("width", "name"), [(1280, "report.png"), (390, "report_phone.png")])
def test_the_page_is_whole_quiet_and_visible(browser, url, width, name):
    browser.get_log("browser"), browser.get_log("performance")
    show(browser, url, width)
    picture = keep_picture(browser, name)
    assert browser.get_log("browser") == []
    asked = [r for r in requests(browser, url) if not r.startswith("data:")]
    assert asked == [url]
    check_width(browser, width)
    with Image.open(picture) as image:
        assert image.width == width and image.height > 3000
    plots = browser.execute_script(
        "return [...document.querySelectorAll('svg.plot')].map(p => {"
        " const box = p.getBoundingClientRect(), ink = p.getBBox();"
        " return [box.width, box.height, ink.width, ink.height, p.ariaLabel.length] })"
    )
    assert len(plots) == 21
    assert all(w > 200 and h > 80 and iw > 100 and ih > 50 and n > 30 for w, h, iw, ih, n in plots)
    sizes = browser.execute_script(
        "return [...document.querySelectorAll('svg.plot text')].map(t =>"
        " parseFloat(getComputedStyle(t).fontSize) * t.ownerSVGElement.getScreenCTM().a)"
    )
    assert min(sizes) > 6, "text in figures is too small to read"
    images = browser.execute_script(
        "return [...document.images].map(i => [i.complete, i.naturalWidth, i.clientWidth, i.alt])"
    )
    assert len(images) == 12 + 3 + 8 + 4 * (len(SETS) - 1)
    assert all(done and natural > 0 and w > 0 and alt for done, natural, w, alt in images)


def test_labels_of_the_scatter_do_not_overlap(browser, url):
    show(browser, url, 1280)
    overlaps = browser.execute_script(
        "return [...document.querySelectorAll('#times svg')].map(p => {"
        " const b = [...p.querySelectorAll('text')].map(t => t.getBoundingClientRect());"
        " let n = 0;"
        " b.forEach((x, i) => b.slice(i + 1).forEach(y => { n += x.left < y.right - 1 &&"
        "   y.left < x.right - 1 && x.top < y.bottom - 4 && y.top < x.bottom - 4 }));"
        " return n })"
    )
    assert overlaps == [0, 0]


def test_sorting_by_click(browser, url):
    show(browser, url, 1280)
    button = buttons(browser)[FAR_AUROC]
    head = button.find_element("xpath", "..")
    assert head.text.startswith("AUROC") and head.get_attribute("aria-sort") is None
    before = column(browser, FAR_AUROC)
    button.click()
    assert head.get_attribute("aria-sort") == "descending"
    values = [float(v) for v in column(browser, FAR_AUROC)]
    assert values == sorted(values, reverse=True) and len(values) == WORKED
    button.click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert [float(v) for v in column(browser, FAR_AUROC)] == sorted(values)
    buttons(browser)[3].click()
    values = [float(v) for v in column(browser, 3)]
    assert values == sorted(values), "the best come first: of FPR@95, the lowest"
    buttons(browser)[0].click()
    assert column(browser, FAR_AUROC) == before and head.get_attribute("aria-sort") is None


def test_sorting_by_keyboard(browser, url):
    from selenium.webdriver import Keys

    show(browser, url, 1280)
    first, second = buttons(browser)[:2]
    first.send_keys(Keys.TAB)
    assert browser.switch_to.active_element == second
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    names = [n.lower() for n in column(browser, 1)]
    assert names == sorted(names)
    browser.switch_to.active_element.send_keys(Keys.SPACE)
    assert [n.lower() for n in column(browser, 1)] == sorted(names, reverse=True)


def test_the_command_can_be_copied(browser, url):
    browser.get_log("browser")  # of the pages before
    show(browser, url, 1280)
    browser.find_element("css selector", ".copy").click()
    assert browser.get_log("browser") == []


def test_it_prints(browser, url):
    show(browser, url, 718)  # A4 without its margins
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert browser.execute_script("return document.documentElement.scrollWidth") == 718
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    content = base64.b64decode(printed["data"])
    assert content.startswith(b"%PDF") and 4 <= content.count(b"/Type /Page\n") <= 20
