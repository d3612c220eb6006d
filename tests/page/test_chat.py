"""The chat in a browser, at desktop and at phone width."""

import json

from tests.page.doing import messages, open_side, press, say, until


def test_an_answer_streams_with_its_speed_and_leads_to_its_life(page):
    say(page, "hello")
    assert messages(page)[0] == "hello" and messages(page)[1].endswith("to: hello")
    speed = page.inner_text(".speed")
    assert "tok/s" in speed and "first token" in speed and "tokens" in speed
    page.click(".speed a")
    page.wait_for_selector(".waterfall .bar.decode")
    assert page.inner_text(".life-head").startswith("stop")


def test_enter_sends_shift_enter_begins_a_line_and_nothing_is_sent_twice(desktop, site):
    desktop.fill("#prompt", "one")
    desktop.press("#prompt", "Shift+Enter")
    desktop.keyboard.type("two")
    desktop.press("#prompt", "Enter")
    desktop.wait_for_selector(".speed")
    assert messages(desktop)[0] == "one\ntwo" and desktop.input_value("#prompt") == ""
    assert site.heard[-1].count("one\ntwo") == 1


def test_an_answer_is_stopped_by_the_button_and_by_escape_and_what_was_said_stays(page, site):
    for stop in (lambda: press(page, "Stop"), lambda: page.press("#prompt", "Escape")):
        say(page, "slow please", waits=False)
        page.wait_for_function("() => document.querySelector('.message:last-child .markdown')?.innerText.length > 10")
        stop()
        page.wait_for_selector(".send:not(.stop)")
        assert page.locator(".message").last.locator(".note").inner_text() == "Stopped."
        assert messages(page)[-1].startswith("word 0")
    until(lambda: site.service.llm.engine.core.scheduler.stats().num_used_blocks == 0)


def test_an_edit_and_another_answer_are_branches_that_stay(page):
    say(page, "first")
    press(page, "Answer again")
    page.wait_for_selector(".siblings:has-text('2/2')")
    one_answer = messages(page)[1]
    press(page, "Earlier version")
    page.wait_for_selector(".siblings:has-text('1/2')")
    assert messages(page)[1] != one_answer
    page.get_by_role("button", name="Edit message").click()
    page.fill(".editor textarea", "second")
    page.press(".editor textarea", "Enter")
    page.wait_for_function("() => document.querySelector('.said')?.innerText === 'second'")
    page.wait_for_selector(".speed")
    assert messages(page)[0] == "second"
    page.get_by_role("button", name="Earlier version").first.click()
    page.wait_for_function("() => document.querySelector('.said').innerText === 'first'")
    assert len(messages(page)) == 2


def test_a_branch_is_a_conversation_of_its_own(desktop):
    say(desktop, "root")
    address = desktop.url
    press(desktop, "Continue in a new conversation")
    desktop.wait_for_function("before => location.href !== before", arg=address)
    say(desktop, "leaf")
    assert len(messages(desktop)) == 4
    desktop.go_back()
    desktop.wait_for_function("() => document.querySelectorAll('.message').length === 2")


def bodies_of(page):
    bodies = []
    page.on("request", lambda r: bodies.append(r.post_data) if r.url.endswith("/chat/completions") else None)
    return bodies


def test_where_nobody_says_otherwise_an_answer_is_calm(desktop, site):
    bodies = bodies_of(desktop)
    say(desktop, "hello")
    assert json.loads(bodies[-1])["temperature"] == 0.2
    site.service.llm.engine.sampling_defaults["temperature"] = 0.6
    try:
        desktop.reload()
        say(desktop, "hello")
        assert json.loads(bodies[-1])["temperature"] == 0.6
    finally:
        del site.service.llm.engine.sampling_defaults["temperature"]


def test_the_system_prompt_and_sampling_reach_the_model_and_empty_fields_do_not(page, site):
    bodies = bodies_of(page)
    press(page, "System prompt and sampling")
    page.get_by_label("System prompt").last.fill("Be brief.")
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("Longest answer").fill("5")
    press(page, "Keep")
    say(page, "hello")
    body = json.loads(bodies[-1])
    assert body["temperature"] == 0.5 and body["max_tokens"] == 5 and "top_p" not in body
    assert "system\nBe brief." in site.heard[-1]
    assert "limit of tokens" in page.inner_text(".message.assistant .note")
    assert page.inner_text(".badge") == "3"


def test_conversations_are_kept_found_renamed_and_deleted(page):
    say(page, "remember me")
    page.reload()
    page.wait_for_selector(".said")
    assert messages(page)[0] == "remember me"
    open_side(page)
    entry = page.locator(".conversations li").first
    entry.hover()
    entry.get_by_role("button", name="Rename").click()
    page.fill(".conversations input[type=text]", "Renamed")
    page.keyboard.press("Enter")
    assert "Renamed" in page.inner_text(".conversations")
    page.on("dialog", lambda dialog: dialog.accept())
    entry.hover()
    entry.get_by_role("button", name="Delete").click()
    page.wait_for_selector(".empty")
    assert page.locator(".conversations li").count() == 0


SLOW_STORE = """
const open = IDBFactory.prototype.open;
const mayOpen = new Promise((done) => (window.letStoreOpen = done));
IDBFactory.prototype.open = function (...args) {
  const request = open.apply(this, args);
  const isOpen = new Promise((done) => request.addEventListener("success", done));
  const set = (handler) => Promise.all([isOpen, mayOpen]).then(() => handler.call(request));
  Object.defineProperty(request, "onsuccess", { set });
  return request;
};
"""


def test_what_is_said_before_the_browser_has_opened_its_store_is_kept_beside_what_was_there(open_page, site):
    page = open_page(site.url, script=SLOW_STORE)
    listed = "n => document.querySelectorAll('.conversations li').length === n"
    for number, text in enumerate(("first", "second"), 1):
        say(page, text)
        page.evaluate("letStoreOpen()")
        page.wait_for_function(listed, arg=number)
        assert messages(page)[0] == text
        page.goto(site.url)
        page.reload()
    page.evaluate("letStoreOpen()")
    page.wait_for_function(listed, arg=2)


def test_what_was_exported_can_be_imported(page, tmp_path):
    say(page, "take me along")
    open_side(page)
    with page.expect_download() as download:
        press(page, "Export all conversations")
    file = tmp_path / "kept.json"
    download.value.save_as(file)
    assert "take me along" in file.read_text()
    page.set_input_files("input[type=file]", file)
    page.wait_for_function("() => document.querySelectorAll('.conversations li').length === 2")
    bad = tmp_path / "bad.json"
    bad.write_text('{"format": "other"}')
    page.set_input_files("input[type=file]", bad)
    page.wait_for_function("() => document.querySelector('.toast').innerText.includes('no exported')")
    assert page.locator(".conversations li").count() == 2


def test_a_message_and_its_code_are_copied(desktop):
    desktop.context.grant_permissions(["clipboard-read", "clipboard-write"])
    say(desktop, "markdown")
    desktop.get_by_role("button", name="Copy message").first.click()
    desktop.wait_for_function("async () => (await navigator.clipboard.readText()) === 'markdown'")
    desktop.click("[data-copy]")
    desktop.wait_for_function("async () => (await navigator.clipboard.readText()).startsWith('def power_w')")


def test_what_a_model_thinks_is_folded_away(desktop):
    say(desktop, "think")
    assert desktop.inner_text(".thinking summary") == "Thoughts"
    assert messages(desktop)[-1] == "Then I answer." and "<think>" not in desktop.inner_text(".messages")


def test_a_foreign_file_can_break_nothing(desktop, tmp_path):
    turn = {"id": "a", "parent": None, "role": "user", "text": "hi", "at": "x", "warnings": "none", "error": {"a": 1}}
    answer = {"id": "b", "parent": "a", "role": 7, "text": "<img src=x onerror=alert(1)>", "stats": {"tokensPerS": "x"}}
    kept = {"title": {"a": 1}, "turns": {"1": turn, "2": answer}, "leaf": "b", "sampling": {"top_p": "x", "seed": 1}}
    file = tmp_path / "odd.json"
    file.write_text(json.dumps({"format": "headrace-conversations", "conversations": [kept]}))
    desktop.set_input_files("input[type=file]", file)
    desktop.click(".conversations li a")
    desktop.wait_for_function("() => document.querySelectorAll('.message').length === 2")
    assert "<img src=x" in messages(desktop)[1]
    circle = [{**turn, "parent": "b"}, answer]
    file.write_text(json.dumps({"format": "headrace-conversations", "conversations": [{**kept, "turns": circle}]}))
    desktop.set_input_files("input[type=file]", file)
    desktop.wait_for_function("() => document.querySelector('.toast').innerText.includes('form no tree')")


def test_a_conversation_that_is_deleted_stops_its_answer(desktop, site):
    say(desktop, "slow please", waits=False)
    desktop.wait_for_selector(".markdown")
    desktop.on("dialog", lambda dialog: dialog.accept())
    desktop.locator(".conversations li").first.hover()
    desktop.get_by_role("button", name="Delete slow please").click()
    until(lambda: site.service.llm.engine.core.scheduler.stats().num_used_blocks == 0)
    assert desktop.locator(".conversations li").count() == 0
