"""Requests, the dashboard, the key, the theme and the keyboard."""

import httpx
import pytest
from tests.page.doing import open_side, press, say
from tests.page.site import LONG, served


def test_an_open_request_is_listed_and_can_be_aborted_there(page, site):
    say(page, "slow please", waits=False)
    page.wait_for_selector(".markdown")
    page.goto(site.url + "/#/requests")
    press_abort = page.get_by_role("button", name="Abort").first
    press_abort.click()
    page.wait_for_selector(".state.aborted")
    assert "open" in page.inner_text(".view-head .chip")
    press(page, "Failed")
    assert "No request is like that." in page.inner_text(".nothing")


def test_a_life_tells_its_phases_and_why_it_ended(page, site):
    say(page, "hello")
    page.goto(site.url + "/#/requests")
    page.locator(".requests tbody a").first.click()
    page.wait_for_selector(".lane-name:text-is('engine steps')")
    lanes = page.locator(".lane-name").all_inner_texts()
    assert [name for name in lanes if name] == ["queued", "prefill", "decode", "prompt chunk", "engine steps"]
    assert "It ended by itself" in page.inner_text(".life-head")
    assert "schedule: admitted" in page.inner_text(".moves")
    life = httpx.get(f"{site.url}/v1/requests/{page.inner_text('h1')}").json()["data"][0]
    assert str(life["choices"][0]["seed"]) in page.inner_text(".moves"), "all 64 bits of it"


def test_a_preempted_life_shows_when_it_waited_again(open_page):
    with served(num_blocks=400) as site:
        page = open_page(site.url)
        body = {"messages": [{"role": "user", "content": "long"}]}
        answers = "b => Promise.all([0, 1].map(() => fetch('/v1/chat/completions', {method: 'POST', headers: "
        answers += "{'content-type': 'application/json'}, body: JSON.stringify(b)}).then(r => r.json())))"
        texts = [answer["choices"][0]["message"]["content"] for answer in page.evaluate(answers, body)]
        assert texts == [LONG, LONG], "who was preempted says the same"
        lines = httpx.get(f"{site.url}/v1/requests").json()["data"]
        page.goto(f"{site.url}/#/requests/{lines[0]['id']}")
        page.wait_for_selector(".bar.preempted")
        assert "preempted, waiting" in page.locator(".lane-name").all_inner_texts()
        assert "preempted" in page.inner_text(".moves summary")


def test_an_unknown_request_is_told_so(desktop, site):
    desktop.goto(site.url + "/#/requests/nobody")
    desktop.wait_for_selector(".nothing:has-text('no request is called')")


def test_the_dashboard_shows_the_load_as_it_is(page, site):
    page.goto(site.url + "/#/dashboard")
    page.wait_for_selector(".chart canvas")
    page.evaluate(
        "fetch('/v1/completions', {method: 'POST', headers: {'content-type': 'application/json'},"
        " body: JSON.stringify({prompt: 'user\\nslow', max_tokens: 300, stream: true})})"
    )
    page.wait_for_function("() => document.querySelector('.tile dd').innerText.trim() === '1'")
    tiles = page.locator(".tile").all_inner_texts()
    assert [tile.split("\n")[0] for tile in tiles][:2] == ["Running", "Waiting"] and len(tiles) == 6
    page.wait_for_function("() => parseFloat(document.querySelectorAll('.tile dd')[2].innerText) > 5")
    site.service.llm.abort_all("the test is over")


def test_a_server_with_a_key_is_asked_with_it_and_a_wrong_one_is_told(open_page):
    with served(api_keys=("secret",)) as site:
        page = open_page(site.url)
        page.wait_for_selector("dialog[open]")
        page.fill("input[type=password]", "guess")
        press(page, "Use this key")
        page.wait_for_selector(".bad-text")
        page.fill("input[type=password]", "secret")
        press(page, "Use this key")
        page.wait_for_selector("dialog", state="hidden")
        say(page, "hello")
        page.reload()
        page.wait_for_selector(".chip")
        assert page.locator("dialog[open]").count() == 0, "the tab remembers the key"


def test_a_server_that_went_away_is_told_and_the_question_can_be_asked_again(desktop, site):
    desktop.route("**/v1/chat/completions", lambda route: route.abort())
    desktop.fill("#prompt", "hello")
    desktop.keyboard.press("Enter")
    desktop.wait_for_selector(".failure")
    assert "cannot be reached" in desktop.inner_text(".failure")
    desktop.unroute("**/v1/chat/completions")
    press(desktop, "Try again")
    desktop.wait_for_selector(".speed")


def test_a_refusal_says_why(desktop):
    press(desktop, "System prompt and sampling")
    desktop.get_by_label("System prompt").last.fill("long " * 2_000)
    press(desktop, "Keep")
    say(desktop, "hello", waits=False)
    desktop.wait_for_selector(".failure")
    assert "4096" in desktop.inner_text(".failure").replace(",", "")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_system_until_it_is_chosen_and_is_kept(open_page, site, scheme):
    page = open_page(site.url, scheme=scheme)
    theme = "document.documentElement.dataset.theme"
    assert page.evaluate(theme) == scheme
    press(page, "Colours: as the system")
    press(page, "Colours: light")
    assert page.evaluate(theme) == "dark"
    page.reload()
    assert page.evaluate(theme) == "dark"


def test_everything_is_reached_by_keyboard(open_page, site):
    page = open_page(site.url)
    page.wait_for_selector("#prompt:focus")
    say(page, "hello")
    page.locator("body").evaluate("document.activeElement.blur()")
    page.keyboard.press("/")
    page.wait_for_selector("#prompt:focus")
    page.keyboard.press("Control+Shift+O")
    page.wait_for_selector(".empty")
    assert page.evaluate("document.activeElement.id") == "prompt"
    page.evaluate("document.body.tabIndex = -1, document.body.focus()")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_the_menu_of_a_phone_opens_and_closes(open_page, site):
    page = open_page(site.url, "phone")
    assert not page.locator(".side").is_visible()
    open_side(page)
    page.get_by_role("link", name="Dashboard").click()
    page.wait_for_selector(".tiles")
    page.wait_for_selector(".side", state="hidden")
