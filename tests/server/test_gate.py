"""Who may come in: keys, hosts, origins, ids, methods."""

import pytest
from tests.server.inside import HELLO, within

from headrace.server.run import check_settings
from headrace.server.settings import Settings
from headrace.words.errors import ConfigError

CHAT = "/v1/chat/completions"
GUARDED = ["/v1/models", "//v1/models", "/V1/models", "/v1/%6dodels", "/metrics", "/docs", "/openapi.json", "/version"]
GUARDED += ["/v1/requests", "/v1/steps", "/invocations", "/ping", "/health/../v1/models", "/nothing"]


@pytest.mark.parametrize("path", GUARDED)
def test_with_a_key_every_path_but_the_open_ones_asks_for_it(path):
    response = within(lambda c: c.get(path), api_keys=("secret",))
    assert response.status_code == 401 and response.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_probes_need_no_key(path):
    assert within(lambda c: c.get(path), api_keys=("secret",)).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": "Bearer secret"}, 200),
        ({"authorization": "bearer other"}, 200),
        ({"x-api-key": "secret"}, 200),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "Bearer "}, 401),
        ({"authorization": "Basic secret"}, 401),
        ({"authorization": "Bearer " + "x" * 100_000}, 401),
        ({"x-api-key": ""}, 401),
    ],
)
def test_any_of_the_keys_is_good_and_nothing_else(headers, status):
    response = within(lambda c: c.get("/v1/models", headers=headers), api_keys=("secret", "other"))
    assert response.status_code == status


def test_with_a_key_the_host_does_not_matter():
    headers = {"authorization": "Bearer secret", "host": "models.example"}
    assert within(lambda c: c.get("/v1/models", headers=headers), api_keys=("secret",)).status_code == 200


@pytest.mark.parametrize("key", ["schlüssel€", "日本", "a b", "{}%s\\"])
def test_a_key_may_have_any_characters_that_can_be_printed(key):
    bearer, other = {"authorization": b"Bearer " + key.encode()}, {"x-api-key": key.encode()}

    async def work(c):
        return [(await c.get("/v1/models", headers=h)).status_code for h in (bearer, other, {"x-api-key": b"\xff\xfe"})]

    assert within(work, api_keys=(key,)) == [200, 200, 401]


@pytest.mark.parametrize("key", ["", " ", " a", "a\n", "a\x00b"])
def test_a_key_that_nobody_could_send_or_anybody_does_is_refused(key):
    with pytest.raises(ConfigError, match="api_key: must be printable"):
        check_settings(Settings(model_names=("toy",), host="0.0.0.0", api_keys=("good", key)))


def test_a_request_with_two_hosts_is_refused():
    headers = [("host", "127.0.0.1"), ("host", "evil.example")]
    assert within(lambda c: c.get("/v1/models", headers=headers)).status_code == 403


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8000", "[::1]:9", "LOCALHOST:1"])
def test_without_a_key_this_machine_is_served(host):
    assert within(lambda c: c.get("/v1/models", headers={"host": host})).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "[", "localhost@evil.example"])
def test_without_a_key_no_other_name_is_served(host):
    response = within(lambda c: c.get("/v1/models", headers={"host": host}))
    assert response.status_code == 403 and response.json()["error"]["type"] == "PermissionDeniedError"


@pytest.mark.parametrize(
    ("origin", "status"), [("http://localhost:3000", 200), ("https://evil.example", 403), ("null", 403)]
)
def test_without_a_key_pages_of_others_are_refused(origin, status):
    assert within(lambda c: c.get("/v1/models", headers={"origin": origin})).status_code == status


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", CHAT, 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/v1/nothing", 404),
        ("HEAD", "/v1/models", 405),
        ("OPTIONS", CHAT, 405),
        ("GET", "/v1/models/", 404),
        ("GET", "//v1/models", 404),
        ("POST", "/V1/chat/completions", 404),
    ],
)
def test_wrong_methods_and_paths(method, path, status):
    response = within(lambda c: c.http.request(method, path))
    assert response.status_code == status and "access-control-allow-origin" not in response.headers
    if method != "HEAD":
        assert response.json()["error"].keys() == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("method", "path", "told"),
    [
        ("POST", "/v1/responses", "POST /v1/responses is no route of this server; GET /docs lists them"),
        ("GET", CHAT, f"GET {CHAT} is not answered, only POST"),
    ],
)
def test_a_wrong_path_or_method_is_named_with_what_there_is(method, path, told):
    assert within(lambda c: c.http.request(method, path)).json()["error"]["message"] == told


def test_a_request_id_comes_back_and_names_the_answer():
    async def work(c):
        return await c.post(CHAT, {"messages": HELLO, "max_tokens": 1}, headers={"x-request-id": "abc-1"})

    response = within(work)
    assert response.headers["x-request-id"] == "abc-1" and response.json()["id"] == "chatcmpl-abc-1"


@pytest.mark.parametrize("name", ["x" * 200, "a\tb", ""])
def test_an_id_that_is_no_plain_word_is_replaced(name):
    response = within(lambda c: c.get("/version", headers={"x-request-id": name}))
    assert response.headers["x-request-id"] != name and len(response.headers["x-request-id"]) == 32


@pytest.mark.parametrize(
    ("host", "keys", "ok"), [("0.0.0.0", (), False), ("0.0.0.0", ("k",), True), ("127.0.0.1", (), True)]
)
def test_beyond_this_machine_a_key_is_needed(host, keys, ok):
    settings = Settings(model_names=("toy",), host=host, api_keys=keys)
    if ok:
        check_settings(settings)
    else:
        with pytest.raises(ConfigError, match="api_key: is needed"):
            check_settings(settings)
