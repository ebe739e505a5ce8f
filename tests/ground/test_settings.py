"""Settings are read once, checked, and wrong ones told in one line that names them."""

from __future__ import annotations

import re
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st

from redbeat_lite._base import urls
from redbeat_lite._base.errors import ConfigurationError
from redbeat_lite._base.text import hide_passwords
from redbeat_lite._base.urls import address_of, connection_options
from redbeat_lite.settings import Settings
from tests.support.cases import together
from tests.support.examples import examples


def settings(name: str = "proj", broker: str | None = "redis://localhost/0", **conf: Any) -> Settings:
    app = Celery(name, broker=broker, set_as_current=False)
    app.conf.update(conf)
    return Settings.from_app(app)


def test_the_defaults_need_nothing_but_a_redis_broker() -> None:
    found = settings()
    assert (found.url, found.owner, found.key_prefix) == ("redis://localhost/0", "proj", "redbeat-lite")
    assert (found.lease, found.batch_size, found.expires, found.misfire) == (4.0, 500, "interval", "coalesce")
    assert (found.once_lease, found.publish_timeout, found.stall_timeout) == (60.0, 5.0, 30.0)
    assert (found.dispatch, dict(found.redis_options)) == ("auto", {})


def test_what_is_given_counts() -> None:
    found = settings(
        redbeat_lite_url="rediss://u:p@elsewhere:6380/3",
        redbeat_lite_owner="me",
        redbeat_lite_expires=timedelta(minutes=1),
        redbeat_lite_lease=2,
        redbeat_lite_redis_options={"socket_timeout": 1},
    )
    assert (found.url, found.owner, found.expires, found.lease) == ("rediss://u:p@elsewhere:6380/3", "me", 60.0, 2)
    assert found.redis_options == {"socket_timeout": 1}


@together("url", ["redis://h/1", "rediss://h/1", "redis+socket:///tmp/s"])
def test_the_broker_holds_the_schedule_where_it_can(url: str) -> None:
    assert settings(broker=url).url == url
    assert settings(broker=f"{url};redis://other/0").url == url


def test_the_broker_for_writing_is_the_one_that_counts() -> None:
    assert settings(broker_write_url="redis://write/0", broker_read_url="redis://read/0").url == "redis://write/0"


def test_an_app_without_a_name_has_an_owner() -> None:
    assert settings(None).owner == "celery"  # type: ignore[arg-type]


@together("broker", ["amqp://guest@localhost//", "sqs://", "memory://"])
def test_any_other_broker_wants_a_url(broker: str) -> None:
    scheme = broker.split("://")[0]
    message = f"redbeat_lite_url: expected the URL of a Redis server, because the broker ({scheme}) cannot hold"
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        settings(broker=broker)
    assert settings(broker=broker, redbeat_lite_url="redis://h/0").url == "redis://h/0"


@together(
    ("conf", "message"),
    [
        ({"lease": 0.5}, "redbeat_lite_lease: expected seconds, at least 1 and at most 86400, got 0.5"),
        ({"lease": "4x"}, "redbeat_lite_lease: expected seconds, at least 1 and at most 86400, got '4x'"),
        ({"lease": True}, "redbeat_lite_lease: expected seconds, at least 1 and at most 86400, got True"),
        ({"lease": float("nan")}, "redbeat_lite_lease: expected seconds, at least 1 and at most 86400, got nan"),
        ({"once_lease": 0}, "redbeat_lite_once_lease: expected seconds, at least 1 and at most 86400, got 0"),
        (
            {"publish_timeout": 0},
            "redbeat_lite_publish_timeout: expected seconds, at least 0.1 and at most 86400, got 0",
        ),
        (
            {"stall_timeout": float("inf")},
            "redbeat_lite_stall_timeout: expected seconds, at least 1 and at most 86400, got inf",
        ),
        ({"lease": 1e300}, "redbeat_lite_lease: expected seconds, at least 1 and at most 86400, got 1e+300"),
        (
            {"publish_timeout": 60},
            "redbeat_lite_stall_timeout: expected more than redbeat_lite_publish_timeout (60 s), or a slow publish "
            "counts as a hang, got 30.0",
        ),
        ({"expires": float("inf")}, 'redbeat_lite_expires: expected "interval", or seconds, '),
        ({"batch_size": 0}, "redbeat_lite_batch_size: expected a whole number from 1 to 5000, got 0"),
        ({"batch_size": 5001}, "redbeat_lite_batch_size: expected a whole number from 1 to 5000, got 5001"),
        ({"batch_size": 10.0}, "redbeat_lite_batch_size: expected a whole number from 1 to 5000, got 10.0"),
        ({"history": 1001}, "redbeat_lite_history: expected a whole number from 0 to 1000, got 1001"),
        (
            {"expect": {"start_within": -1}},
            "redbeat_lite_expect.start_within: expected seconds, a timedelta or a text",
        ),
        (
            {"expect": {"succeed_every": 60}},
            "redbeat_lite_expect: expected a mapping of start_within, finish_within and failures, or None, got",
        ),
        (
            {"expect": {"finish_within": 60, "trust": "backend"}},
            "redbeat_lite_expect.trust: expected one of the fields start_within, finish_within, succeed_every",
        ),
        (
            {"heartbeat_url": "ftp://user:secret@h"},
            "redbeat_lite_heartbeat_url: expected a URL such as https://host/path, or None, got a value of type 'str'",
        ),
        ({"heartbeat_url": "https://h:port/"}, "redbeat_lite_heartbeat_url: expected a URL such as"),
        ({"heartbeat_url": "https:///x"}, "redbeat_lite_heartbeat_url: expected a URL such as"),
        ({"heartbeat_url": "https://user:secret@h/"}, "redbeat_lite_heartbeat_url: expected a URL such as"),
        ({"heartbeat_url": 5}, "redbeat_lite_heartbeat_url: expected a URL such as"),
        ({"history": None}, "redbeat_lite_history: expected a whole number from 0 to 1000, got None"),
        (
            {"expires": "never"},
            'redbeat_lite_expires: expected "interval", or seconds, a timedelta or a text such as "1h30m", more than 0 '
            "and at most 100 years, or None, got 'never'",
        ),
        ({"expires": 0}, "more than 0 and at most 100 years, or None, got 0"),
        ({"misfire": "some"}, 'redbeat_lite_misfire: expected one of "coalesce", "skip", "all", got \'some\''),
        ({"traceparent": 1}, "redbeat_lite_traceparent: expected True or False, got 1"),
        ({"dispatch": "fast"}, 'redbeat_lite_dispatch: expected one of "auto", "batch", "plain", got \'fast\''),
        (
            {"key_prefix": ""},
            "redbeat_lite_key_prefix: expected text of 1 to 200 characters without braces, or with one pair at ",
        ),
        (
            {"key_prefix": "{a}b"},
            "without braces, or with one pair at the end, such as \"myapp:{beat}\", got '{a}b'",
        ),
        ({"key_prefix": "a{}"}, "got 'a{}'"),
        ({"key_prefix": "a}{b}"}, "got 'a}{b}'"),
        (
            {"owner": "a\nb"},
            "redbeat_lite_owner: expected text of 1 to 200 characters without control characters, got 'a\\nb'",
        ),
        ({"redis_options": [1]}, "redbeat_lite_redis_options: expected a mapping, got a value of type 'list'"),
        (
            {"url": "http://h"},
            "redbeat_lite_url: expected one of redis, rediss, redis+socket, unix, sentinel, redis-cl",
        ),
        ({"url": "sentinel://h"}, "redbeat_lite_redis_options: expected the master_name that the sentinels"),
        ({"url": "redis-cluster://h/1"}, "redbeat_lite_url: expected database 0, the only one of a Redis Cluster"),
        ({"url": "redis://h:6379/abc"}, "redbeat_lite_url: expected redis://user:password@host:port/database, with"),
        ({"url": "localhost:6379"}, "redbeat_lite_url: expected a URL such as redis://host:6379/0"),
    ],
    ids=str,
)
def test_a_wrong_value_is_told_with_what_was_expected(conf: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        settings(**{f"redbeat_lite_{name}": value for name, value in conf.items()})


@together(
    ("name", "near"),
    [("redbeat_lite_leas", "redbeat_lite_lease"), ("redbeat_lite_prefix", "redbeat_lite_key_prefix")],
)
def test_an_unknown_name_is_told_with_the_nearest_known_one(name: str, near: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}: there is no such setting; did you mean {near}"):
        settings(**{name: 5})


def test_an_unknown_name_with_nothing_near_is_told() -> None:
    with pytest.raises(ConfigurationError, match="redbeat_lite_zzzzzz: there is no such setting"):
        settings(redbeat_lite_zzzzzz=5)


URLS = [
    "http://user:secret@h",
    "user:secret@h",
    "redis://:sec/ret@h",
    "redis://:secret@h:port",
    "sentinel://:secret@h:port;h2:1",
    "redis://:12#secret@h",
    "redis://:12?secret@h",
    "redis://:12?secret=x@h",
    "sentinel://:12#secret@h;h2",
]


@together("url", URLS)
def test_no_password_gets_into_an_error(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        settings(redbeat_lite_url=url)
    assert "sec" not in str(caught.value)
    assert caught.value.__cause__ is None, "nothing that a traceback would show"


def test_no_password_gets_into_an_error_about_options_or_into_what_a_debugger_shows() -> None:
    with pytest.raises(ConfigurationError) as caught:
        settings(redbeat_lite_redis_options="password=secret")
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(settings("p", "redis://:secret@h", redbeat_lite_redis_options={"password": "secret"}))


@together(
    ("url", "expected"),
    [
        ("redis://h/0", "redis://h/0"),
        ("redis://:pa@ss@h:1/0", "redis://h:1/0"),
        ("redis://me:pass@h", "redis://h"),
        ("redis://:pa;ss@h:1/0", "redis://h:1/0"),
        ("redis://:pa ss@h:1/0", "redis://h:1/0"),
        ("redis://m@e:pa:ss@h:1/0", "redis://h:1/0"),
        ("unix://m@e:pass@/s?db=1", "unix:///s"),
        ("sentinel://:pass@a:1;me:pass@b:2", "sentinel://a:1;b:2"),
        ("sentinel://a:1;:pass@b:2/0", "sentinel://a:1;b:2/0"),
        ("unix:///s?password=pass&db=1", "unix:///s"),
        ("redis://:pass@h:1/0?client_name=a://b", "redis://h:1/0"),
        ("rediss://h?ssl_password=pass", "rediss://h"),
    ],
)
def test_an_address_has_no_user_password_or_option(url: str, expected: str) -> None:
    assert address_of(url) == address_of(expected) == expected


@examples(40)
@given(st.text(max_size=10), st.text(min_size=1, max_size=10))
def test_no_password_that_a_url_can_hold_is_shown(user: str, password: str) -> None:
    secret = f"sEcReT{password}"
    for written in (secret, quote(secret, safe="")):
        url = f"redis://{user}:{written}@h:1/0"
        try:
            found = connection_options(url)
        except ValueError:
            continue
        if "sEcReT" in str(found.get("password")):
            assert "sEcReT" not in address_of(url)


@together(
    ("text", "expected"),
    [
        ("Error at redis://me:pass@h, sorry", "Error at redis://me:**@h, sorry"),
        ("Error at redis://m@e:pa;ss@h/0, sorry", "Error at redis://m@e:**@h/0, sorry"),
        ("at unix:///s?PASSWORD=pass&db=1", "at unix:///s?PASSWORD=**&db=1"),
        ("at redis://:12#pass@h, sorry", "at redis://:**@h, sorry"),
        (
            "<Connection(db=0,password=p,a)s's,port=1,ssl_password=pass)>)>",
            "<Connection(db=0,password=**,port=1,ssl_password=**)>)>",
        ),
        ("no option password=pa ss", "no option password=**"),
        ("password=pa ss\nask the administrator", "password=**\nask the administrator"),
        ("next_page_token=abc: 404 Not Found", "next_page_token=** 404 Not Found"),
        ("{'username': 'me', 'password': 'pa\\'ss', 'db': 1}", "{'username': 'me', 'password': **, 'db': 1}"),
    ],
)
def test_passwords_that_an_error_quotes_are_hidden(text: str, expected: str) -> None:
    assert hide_passwords(text) == expected


def test_passwords_that_were_given_are_hidden_whatever_is_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redbeat_lite._base.text._known_passwords", set())
    odd = [f"odd{number},db=1)>)> ]x" for number in range(3)]
    settings(
        broker=f"sentinel://:{quote(odd[0])}@a:1;sentinel://b",
        broker_transport_options={"master_name": "m", "sentinel_kwargs": {"password": odd[1]}},
        redbeat_lite_url="rediss://:short@h",
        redbeat_lite_redis_options={"ssl_password": odd[2]},
    )
    for secret in (*odd, quote(odd[0])):
        assert hide_passwords(f"<Connection(password={secret},port=1)> says {secret!r}") == (
            "<Connection(password=**,port=1)> says '**'"
        )
    assert hide_passwords("a short text") == "a short text"
    settings(redbeat_lite_url="redis://:half;and-half@h")
    assert hide_passwords("wrong: half;and-half") == "wrong: **"


@together("broker", ["sentinel://a:1;sentinel://b:2/3", ["sentinel://a:1", "sentinel://b:2/3"]])
def test_the_sentinels_of_the_broker_are_those_of_the_schedule(broker: Any) -> None:
    found = settings(broker=broker, broker_transport_options={"master_name": "m", "visibility_timeout": 9})
    assert urls.addresses_and_options(found.url) == ([("a", 1), ("b", 2)], {"db": 3})
    assert found.redis_options == {"master_name": "m"}


def test_sentinels_of_its_own_count_more_than_those_of_the_broker() -> None:
    found = settings(
        broker="sentinel://a:1",
        broker_transport_options={"master_name": "theirs", "sentinel_kwargs": {"password": "p"}},
        redbeat_lite_url="sentinel://:pw@c:3;d",
        redbeat_lite_redis_options={"master_name": "ours"},
    )
    assert urls.addresses_and_options(found.url) == ([("c", 3), ("d", 26379)], {"password": "pw"})
    assert found.redis_options == {"master_name": "ours", "sentinel_kwargs": {"password": "p"}}


def test_the_certificates_of_the_broker_are_those_of_the_schedule_in_the_same_place() -> None:
    tls = {"ssl_ca_certs": "ca.pem"}
    assert settings(broker="rediss://h", broker_use_ssl=tls).redis_options == {"ssl": True, **tls}
    assert settings(broker="rediss://h", broker_use_ssl=tls, redbeat_lite_url="redis://e").redis_options == {}


@together("looked_at_before", [False, True])
def test_djangos_form_counts_whether_or_not_the_configuration_was_looked_at(looked_at_before: bool) -> None:
    class Module:
        CELERY_BROKER_URL = "redis://h/0"
        CELERY_REDBEAT_LITE_URL = "redis://elsewhere/0"
        CELERY_REDBEAT_LITE_LEASE = 7

    app = Celery("django", set_as_current=False)
    app.config_from_object(Module(), namespace="CELERY")
    if looked_at_before:
        assert app.conf.broker_url == "redis://h/0"
    found = Settings.from_app(app)
    assert (found.url, found.lease) == ("redis://elsewhere/0", 7)


def test_a_mistake_in_djangos_form_is_told_in_djangos_form() -> None:
    class Module:
        CELERY_BROKER_URL = "redis://h/0"
        CELERY_REDBEAT_LITE_LEAS = 7

    app = Celery("django", set_as_current=False)
    app.config_from_object(Module(), namespace="CELERY")
    with pytest.raises(ConfigurationError, match=r"CELERY_REDBEAT_LITE_LEAS: .*did you mean CELERY_REDBEAT_LITE_LEASE"):
        Settings.from_app(app)


@together(
    ("namespace", "spelled", "right"),
    [
        ("CELERY", "REDBEAT_LITE_OWNR", "REDBEAT_LITE_OWNER"),
        (None, "Redbeat_Lite_Ownr", "Redbeat_Lite_owner"),
        (None, "CELERY_REDBEAT_LITE_OWNR", "CELERY_REDBEAT_LITE_OWNER"),
    ],
)
@together("beside", [{}, {"redbeat_lite_owner": "me"}], ids=["alone", "beside one that counts"])
def test_an_unknown_name_is_told_in_its_own_spelling(
    namespace: str | None, spelled: str, right: str, beside: dict[str, str]
) -> None:
    brokers = dict.fromkeys(("broker_url", "CELERY_BROKER_URL", "celery_broker_url"), "redis://h/0")
    module = SimpleNamespace(**brokers, **{spelled: "me"}, **beside)
    app = Celery("django", set_as_current=False)
    app.config_from_object(module, namespace=namespace)
    with pytest.raises(ConfigurationError, match=f"^{spelled}: .*did you mean {right}[?]$"):
        Settings.from_app(app)


@together(
    ("namespace", "spelled"),
    [
        ("CELERY", "CELERY_REDBEAT_LITE_OWNER"),
        ("CELERY", "REDBEAT_LITE_OWNER"),
        ("CELERY", "redbeat_lite_owner"),
        ("celery", "celery_redbeat_lite_owner"),
        ("celery", "CELERY_REDBEAT_LITE_OWNER"),
        (None, "redbeat_lite_owner"),
        (None, "REDBEAT_LITE_OWNER"),
        (None, "Redbeat_Lite_Owner"),
        (None, "CELERY_REDBEAT_LITE_OWNER"),
        (None, "celery_redbeat_lite_owner"),
    ],
)
def test_each_spelling_is_read(namespace: str | None, spelled: str) -> None:
    brokers = dict.fromkeys(("broker_url", "CELERY_BROKER_URL", "celery_broker_url"), "redis://h/0")
    app = Celery("django", set_as_current=False)
    app.config_from_object(SimpleNamespace(**brokers, **{spelled: "me"}), namespace=namespace)
    assert Settings.from_app(app).owner == "me"


def without_a_namespace(**names: Any) -> Celery:
    """An app with the settings of a module that may have names in capitals only, as Django's."""
    app = Celery("django", set_as_current=False)
    app.config_from_object(SimpleNamespace(BROKER_URL="redis://h/0", **names))
    return app


@together("old", [{}, {"CELERY_TASK_SERIALIZER": "json"}], ids=["new names", "old names"])
def test_capitals_without_a_namespace_count_as_celerys_own_do(old: dict[str, str]) -> None:
    app = without_a_namespace(REDBEAT_LITE_LEASE=7, REDBEAT_LITE_OWNER="me", **old)
    found = Settings.from_app(app)
    assert (found.url, found.lease, found.owner) == ("redis://h/0", 7, "me")


def test_two_spellings_of_one_setting_have_to_agree() -> None:
    app = without_a_namespace(REDBEAT_LITE_URL="redis://:secret@h/1")
    app.conf.redbeat_lite_url = "redis://:secret@h/2"
    message = "REDBEAT_LITE_URL and redbeat_lite_url are both set, to different values; set only one"
    with pytest.raises(ConfigurationError, match=f"^{message}$"):
        Settings.from_app(app)
    app.conf.redbeat_lite_url = "redis://:secret@h/1"
    assert Settings.from_app(app).url == "redis://:secret@h/1"


def test_two_spellings_with_a_namespace_have_to_agree_and_code_overrides_them() -> None:
    names = {"CELERY_BROKER_URL": "redis://h/0", "CELERY_REDBEAT_LITE_OWNER": "a", "REDBEAT_LITE_OWNER": "b"}
    app = Celery("django", set_as_current=False)
    app.config_from_object(SimpleNamespace(**names), namespace="CELERY")
    both = "^CELERY_REDBEAT_LITE_OWNER and REDBEAT_LITE_OWNER are both set, to different values"
    with pytest.raises(ConfigurationError, match=both):
        Settings.from_app(app)
    app = Celery("django", set_as_current=False)
    app.config_from_object(SimpleNamespace(**{**names, "REDBEAT_LITE_OWNER": "a"}), namespace="CELERY")
    assert Settings.from_app(app).owner == "a"
    app.conf.redbeat_lite_owner = "c"
    assert Settings.from_app(app).owner == "c"
