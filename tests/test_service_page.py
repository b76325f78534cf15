"""The page to drop images on, in a real browser."""

import base64

import pytest
from pages import check_width, keep_picture, requests, show
from service_toy import encoded, picture, running

from nac_openood.serving.limits import Access, Limits

TOKEN = "a-token-of-some-length"
DROP = """
const [kind, name, text] = arguments, transfer = new DataTransfer();
const bytes = Uint8Array.from(atob(text), c => c.charCodeAt(0));
transfer.items.add(new File([bytes], name, {type: "image/png"}));
const event = kind === "paste" ? new ClipboardEvent("paste", {clipboardData: transfer})
                               : new DragEvent("drop", {dataTransfer: transfer, bubbles: true, cancelable: true});
document.getElementById("drop").dispatchEvent(event);
if (kind === "paste") window.dispatchEvent(event);
"""


@pytest.fixture(scope="module")
def url(judge):
    with running(judge, Limits(max_bytes=100_000)) as ((host, port), _):
        yield f"http://{host}:{port}/"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    contents = {
        "one.png": encoded(picture(1, 80)),
        "two, with a very long name that goes on and on and on and on.png": encoded(picture(2)),
        "no image.png": b"hello",
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in contents]


def choose(browser, *files):
    browser.find_element("id", "file").send_keys("\n".join(map(str, files)))


def results(browser, number):
    """What the page says about each image, newest first, once all are judged."""
    from selenium.webdriver.support.ui import WebDriverWait

    script = "return [...document.querySelectorAll('#results li')].map(i => i.innerText)"
    ended = "return document.getElementById('status').textContent.endsWith('judged.')"
    WebDriverWait(browser, 120).until(
        lambda b: b.execute_script(ended) and len(b.execute_script(script)) == number
    )
    return list(browser.execute_script(script))


@pytest.mark.parametrize(("width", "name"), [(1280, "service.png"), (390, "service_phone.png")])
def test_chosen_images_are_judged(browser, url, judge, files, width, name):
    browser.get_log("browser"), browser.get_log("performance")
    show(browser, url, width)
    choose(browser, *files)
    bad, second, first = results(browser, 3)
    right = judge.answers(judge.tensor(files[0].read_bytes())[None])[0]
    assert first.startswith("one.png\n") and right.label in first
    assert ("✗ out-of-distribution" if right.decision == "out" else "✓ in-distribution") in first
    assert f"{right.confidence:.3g}" in first and "p-value" in second
    assert "no image.png cannot be read: not an image" in bad
    keep_picture(browser, name)
    check_width(browser, width)
    asked = {r for r in requests(browser, url) if not r.startswith(("data:", "blob:"))}
    assert url in asked and {r for r in asked if not r.startswith(url)} == set()
    # the browser itself notes the 415; nothing else is wrong, least of all the content policy
    assert [e["message"] for e in browser.get_log("browser") if "415" not in e["message"]] == []


def test_images_can_be_dropped_and_pasted(browser, url, files):
    show(browser, url, 1280)
    text = base64.b64encode(files[0].read_bytes()).decode()
    browser.execute_script(DROP, "drop", "dropped.png", text)
    assert results(browser, 1)[0].startswith("dropped.png\n")
    browser.execute_script(DROP, "paste", "pasted.png", text)
    assert results(browser, 2)[0].startswith("pasted.png\n")


def test_it_works_by_keyboard_and_has_names(browser, url):
    from selenium.webdriver import Keys

    show(browser, url, 1280)
    for _ in range(2):  # a link, then the input
        browser.switch_to.active_element.send_keys(Keys.TAB)
    assert browser.switch_to.active_element.get_attribute("id") == "file"
    assert "Drop images here" in browser.switch_to.active_element.accessible_name
    outline = "return getComputedStyle(document.getElementById('drop')).outlineStyle"
    assert browser.execute_script(outline) == "solid", "the focus is visible"


def test_a_token_is_asked_for_and_used(browser, judge, files):
    from selenium.webdriver import Keys

    with running(judge, access=Access(token=TOKEN)) as ((host, port), _):
        show(browser, f"http://{host}:{port}/", 1280)
        field = browser.find_element("id", "token")
        assert not field.is_displayed()
        choose(browser, files[0])
        assert "a token is needed" in results(browser, 1)[0]
        assert field.is_displayed() and browser.switch_to.active_element == field
        field.send_keys(TOKEN, Keys.ENTER)  # tries again
        assert "distribution" in results(browser, 2)[0]
