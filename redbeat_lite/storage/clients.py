"""The clients of redis-py, as we make them: for one server, for the master that Sentinel names, for a cluster."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from typing import Any, cast

import redis
import redis.cluster
from kombu.utils.imports import symbol_by_name
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelManagedConnection, SentinelManagedSSLConnection

from .. import urls
from ..clock import elapsed
from ..errors import ConfigurationError
from .key_types import find_foreign_key
from .replies import text

#: Seconds until a command or a connection attempt that hangs is given up. Not longer than the default lease: where only
#: the answers are lost, the server goes on renewing for a leader that does nothing, until its command is given up.
SOCKET_TIMEOUT = 4.0

#: Seconds between two looks whether Sentinel names the same master still; and the same after a sentinel did not answer,
#: which may take as long as a command.
_LOOK = 1.0
LOOK_UNANSWERED = 30.0


class _NamesForeignKey:
    """Client whose error names the key that another program uses; Redis names none."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        try:
            return super().execute_command(*args, **options)  # type: ignore[misc] # of the client behind this class
        except ResponseError as exc:
            error = find_foreign_key(self, args, exc)
            if error is None:
                raise
            raise error from exc


class _Single(_NamesForeignKey, redis.Redis):
    """The client of one server."""


class _ClusterClient(_NamesForeignKey, redis.RedisCluster):
    """The client of a cluster."""


def client_for(url: str, options: dict[str, Any], last: dict[str, Any]) -> redis.Redis:
    """A client with a connection pool of its own, which opens nothing yet; raises ConfigurationError where the options
    are none of redis-py's, or do not fit the URL.

    Parameters:
        url: of the server, of sentinels, or of nodes of a cluster; what it says goes before ``options``.
        last: options that go before what the URL says.
    """
    scheme = urls.scheme_of(url)
    nodes, given = ([], urls.parsed(url)) if scheme in urls.SINGLE else urls.several(url)
    options = _provided({**options, **given, **last})
    if options.get("ssl") or scheme in ("rediss", "rediss-cluster"):
        options |= {"ssl": True, **_host_checked(options)}
    if scheme in urls.CLUSTER:
        return cast(redis.Redis, _Cluster(lambda: _cluster(nodes, options)))
    options.setdefault("redis_connect_func", _greet_server)
    try:
        client = _master(nodes, options, last) if nodes else _single(options)
        # Making a connection opens nothing.
        client.connection_pool.connection_class(**client.connection_pool.connection_kwargs)
    except (TypeError, ValueError, RedisError) as exc:
        raise ConfigurationError(f"redbeat_lite_redis_options: expected options that redis-py knows: {exc}") from None
    return client


def _greet_server(connection: Any) -> None:
    """Set up a new connection as redis-py does, but without a health check.

    In redis-py 5, the health check of a connection that the server has closed connects again, which
    begins with a health check, and so on without an end.
    """
    connection.next_health_check = float("inf")
    connection.on_connect()


def bounds(timeout: float) -> dict[str, Any]:
    """The options by which a command or a connection attempt that hangs is given up after so many seconds."""
    return {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        # One try over, at once: the server may have dropped a connection that lay idle. Sending a script again does
        # nothing twice: those that write entries keep their reply under the id of the call, the others change nothing
        # by being run again. Longer waits belong to the callers.
        "retry": Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,)),
    }


def _single(options: dict[str, Any]) -> redis.Redis:
    if "path" in options:
        options.pop("socket_connect_timeout")
    elif options.pop("ssl", False):
        options["connection_class"] = redis.SSLConnection
    return _Single.from_pool(redis.ConnectionPool(**options))


def _host_checked(options: dict[str, Any]) -> dict[str, Any]:
    """What has redis-py compare the certificate with the host's name: before version 6 it does so only when told to."""
    unverified = options.get("ssl_cert_reqs", "required") in (None, "none", ssl.CERT_NONE)
    return {} if unverified or "ssl_check_hostname" in options else {"ssl_check_hostname": True}


class _Master(_NamesForeignKey, redis.Redis):
    """The master that Sentinel names, at each connection anew."""

    def close(self) -> None:
        super().close()
        manager: Any = self.connection_pool.sentinel_manager  # type: ignore[attr-defined]
        for sentinel in manager.sentinels:
            sentinel.close()


class _Sentinel(redis.Redis):
    """A sentinel, which goes by its address: the errors of redis-py name it, and 6.4 to 7 do so with its password."""

    def __repr__(self) -> str:
        options = self.connection_pool.connection_kwargs
        return f"{options['host']}:{options['port']}"


class _MasterConnection(SentinelManagedConnection):
    """Connection to the master that Sentinel names, and to no other server.

    It is closed if a reply does not come in time. redis-py keeps it, unlike its other ones; the next command would then
    be given the late reply of this one, and each one after it that of its predecessor.

    It moves on to a new master also while the old one goes on: Sentinel tells that one some eight seconds later that it
    is a replica now, and then it forgets everything that it has taken meanwhile.
    """

    _next_look = 0.0

    def connect_to(self, address: tuple[str, int]) -> None:
        self._next_look = elapsed() + _LOOK
        super().connect_to(address)  # type: ignore[no-untyped-call]  # untyped in redis-py

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        if not self._sock:
            # Since version 6.4 redis-py does not ask Sentinel here, when it sends a command again after a loss: it
            # would connect to the last address, or to localhost:6379 if there was none.
            self.connect()  # type: ignore[no-untyped-call]  # as above
        elif check_health and elapsed() >= self._next_look:
            # A command without the check is part of connecting, or of a subscription, which the
            # old master ends.
            self._follow_master()
        super().send_packed_command(command, check_health)  # type: ignore[no-untyped-call]  # as above

    def _follow_master(self) -> None:
        """Connect to another master if all sentinels name it.

        All of them, because they learn of it within two seconds of each other, and a broker's connection asks any of
        them: on the old master it would send what was counted as sent on the new one.
        """
        named = set()
        pool = self.connection_pool
        self._next_look = elapsed() + _LOOK
        for sentinel in pool.sentinel_manager.sentinels:
            try:
                # The method of redis-py for this raises TypeError in the versions 6.4 to 7.0.
                address = sentinel.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", pool.service_name)
            except RedisError:  # the master may be sound without its sentinels
                self._next_look = elapsed() + LOOK_UNANSWERED
                continue
            if address:
                named.add((text(address[0]), int(address[1])))
        if named and (self.host, self.port) not in named:
            self.disconnect()  # type: ignore[no-untyped-call]  # as above
            self.connect()  # type: ignore[no-untyped-call]  # as above

    def read_response(self, disable_decoding: bool = False, **options: Any) -> Any:
        return super().read_response(disable_decoding, **{"disconnect_on_error": True, **options})


class _SecureMasterConnection(_MasterConnection, SentinelManagedSSLConnection):
    """The same behind TLS."""


def _master(sentinels: Sequence[tuple[str, int]], options: dict[str, Any], last: dict[str, Any]) -> redis.Redis:
    # All of them may have to be asked within the time.
    within = bounds(last.get("socket_timeout", SOCKET_TIMEOUT) / len(sentinels))
    own = options.pop("sentinel_kwargs", None) or {}
    asking = {**own, **within} if last else {**within, **own}
    if own.get("ssl"):
        asking |= _host_checked(own)
    name = options.pop("master_name")
    manager: Any = Sentinel([], sentinel_kwargs=asking, **options)  # type: ignore[no-untyped-call]
    manager.sentinels = [_Sentinel(host, port, **asking) for host, port in sentinels]
    connection = _SecureMasterConnection if options.get("ssl") else _MasterConnection
    return cast(redis.Redis, manager.master_for(name, redis_class=_Master, connection_class=connection))


def _cluster(nodes: Sequence[tuple[str, int]], options: dict[str, Any]) -> redis.RedisCluster:
    options.pop("db", None)
    if options.get("ssl"):
        # Before version 6, redis-py drops this option without a word where it connects to a cluster.
        module: Any = redis.cluster
        if "ssl_check_hostname" not in module.REDIS_ALLOWED_KEYS:
            module.REDIS_ALLOWED_KEYS += ("ssl_check_hostname",)
    found = [ClusterNode(host, port) for host, port in nodes]  # type: ignore[no-untyped-call]
    return _ClusterClient(startup_nodes=found, **options)


def _provided(options: dict[str, Any]) -> dict[str, Any]:
    """``options`` with the credential provider that a URL names, as kombu's may."""
    provider = options.get("credential_provider")
    if isinstance(provider, str):
        try:
            options["credential_provider"] = symbol_by_name(provider)()  # type: ignore[no-untyped-call]
        except (ImportError, AttributeError, ValueError, TypeError) as exc:
            expected = "redbeat_lite_url: expected a credential_provider that can be imported and made"
            raise ConfigurationError(f"{expected}, got {provider!r}: {exc}") from exc
    return options


class _Cluster:
    """A client that looks for its cluster at the first command, where redis-py's would do it at once."""

    def __init__(self, connect: Callable[[], redis.RedisCluster]) -> None:
        self._connect = connect
        self._found: redis.RedisCluster | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster(), name)

    def _cluster(self) -> redis.RedisCluster:
        if self._found is None:
            self._found = self._connect()
        return self._found

    def pubsub(self) -> Any:
        # A subscription is made at the start, and after a loss. Then the nodes may have changed, and unlike a command
        # it would not ask which ones there are.
        cluster = self._cluster()
        cluster.nodes_manager.initialize()
        return cluster.pubsub()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        found, self._found = self._found, None
        if found is not None:
            found.close()
