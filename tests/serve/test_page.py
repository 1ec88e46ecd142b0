"""The page in a real browser, against a real server. What it shows and saves is compared with the library."""

import json
import threading
from urllib.parse import urlencode

import pytest
import uvicorn

import nestree
from nestree.serve import ServeOptions, create_app
from tests.show.cases import CHROMIUM, NEEDS_CHROMIUM

from .conftest import until
from .test_processes import running

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = NEEDS_CHROMIUM

TEXT = "😀 Ann of the Berlin office met the mayor of Paris in May. He stayed in Rome with the dog of Omar."
LOWEST = 0.05  # the threshold of the page's requests


@pytest.fixture(scope="module")
def address(pipeline):
    """Where a server of the tiny model listens."""
    app = create_app(pipeline, ServeOptions(model_name="tiny"))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None))
    thread = threading.Thread(target=server.run)
    thread.start()
    until(lambda: server.started)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    """A page that fails the test if a script fails or the console has an error."""
    context = browser.new_context(viewport={"width": 1000, "height": 900})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.set_default_timeout(20_000)
    page.errors, page.posts = [], []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("console", lambda line: page.errors.append(line.text) if line.type == "error" else None)
    page.on("request", lambda sent: page.posts.append(sent) if sent.url.endswith("/v1/entities") else None)
    yield page
    errors = page.errors
    context.close()
    assert errors == []


def open_text(page, address, text=TEXT, **parts):
    page.goto(f"{address}/#{urlencode({'text': text, **parts})}")
    page.wait_for_selector("#text[aria-busy=false] .e")


def wait_for_text(page, text):
    """Wait until the server has read this text."""
    page.wait_for_selector(f"#length:text-is('{len(text):,} characters')", state="attached")
    page.wait_for_selector("#text[aria-busy=false]", timeout=60_000)


def download_entities(page, format="json"):
    """What the page downloads."""
    page.select_option("#format", format)
    with page.expect_download() as download:
        page.click("#download")
    assert download.value.suggested_filename == f"entities.{format}"
    return download.value.path().read_text("utf-8")


def spans(document, threshold=0.0, known=()):
    """(start, end, label) of the dictionary of a document, of the given probability or known."""
    return [
        (entity["start"], entity["end"], label["label"])
        for entity in document["entities"]
        for label in entity["labels"]
        if label["score"] >= threshold or (entity["start"], entity["end"], label["label"]) in known
    ]


def find_box(page, text):
    return page.locator(f'#text .e[aria-label^="{text}:"]')


def decide(page, text, action):
    """Click a box, and a button of its menu; wait for what changed."""
    find_box(page, text).locator("> .label").last.click()
    page.locator("#menu").get_by_role("button", name=action, exact=True).click()
    page.wait_for_selector("#text[aria-busy=false]")


def select_words(page, words):
    """Select words of the drawn text, from the middle of the first to the middle of the last."""
    page.evaluate(
        """words => {
          const walker = document.createTreeWalker(document.getElementById("text"), NodeFilter.SHOW_TEXT);
          const [first, last] = [words.split(" ")[0], words.split(" ").at(-1)];
          const range = document.createRange();
          for (let node; (node = walker.nextNode());) {
            if (node.data.includes(first)) range.setStart(node, node.data.indexOf(first) + 1);
            if (node.data.includes(last)) { range.setEnd(node, node.data.indexOf(last) + 1); break; }
          }
          getSelection().removeAllRanges();
          getSelection().addRange(range);
        }""",
        words,
    )
    page.click("#mark")


def test_typed_text_gets_boxes_as_in_the_library(page, address, pipeline):
    page.goto(address)
    page.wait_for_selector("#text[aria-busy=false]")
    page.fill("#source", "")
    before = len(page.posts)
    page.locator("#source").press_sequentially(TEXT, delay=5)
    wait_for_text(page, TEXT)
    assert len(page.posts) - before < len(TEXT) / 2  # as the typist pauses, not at each key
    page.locator("#threshold").fill("0.3")
    library = pipeline(TEXT, threshold=LOWEST)
    document = json.loads(download_entities(page))
    assert spans(document) == spans(library.to_dict(), 0.3)
    assert spans(document)[0][:2] == (0, 1)  # the emoji is one code point
    drawn = page.locator("#text .e").evaluate_all(
        """boxes => boxes.map(box => { const copy = box.cloneNode(true);
          copy.querySelectorAll(".label").forEach(label => label.remove()); return copy.textContent; })"""
    )
    assert drawn == [entity["text"] for entity in document["entities"]]
    parents = page.locator("#text .e").evaluate_all(
        """boxes => boxes.map(box => boxes.indexOf(box.parentElement.closest(".e")))"""
    )
    assert [None if k < 0 else k for k in parents] == [entity["parent"] for entity in document["entities"]]
    page.click(".to-tree >> nth=0")
    words = page.locator("#tree text.word").all_text_contents()
    assert words == list(library.sentences[0].words)


def test_threshold_and_labels_need_no_request(page, address, pipeline):
    open_text(page, address)
    library = pipeline(TEXT, threshold=LOWEST).to_dict()
    asked = len(page.posts)
    for threshold in ("0.05", "0.5", "0.9", "0.1"):
        page.locator("#threshold").fill(threshold)
        assert spans(json.loads(download_entities(page))) == spans(library, float(threshold))
    page.locator("#labels").get_by_role("button", name="GPE").click()
    assert spans(json.loads(download_entities(page))) == [span for span in spans(library, 0.1) if span[2] != "GPE"]
    page.locator("#probabilities").check()
    assert page.locator("#text .label i").first.is_visible()
    assert len(page.posts) == asked


def test_confirm_reject_add_and_undo(page, address, pipeline):
    open_text(page, address, threshold=0.3)
    start = TEXT.index("Berlin")
    berlin = (start, start + 6)

    def expected(known=(), forbidden=()):
        document = pipeline(TEXT, known=known, forbidden=forbidden, threshold=LOWEST)
        return spans(document.to_dict(), 0.3, known)

    original = expected()
    decide(page, "Berlin", "Confirm")
    known = [(*berlin, "GPE")]
    assert spans(json.loads(download_entities(page))) == expected(known)
    assert "confirmed" in find_box(page, "Berlin").get_attribute("aria-label")
    decide(page, "Berlin", "Reject")
    assert spans(json.loads(download_entities(page))) == expected((), [berlin])
    assert "− GPE “Berlin”" in page.inner_text("#changes")
    asked = len(page.posts)
    page.click("#undo")
    page.click("#undo")
    assert spans(json.loads(download_entities(page))) == original
    assert page.locator("#undo").is_disabled()
    assert len(page.posts) == asked  # answered before

    select_words(page, "the mayor")  # partly: whole words are taken
    page.locator("#menu").get_by_role("button", name="PER").click()
    page.wait_for_selector("#text[aria-busy=false] .e.new")
    start = TEXT.index("the mayor")
    mayor = (start, start + 9, "PER")
    others = [(start, start + 9, label) for label in pipeline.labels if label != "PER"]
    assert mayor in (found := spans(json.loads(download_entities(page))))
    assert found == expected([mayor], others)
    assert "the mayor" in page.inner_text("#decisions")

    # Decisions move with edits elsewhere, and go with edits inside.
    page.locator("#source").press("Control+Home")
    page.keyboard.type("So: ")
    wait_for_text(page, f"So: {TEXT}")
    assert (start + 4, start + 13, "PER") in spans(json.loads(download_entities(page)))
    page.locator("#decisions").get_by_role("button", name="Withdraw").click()
    page.wait_for_selector("#decisions", state="hidden")


def test_what_cannot_be_is_taken_back(page, address):
    open_text(page, address, threshold=0.3)
    select_words(page, "Berlin office")
    page.locator("#menu").get_by_role("button", name="ORG").click()
    page.wait_for_selector("#text[aria-busy=false] .e.new")
    select_words(page, "office met")
    page.locator("#menu").get_by_role("button", name="ORG").click()
    page.wait_for_selector("#status:has-text('Not possible')")
    assert "cross" in page.inner_text("#status")
    assert page.locator("#decisions .item").count() == 1


def test_a_selection_by_mouse_and_entities_that_cross(page, address):
    """As models without trees predict them: they cross, and have neither heads nor trees."""
    text = "one two three four"
    places = [(0, 7, "ORG"), (4, 13, "PER")]
    labels = {label: [{"label": label, "score": 0.9}] for *_, label in places}
    entities = [{"start": i, "end": j, "labels": labels[label], "head": None} for i, j, label in places]
    answer = {"model": "fake", "documents": [{"text": text, "entities": entities}]}
    page.route("**/v1/entities", lambda route: route.fulfill(json=answer))
    open_text(page, address, text)
    assert page.locator("#text .e").count() == 3  # the second is cut in two
    assert page.locator("#text .e.from, #text .e.on").count() == 2
    assert page.locator("#text .to-tree").count() == 0
    ann = download_entities(page, "ann")
    assert ann == "T1\tORG 0 7\tone two\nT2\tPER 4 13\ttwo three\n"
    area = page.evaluate(
        """() => { const node = document.createTreeWalker(document.getElementById("text"), 4);
          while (!node.nextNode().data.includes("four"));
          const range = document.createRange();
          range.setStart(node.currentNode, 1); range.setEnd(node.currentNode, node.currentNode.length);
          const { x, y, width, height } = range.getBoundingClientRect();
          return { x, y: y + height / 2, right: x + width }; }"""
    )
    page.mouse.move(area["right"] - 3, area["y"])
    page.mouse.down()
    page.mouse.move(area["x"] + 10, area["y"], steps=5)
    page.mouse.up()
    page.locator("#menu").get_by_role("button", name="GPE").wait_for()
    assert "“four”" in page.inner_text("#menu")


def test_keyboard(page, address):
    open_text(page, address, threshold=0.3)
    page.locator("#text .e").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.closest('#menu') !== null")
    page.keyboard.press("Escape")
    focused = page.evaluate("document.activeElement.ariaLabel").split(":")[0]
    page.keyboard.press("r")
    page.wait_for_selector("#decisions:not([hidden])")
    page.wait_for_selector("#text[aria-busy=false]")
    assert page.evaluate("document.activeElement.classList.contains('e')")
    assert find_box(page, focused).count() == 0
    page.keyboard.press("Control+z")
    find_box(page, focused).wait_for()
    page.locator("#source").press("Control+Home")
    for _ in range(4):
        page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("Alt+m")
    assert "Ann" in page.inner_text("#menu")


def test_files(page, address, pipeline, tmp_path):
    text = TEXT.replace("mayor of", "mayor\nof")
    open_text(page, address, text, threshold=LOWEST)
    document = json.loads(download_entities(page))
    assert document == pipeline(text, threshold=LOWEST).to_dict()
    line = download_entities(page, "jsonl")
    assert json.loads(line) == document
    assert line.count("\n") == 1
    for format in ("ann", "txt"):
        (tmp_path / f"page.{format}").write_text(download_entities(page, format), "utf-8", newline="")
    [read] = nestree.read(tmp_path, "brat")
    assert read.text == text
    found = [(entity.start, entity.end, set(entity.labels)) for entity in read.entities]
    labels = [{one["label"] for one in entity["labels"]} for entity in document["entities"]]
    places = [(e["start"], e["end"]) for e in document["entities"]]
    assert found == [(*place, names) for place, names in zip(places, labels, strict=True)]
    page.click("#copy")
    page.wait_for_selector("#status:has-text('Copied')")
    assert page.evaluate("navigator.clipboard.readText()") == text  # the format is still brat text


def test_links_keep_text_and_decisions_out_of_requests(page, browser, address):
    open_text(page, address, threshold=0.3)
    decide(page, "Berlin", "Reject")
    page.click("#link")
    page.wait_for_selector("#status:has-text('Copied')")
    link = page.evaluate("navigator.clipboard.readText()")
    assert link.startswith(f"{address}/#")
    urls = []
    other = browser.new_page()
    other.on("request", lambda sent: urls.append(sent.url))
    other.goto(link)
    other.wait_for_selector("#text[aria-busy=false] .e")
    assert other.input_value("#source") == TEXT
    assert spans(json.loads(download_entities(other))) == spans(json.loads(download_entities(page)))
    assert not any("Berlin" in url for url in urls)
    other.close()


def test_directions_widths_and_colors(page, address):
    hebrew = "ראש הממשלה נפגש עם נשיא צרפת בפריז."
    for width in (360, 900, 1600):
        for scheme in ("light", "dark"):
            page.set_viewport_size({"width": width, "height": 800})
            page.emulate_media(color_scheme=scheme)
            open_text(page, address, f"{hebrew}\n\n{TEXT}", threshold=0.06)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
    sides = page.locator("#text .to-tree").evaluate_all("marks => marks.map(mark => mark.offsetLeft)")
    assert sides[0] < sides[-1]  # sentences end on the left, and on the right


def test_a_long_text_does_not_freeze_the_page(page, address):
    sentence = "Ann of the Berlin office met the mayor of Paris in May. "
    text = "\n\n".join(sentence * 10 for _ in range(95))[:50_000]
    page.goto(address)
    page.wait_for_selector("#text[aria-busy=false]")
    page.evaluate(
        """text => { const source = document.getElementById("source");
          source.value = text; source.dispatchEvent(new Event("input")); }""",
        text,
    )
    wait_for_text(page, text)
    assert page.locator("#text .block").count() == 1 + text.count("\n\n")
    slide = """async value => { const slider = document.getElementById("threshold"), start = performance.now();
      slider.value = value; slider.dispatchEvent(new Event("input"));
      await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
      return performance.now() - start; }"""
    assert min(page.evaluate(slide, value) for value in (0.2, 0.4, 0.1)) < 500  # milliseconds
    assert len(json.loads(download_entities(page))["entities"]) > 1000
    before = len(page.posts)
    page.locator("#source").press("Control+End")
    page.keyboard.type(" Omar")
    wait_for_text(page, f"{text} Omar")
    sent = [text for post in page.posts[before:] for text in post.post_data_json["texts"]]
    assert max(map(len, sent)) < 1000  # one paragraph only
    page.locator("#text .block").last.scroll_into_view_if_needed()
    page.wait_for_selector("#text .block:last-child .e")


def test_server_gone_and_back_and_its_key(page, tiny_model, tmp_path):
    with running(tiny_model, tmp_path / "first") as first:
        open_text(page, f"http://127.0.0.1:{first.port}")
        first.kill()
        with page.expect_event("requestfailed"):
            page.locator("#source").press_sequentially("Omar left. ")
        page.wait_for_selector("#problem:has-text('does not answer')")
    with running(tiny_model, tmp_path / "second", port=first.port, NESTREE_API_KEY="a secret"):
        page.wait_for_selector("#key[open]:has-text('needs its API key')")
        page.fill("#key input", "a guess")
        page.keyboard.press("Enter")
        page.wait_for_selector("#key[open]:has-text('does not accept this key')")
        page.fill("#key input", "a secret")
        page.keyboard.press("Enter")
        page.wait_for_selector("#problem", state="hidden")
        page.wait_for_selector("#text[aria-busy=false] .block:not(.waiting) .e")
        assert json.loads(download_entities(page))["text"] == f"{TEXT}Omar left. "
    expected = ("net::ERR", "status of 401")  # what the browser itself says of such requests
    page.errors[:] = [error for error in page.errors if not any(reason in error for reason in expected)]
