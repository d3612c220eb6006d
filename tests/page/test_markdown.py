"""What a model writes: Markdown is shown as such, everything that could act stays text."""

from tests.page.doing import say


def test_markdown_code_tables_and_math_are_shown_as_such(page):
    say(page, "markdown")
    page.wait_for_selector(".katex-display .katex-html")
    answer = page.locator(".message.assistant")
    for tag in ("h1", "strong", "em", "table td", "ol li ul li", "input[type=checkbox]", "blockquote", "pre code"):
        assert answer.locator(tag).count(), tag
    page.wait_for_selector(".hljs-keyword")
    assert answer.locator("a[target=_blank][rel='noopener noreferrer']").count() == 1
    assert "$5 or $6" in answer.inner_text(), "prices are no formula"
    assert answer.locator(".katex").count() == 2


def test_markup_of_a_model_stays_text_and_nothing_of_it_runs_or_loads(page):
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    say(page, "evil")
    page.wait_for_timeout(300)
    text = page.inner_text(".message.assistant .markdown")
    assert '<img src=x onerror="window.hacked=1">' in text and "</script>" in text and "<svg onload" in text
    assert page.evaluate("window.hacked") is None
    inside = page.locator(".message.assistant .markdown")
    assert inside.locator("img, script, iframe, [onerror], [onload], a[href^='javascript:']").count() == 0
    assert not [url for url in asked if "example.org" in url]


def test_what_a_user_writes_stays_text_too(desktop):
    say(desktop, '<b onclick="window.hacked=1">bold</b> <img src=x onerror="window.hacked=1">')
    assert desktop.inner_text(".said").startswith("<b onclick") and desktop.locator(".said *").count() == 0
    desktop.reload()
    desktop.wait_for_selector(".conversations li", state="attached")
    assert desktop.evaluate("window.hacked") is None and desktop.locator(".conversations b").count() == 0
