"""The ``redbeat_lite_*`` settings, read once from ``app.conf`` and validated."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from . import urls
from .durations import seconds_of
from .errors import ConfigurationError, remember
from .expect import Expect
from .setting_checks import (
    PREFIX,
    check_choice,
    check_notify,
    check_number,
    check_options,
    check_text,
    check_url,
    check_web_url,
    check_whole,
    expectation,
    is_address,
    is_expires,
    mapping,
    require,
)

if TYPE_CHECKING:
    from celery import Celery

#: How often the leader renews within one lease.
RENEWALS_PER_LEASE = 4

#: The URL of settings that are read for something which asks no server.
NO_SERVER = "redis://none"

#: Most runs of an entry that are remembered.
MAX_HISTORY = 1000

#: Longest name of an entry or a task, in characters.
MAX_NAME = 200


#: Valid prefixes: text without braces, or with one pair of braces at its end.
_PREFIX = re.compile(r"[^{}]+|[^{}]*\{[^{}]+\}")


def key_root(prefix: str) -> str:
    """Return the beginning of all keys under a prefix: ``{redbeat-lite}`` or ``myapp:{beat}``.

    Redis Cluster chooses the slot of a key by the text in its braces.
    """
    return prefix if prefix.endswith("}") else f"{{{prefix}}}"


#: Settings that are lengths of time.
_LENGTHS = {"lease", "expires", "clock_slack", "once_lease", "publish_timeout", "stall_timeout"}


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a user can set. Lengths of time are in seconds here; an app may give any that :mod:`durations` reads.

    Parameters:
        url: the Redis server, or the servers, that hold the schedule; the broker's own URL where that is a Redis.
        redis_options: further keyword arguments for the redis-py client; ``master_name`` and ``sentinel_kwargs`` too.
        key_prefix: what all keys begin with; schedules under different prefixes know nothing of each other.
            Keys have the prefix in braces, unless it ends with braces of its own, such as ``"myapp:{beat}"``.
        owner: who owns the entries of ``beat_schedule``; entries of another owner are never touched.
        lease: how long a leader that falls silent stays leader. 1 to 86,400.
        batch_size: entries per round trip, 1 to 5,000.
        expires: default of an entry's ``expires``: ``None``, seconds, or ``"interval"``.
        clock_slack: by how much the clocks of beats and workers may differ: a message that expires with its interval
            lives that much longer. 0 to 86,400.
        misfire: default of an entry's ``misfire``: ``"coalesce"``, ``"skip"`` or ``"all"``.
        once_lease: lease of a once-lock. 1 to 86,400.
        history: default of an entry's ``history``: how many of its last runs are remembered, 0 to 1,000.
        expect: default of an entry's ``expect``: a mapping of the fields of :class:`Expect`, but of
            ``succeed_every``, which goes by the rule of one entry.
        publish_timeout: after how long a publish that hangs is given up. 0.1 to 86,400.
        stall_timeout: after how long without progress a leader stops renewing its lease. 1 to 86,400.
        dispatch: ``"auto"``, ``"batch"`` or ``"plain"``.
        traceparent: whether the messages of the beat carry the W3C header of this name, each with a trace of its own.
        metrics_port: the port on which the beat serves metrics for Prometheus, 1 to 65,535.
        metrics_host: the address on which it does, of IP; ``"0.0.0.0"`` is every one of the machine.
        heartbeat_file: a file that the beat touches every second while its loop lives; its directory must exist.
        heartbeat_url: a URL of http or https that the leader asks for every minute.
        notify: URLs of services, as apprise has them, that are told of incidents.
    """

    # These two may hold a password, so they are in no repr().
    url: str = field(repr=False)
    redis_options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    key_prefix: str = "redbeat-lite"
    owner: str = "celery"
    lease: float = 4.0
    batch_size: int = 500
    expires: float | str | None = "interval"
    clock_slack: float = 5.0
    misfire: Literal["coalesce", "skip", "all"] = "coalesce"
    once_lease: float = 60.0
    history: int = 20
    expect: Expect | None = None
    publish_timeout: float = 5.0
    stall_timeout: float = 30.0
    dispatch: str = "auto"
    traceparent: bool = False
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    heartbeat_file: str | None = None
    # Any part of these may be a secret.
    heartbeat_url: str | None = field(default=None, repr=False)
    notify: Sequence[str] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        check_url(self.url)
        check_options(self.url, self.redis_options)
        check_text("key_prefix", self.key_prefix)
        expected = 'text without braces, or with one pair at its end, such as "myapp:{beat}"'
        is_valid = _PREFIX.fullmatch(self.key_prefix) is not None
        require("key_prefix", is_valid, expected, self.key_prefix)
        check_text("owner", self.owner)
        check_number("lease", self.lease, 1.0)
        check_number("once_lease", self.once_lease, 1.0)
        check_number("clock_slack", self.clock_slack, 0.0)
        check_number("publish_timeout", self.publish_timeout, 0.1)
        check_number("stall_timeout", self.stall_timeout, 1.0)
        shortest = f"more than {PREFIX}publish_timeout ({self.publish_timeout:g} s), or a slow publish counts as a hang"
        require("stall_timeout", self.stall_timeout > self.publish_timeout, shortest, self.stall_timeout)
        check_whole("batch_size", self.batch_size, 1, 5000)
        check_whole("history", self.history, 0, MAX_HISTORY)
        require(
            "expires", is_expires(self.expires), 'None, positive seconds up to 100 years or "interval"', self.expires
        )
        check_choice("misfire", self.misfire, ("coalesce", "skip", "all"))
        check_choice("dispatch", self.dispatch, ("auto", "batch", "plain"))
        require("traceparent", isinstance(self.traceparent, bool), "True or False", self.traceparent)
        port, file = self.metrics_port, self.heartbeat_file
        is_port = type(port) is int and 1 <= port <= 65_535
        require("metrics_port", port is None or is_port, "a port from 1 to 65535", port)
        where = "the IP address to listen on, such as 127.0.0.1 or 0.0.0.0"
        require("metrics_host", is_address(self.metrics_host), where, self.metrics_host)
        check_notify(self.notify)
        check_web_url("heartbeat_url", self.heartbeat_url)
        require("heartbeat_file", file is None or (isinstance(file, str) and file != ""), "the path of a file", file)

    @property
    def slack_ms(self) -> int:
        """By how many milliseconds the clocks of beats and workers may differ."""
        return round(1000 * self.clock_slack)

    @classmethod
    def from_app(cls, app: Celery, *, url: str | None = None) -> Settings:
        """Read the settings of a Celery app.

        Django's form works too: with ``config_from_object(..., namespace="CELERY")`` the setting ``url`` is
        ``CELERY_REDBEAT_LITE_URL``, and without a namespace ``REDBEAT_LITE_URL``.

        Parameters:
            url: instead of the one that is set, for what asks no server.

        Raises:
            ConfigurationError: a value is wrong, a name is unknown, written so that Celery passes over it or, without a
                namespace, given twice with two values, or there is no Redis to use.
        """
        values = {name: _value(app, name) for name in _given(app)}
        for name in _LENGTHS & values.keys():
            values[name] = values[name] if (seconds := seconds_of(values[name])) is None else seconds
        values["expect"] = expectation(values.get("expect"))
        if url is not None:
            values["url"] = url
        elif values.get("url") is None:
            values["url"] = _broker_url(app)
            values["redis_options"] = {**_broker_tls(app), **mapping(values.get("redis_options", {}))}
        if urls.scheme_of(str(values["url"])) in urls.SENTINEL:
            values["redis_options"] = {**_broker_sentinel(app), **mapping(values.get("redis_options", {}))}
        remember((values.get("heartbeat_url"), values.get("notify")))
        broker = app.conf.broker_write_url, app.conf.broker_transport_options
        remember((values["url"], values.get("redis_options"), *broker))
        values.setdefault("owner", app.main or cls.__dataclass_fields__["owner"].default)
        return cls(**values)


def _given(app: Celery) -> list[str]:
    """Names set by the user, without the prefix; raises ConfigurationError where there is no such setting, or Celery
    passes over it as it is spelled."""
    # Reading the names loads a configuration that is still pending. Only then it knows of its namespace: asked earlier,
    # it has none, and every setting in Django's form would go unnoticed.
    keys = [str(key) for key in app.conf]
    # Without a namespace most of Celery's own names in capitals begin so, and ours may be written alike, by mistake.
    start = (app.conf.prefix or "CELERY_").lower()
    names = []
    for spelled in keys:
        plain = spelled.lower().removeprefix(start)
        if plain.startswith(PREFIX):
            name = plain.removeprefix(PREFIX)
            _check_spelling(app.conf.prefix or "", spelled, name)
            names.append(name)
    return names


def _check_spelling(namespace: str, spelled: str, name: str) -> None:
    known = [f.name for f in fields(Settings)]
    near = [name] if name in known else difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    right = [each for found in near for each in _spellings(namespace, found)]
    if spelled not in right:
        nearest = difflib.get_close_matches(spelled, right, n=1, cutoff=0)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        raise ConfigurationError(f"{spelled}: there is no such setting{hint}")


def _spellings(namespace: str, name: str) -> tuple[str, str]:
    """The setting ``name`` as Celery reads it; without a namespace in capitals too, all that Django hands on."""
    own, full = PREFIX + name, namespace + PREFIX + name
    return own, full.upper() if not namespace or namespace.isupper() else full.lower()


def _value(app: Celery, name: str) -> Any:
    """The value of a setting; with a namespace that which Celery itself would take. Raises ConfigurationError where,
    without one, there are two."""
    own, other = _spellings(app.conf.prefix or "", name)
    if app.conf.prefix:
        return app.conf[own]
    values = [app.conf[each] for each in (own, other) if each in app.conf]
    if len(values) == 2 and values[0] != values[1]:
        raise ConfigurationError(f"{own} and {other} are both set, to different values; set one of them")
    return values[0]


def has_own_url(app: Celery) -> bool:
    """Return whether ``redbeat_lite_url`` is set, which takes precedence over the broker's URL."""
    return "url" in _given(app)


def broker_urls(app: Celery) -> list[str]:
    """Return the URLs of the brokers, of which Celery uses the first one that answers."""
    url = app.conf.broker_write_url
    if isinstance(url, (list, tuple)):
        return [str(one) for one in url]
    return str(url or "").split(";")


def _broker_url(app: Celery) -> str:
    servers = broker_urls(app)
    scheme = urls.scheme_of(servers[0]) if servers and servers[0] else "none"
    if scheme in urls.SENTINEL:
        return ";".join(servers)
    if scheme in urls.SCHEMES:
        return servers[0]
    raise ConfigurationError(
        f"redbeat_lite_url: expected the URL of a Redis server, because the broker ({scheme}) cannot hold the schedule"
    )


def _broker_tls(app: Celery) -> dict[str, Any]:
    """What ``broker_use_ssl`` says about certificates, as options of redis-py's client."""
    given = app.conf.broker_use_ssl
    return {"ssl": True, **given} if isinstance(given, Mapping) else {}


def _broker_sentinel(app: Celery) -> dict[str, Any]:
    """What the broker's transport options say about Sentinel."""
    given = app.conf.broker_transport_options or {}
    return {name: given[name] for name in ("master_name", "sentinel_kwargs") if name in given}
