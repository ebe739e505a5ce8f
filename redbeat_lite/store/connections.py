"""Connections to the server that holds the schedule, and the exceptions of its clients.

The server is a single one, the master that Sentinel names, or a cluster. No other module makes
clients.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast
from weakref import WeakSet

import redis
import redis.cluster
from kombu.utils.imports import symbol_by_name
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.exceptions import (
    AuthenticationError,
    ClusterDownError,
    NoPermissionError,
    RedisClusterException,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelManagedConnection, SentinelManagedSSLConnection

from .._base import urls
from .._base.clock import elapsed
from .._base.errors import ConfigurationError
from .._base.forks import forks_allowed
from .._base.lazy import lazy
from ..settings import Settings, key_root
from .keys import ForeignKey, find_foreign_key
from .redis_values import text
from .scripts import Scripts

_T = TypeVar("_T")

# Seconds after which a hanging command or connection attempt fails.
# Suppose that commands reach the server, but its replies are lost. The main loop of the leader
# waits for a reply, and sends no messages. The thread that renews the lease goes on, so no other
# beat can lead. Only this timeout ends the wait. So it is not longer than the default lease.
_SOCKET_TIMEOUT = 4.0

# Seconds between the pings that show whether an idle subscription is still alive.
_HEALTH_CHECK_INTERVAL = 15

# Seconds after which Sentinel is asked again whether the master is still the same.
_MASTER_CHECK = 1.0

#: Seconds after which Sentinel is asked again if a sentinel did not answer. Asking that sentinel
#: can take as long as a command that hangs, so it is asked less often.
MASTER_CHECK_UNANSWERED = 30.0

# Seconds of the pause after the first attempt of a command. Each pause is twice as long as the one
# before it.
_FIRST_PAUSE = 0.2

# Longest pause between two attempts of a command, in seconds.
_LONGEST_PAUSE = 4.0

#: Exceptions of a server that is down, restarting, failing over or out of reach.
UNREACHABLE: tuple[type[Exception], ...] = (
    RedisConnectionError,
    RedisTimeoutError,
    RedisClusterException,  # No node of a cluster answers, or none has the slot.
    ClusterDownError,  # A node of a cluster answers, but the cluster fails over.
    OSError,
)

#: All exceptions that a command to the server can raise.
FAULTS: tuple[type[Exception], ...] = (RedisError, RedisClusterException, OSError)


class Backend:
    """Source of clients for one server, for the master that Sentinel names, or for a cluster.

    It connects at the first command. A forked child opens clients of its own.

    Parameters:
        timeout: timeout of :attr:`client` in seconds, as :meth:`open` takes it.
    """

    def __init__(self, settings: Settings, *, timeout: float | None = None) -> None:
        self._settings = settings
        self._timeout = timeout
        _backends.add(self)

    @property
    def display_url(self) -> str:
        """URL of the server without user, password and options."""
        return urls.address_of(self._settings.url)

    @lazy
    def client(self) -> redis.Redis:
        """Client for commands. It is thread-safe and pooled, and its replies are bytes."""
        return self.open(timeout=self._timeout)

    @lazy
    def scripts(self) -> Scripts:
        """Lua scripts, which run through :attr:`client`."""
        return Scripts(self.client)

    def open(self, *, timeout: float | None = None) -> redis.Redis:
        """Return a client with a connection pool of its own; the caller closes it.

        Parameters:
            timeout: seconds until a command or a connection attempt that hangs is given up, for
                work that has to end in time. It overrides the timeouts and retries in
                ``redis_options`` and in the URL.
        """
        options: dict[str, Any] = {
            "health_check_interval": _HEALTH_CHECK_INTERVAL,
            **_timeouts(_SOCKET_TIMEOUT),
            **self._settings.redis_options,
        }
        return _client_for(self._settings.url, options, timeout)

    def close(self) -> None:
        """Close the connections of the shared client; the next command opens new ones."""
        client = self.forget()
        if client is not None:
            client.close()

    def forget(self) -> redis.Redis | None:
        """Let the next command open a new client; return the old client, with its connections."""
        self.__dict__.pop("scripts", None)
        client: redis.Redis | None = self.__dict__.pop("client", None)
        return client


# All backends of this process, so that a forked child can drop their clients.
_backends: WeakSet[Backend] = WeakSet()

# Clients of the process that forked this one. This list prevents their garbage collection, which
# would acquire their locks. A lock that was held at the fork is never released in this process.
_inherited: list[redis.Redis | None] = []


def _forget_in_child() -> None:
    """Let each backend open a new client in a forked child.

    If another thread of the parent held a lock of the old client at the fork, nobody releases this
    lock in the child. redis-py 5 makes new locks for a pool, 6.4 to 8.1 do not, and no version does
    so for a cluster.
    """
    for backend in _backends:
        # Keep the old client, because its garbage collection would acquire such locks.
        _inherited.append(backend.forget())


os.register_at_fork(after_in_child=_forget_in_child)


def with_advice(exc: Exception, key_prefix: str) -> Exception:
    """Return the error with advice if the server has refused a command, else the same error."""
    message = str(exc)
    # These words are in the answers to a client that has sent no password.
    asks_for_password = "HELLO" in message or "NOAUTH" in message or "required" in message
    if isinstance(exc, AuthenticationError) and asks_for_password:
        return AuthenticationError("it wants a password, and the URL has none")
    if isinstance(exc, NoPermissionError) and "key" in message:
        # The keys of a pipeline's run (several tasks in order) have the id of the run within the
        # braces: ``{redbeat-lite:<id>}``. So their pattern has the root without its closing brace.
        root = key_root(key_prefix)
        patterns = f"~{root}:* and ~{root[:-1]}:*"
        return NoPermissionError(f"{message}; it needs those of the patterns {patterns}")
    return exc


def retry_for(call: Callable[[], _T], seconds: float) -> _T:
    """Return what ``call`` returns; if the server does not answer, repeat the call for a while.

    ``call`` must be idempotent, because a command whose reply was lost is sent again.
    The last attempt begins after ``seconds``. If the server hangs, this attempt fails after the
    timeout of its client, by default ``_SOCKET_TIMEOUT``.

    Raises:
        Exception: the last attempt has failed. A missing permission and a key of another program
            are raised at once, because a retry would not help.
    """
    deadline = time.monotonic() + seconds
    pause = _FIRST_PAUSE
    while True:
        try:
            return call()
        except FAULTS as exc:
            remaining = deadline - time.monotonic()
            # If a command within a script lacks a permission, only the text of the error says so.
            is_forbidden = isinstance(exc, NoPermissionError) or "ACL failure" in str(exc)
            if remaining <= 0 or is_forbidden or isinstance(exc, ForeignKey):
                raise
            # If the caller holds the lock that blocks forks, release it for this pause, so that
            # other threads can fork meanwhile.
            with forks_allowed():
                time.sleep(min(pause, remaining))
            pause = min(2 * pause, _LONGEST_PAUSE)


# -- clients ---------------------------------------------------------------------------------------


def _timeouts(timeout: float) -> dict[str, Any]:
    """Return options that make a hanging command or connection fail after ``timeout`` seconds."""
    return {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        # One retry at once, because the server may have dropped an idle connection. A script can be
        # sent again: scripts that write entries store their reply under the id of the call, and
        # return it the second time, and all other scripts change nothing the second time. A few of
        # these reply that there was nothing to do; see "call ids" in store/scripts/__init__.py.
        # Callers that need more retries, with pauses, use retry_for().
        "retry": Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,)),
    }


def _override_timeouts(options: dict[str, Any], timeout: float) -> None:
    """Put a timeout in place of the user's timeouts and retries in ``options``."""
    # With either of these options, redis-py would repeat a command that has hung.
    for name in ("retry_on_timeout", "retry_on_error"):
        options.pop(name, None)
    options |= _timeouts(timeout)


def _client_for(url: str, options: dict[str, Any], timeout: float | None) -> redis.Redis:
    """Return a client with a connection pool of its own, which is not connected yet.

    Parameters:
        url: URL of the server, of sentinels, or of nodes of a cluster. Its options override
            ``options``.
        timeout: as :meth:`Backend.open` takes it.

    Raises:
        ConfigurationError: redis-py does not know the options, or they do not fit the URL.
    """
    scheme = urls.scheme_of(url)
    nodes, url_options = urls.addresses_and_options(url)
    # This package expects bytes, whatever the user's options and the URL say.
    options = _with_provider(options | url_options | {"decode_responses": False})
    if timeout is not None:
        _override_timeouts(options, timeout)
    if options.get("ssl") or scheme in ("rediss", "rediss-cluster"):
        options |= {"ssl": True, **_host_check(options)}
    if scheme in urls.CLUSTER:  # redis-py checks its options at the first command.
        return cast(redis.Redis, _Cluster(nodes, options))
    # redis-py calls this function in place of its own set-up of a new connection. The function does
    # the same without a health check, which may never end in redis-py 5.
    options.setdefault("redis_connect_func", _greet_server)
    try:
        # Only a URL of sentinels has nodes here. The address of a single server is in the options.
        client = _master_client(nodes, options, timeout) if nodes else _single_client(options)
        # This checks the options. Making a connection object opens nothing.
        client.connection_pool.connection_class(**client.connection_pool.connection_kwargs)
    except (TypeError, ValueError, RedisError) as exc:
        expected = "redbeat_lite_redis_options: expected options that redis-py knows"
        raise ConfigurationError(f"{expected}: {exc}") from None
    return client


def _with_provider(options: dict[str, Any]) -> dict[str, Any]:
    """Return ``options`` with the credential provider as an object, as redis-py needs it.

    A URL can only name the provider, by the import path of a class or function, as in URLs for
    kombu.

    Raises:
        ConfigurationError: the provider cannot be imported or made.
    """
    provider = options.get("credential_provider")
    if isinstance(provider, str):
        try:
            factory: Any = symbol_by_name(provider)  # type: ignore[no-untyped-call]
            options["credential_provider"] = factory()
        except (ImportError, AttributeError, ValueError, TypeError) as exc:
            raise ConfigurationError(
                "redbeat_lite_url: expected a credential_provider that can be imported and made, "
                f"got {provider!r}: {exc}"
            ) from exc
    return options


def _host_check(options: dict[str, Any]) -> dict[str, Any]:
    """Return the option that makes redis-py compare the certificate with the host's name.

    redis-py compares them by default only from version 6 on. The result is empty if the user has
    chosen this option, or has switched off the check of the certificate.
    """
    is_unverified = options.get("ssl_cert_reqs", "required") in (None, "none", ssl.CERT_NONE)
    if is_unverified or "ssl_check_hostname" in options:
        return {}
    return {"ssl_check_hostname": True}


def _greet_server(connection: Any) -> None:
    """Set up a new connection as redis-py does, but without a health check.

    If the server has closed the connection, the health check of redis-py 5 opens a new one. The new
    one begins with a health check, too, and so on without an end.
    """
    # The first reply replaces this by the time of the next health check.
    connection.next_health_check = float("inf")
    connection.on_connect()


def _single_client(options: dict[str, Any]) -> redis.Redis:
    """Return a client of one server, which is reached by TCP, TLS or a Unix socket."""
    if "path" in options:
        # The connection of redis-py to a Unix socket does not know this option.
        options.pop("socket_connect_timeout")
    elif options.pop("ssl", False):
        options["connection_class"] = redis.SSLConnection
    return _Client.from_pool(_Pool(**options))


def _master_client(
    sentinels: Sequence[tuple[str, int]],
    options: dict[str, Any],
    timeout: float | None,
) -> redis.Redis:
    """Return a client of the master that these sentinels name.

    Parameters:
        sentinels: host and port of each sentinel.
        options: options of connections to the master. Two items are no such options, and are
            removed: ``master_name``, and ``sentinel_kwargs``, which has the user's options of
            connections to the sentinels.
        timeout: as :meth:`Backend.open` takes it.
    """
    name = options.pop("master_name")
    user_options = options.pop("sentinel_kwargs", None) or {}
    # redis-py asks one sentinel after another. Divide the timeout, so that there is time for all.
    sentinel_options = {**_timeouts(_SOCKET_TIMEOUT / len(sentinels)), **user_options}
    if timeout is not None:
        _override_timeouts(sentinel_options, timeout / len(sentinels))
    if user_options.get("ssl"):
        sentinel_options |= _host_check(user_options)
    manager: Any = Sentinel(  # type: ignore[no-untyped-call]
        [], sentinel_kwargs=sentinel_options, **options
    )
    # Sentinel() would make clients of its own class, whose errors may show a password.
    manager.sentinels = [_Sentinel(host, port, **sentinel_options) for host, port in sentinels]
    connection = _SecureMasterConnection if options.get("ssl") else _MasterConnection
    client = manager.master_for(name, redis_class=_Client, connection_class=connection)
    return cast(redis.Redis, client)


class _HandlesRefusals:
    """Mixin of clients that handle a server's refusal of a command.

    If another program uses one of our keys, this raises ForeignKey, which names the key. The error
    of Redis does not name it.
    """

    connection_pool: Any  # The client class beside this mixin sets it.

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Call redis-py's method. If the server has become a replica, close the idle connections.

        If another program uses the key, the error names the key.
        """
        client: Any = super()  # This class is a mixin; its sibling is a client class of redis-py.
        try:
            return client.execute_command(*args, **options)
        except ResponseError as exc:
            # A server that was demoted keeps its connections. Only new ones lead to the new master
            # behind the same name or proxy. A cluster is not handled here: its nodes answer in
            # other words (MOVED), and redis-py follows these.
            if "read only replica" in str(exc):
                self.connection_pool.disconnect(inuse_connections=False)
            error = find_foreign_key(self, args, exc)
            if error is None:
                raise
            raise error from exc


class _Pool(redis.ConnectionPool):
    """Connections to one server. If nothing listens at its address, the error says what to do."""

    def get_connection(self, *args: Any, **options: Any) -> Any:
        """Call redis-py's method, and add advice to the error if the server cannot be reached."""
        try:
            return super().get_connection(*args, **options)
        except RedisConnectionError as exc:
            # Only the error of a connection that could not be opened has these words.
            if "connecting to" not in str(exc):
                raise
            reason = str(exc).removesuffix(".")
            advice = "Start the server, or check redbeat_lite_url"
            raise RedisConnectionError(f"{reason}. {advice}") from exc


class _Client(_HandlesRefusals, redis.Redis):
    """Client of one server, or of the master, whose address Sentinel tells each new connection."""


class _Sentinel(redis.Redis):
    """Client of one sentinel, shown as its address.

    The errors of redis-py contain its ``repr``, which has a password in redis-py 6.4 to 7.
    """

    def __repr__(self) -> str:
        options = self.connection_pool.connection_kwargs
        return f"{options['host']}:{options['port']}"


class _MasterConnection(SentinelManagedConnection):
    """Connection to the master that Sentinel names, and to no other server.

    If a reply does not come in time, the connection is closed. redis-py would keep it open, and the
    next command would get the late reply of this one, and so on.

    The connection moves to a new master even while the old master still answers. Sentinel demotes
    the old master some eight seconds later, and all that was written to it meanwhile is lost.
    """

    _next_check = 0.0

    def connect_to(self, address: tuple[str, int]) -> None:
        """Call redis-py's method, and ask Sentinel again only after ``_MASTER_CHECK`` seconds."""
        self._next_check = elapsed() + _MASTER_CHECK
        super().connect_to(address)  # type: ignore[no-untyped-call]  # untyped in redis-py

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        """Call redis-py's method, but connect to the present master first, if necessary."""
        if not self._sock:
            # From version 6.4 on, redis-py does not ask Sentinel when it sends a command again. It
            # would connect to the last address, or to localhost:6379 if there was none.
            self.connect()  # type: ignore[no-untyped-call]  # untyped in redis-py
        elif check_health and elapsed() >= self._next_check:
            # redis-py passes check_health=False only while it connects, and for subscriptions.
            # A connection that is being made has just asked Sentinel for the master, and a master
            # that is replaced closes its subscriptions. So both need not ask again.
            self._follow_master()
        super().send_packed_command(command, check_health)  # type: ignore[no-untyped-call]

    def _follow_master(self) -> None:
        """Connect to a new master, once no sentinel that answers names the present one.

        Sentinels learn of a new master within two seconds of each other, and a broker's connection
        asks any of them. If this connection moved as soon as one sentinel named the new master, it
        could record a run as sent there, while the broker's connection still sends the message to
        the old master.
        """
        addresses = set()
        pool = self.connection_pool
        self._next_check = elapsed() + _MASTER_CHECK
        for sentinel in pool.sentinel_manager.sentinels:
            question = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", pool.service_name)
            try:
                # The method of redis-py for this raises TypeError in the versions 6.4 to 7.0.
                address = sentinel.execute_command(*question)
            except RedisError:
                # This sentinel is down, and the master may work all the same. Asking the sentinel
                # again can take as long as a command that hangs, so wait longer than usual.
                self._next_check = elapsed() + MASTER_CHECK_UNANSWERED
                continue
            if address:
                addresses.add((text(address[0]), int(address[1])))
        # If no sentinel has answered, stay at the present master.
        if addresses and (self.host, self.port) not in addresses:
            self.disconnect()  # type: ignore[no-untyped-call]  # untyped in redis-py
            self.connect()  # type: ignore[no-untyped-call]  # untyped in redis-py

    def read_response(self, disable_decoding: bool = False, **options: Any) -> Any:
        """Call redis-py's method, and close the connection if the reply does not come in time."""
        return super().read_response(disable_decoding, **{"disconnect_on_error": True, **options})


class _SecureMasterConnection(_MasterConnection, SentinelManagedSSLConnection):
    """Connection with TLS to the master that Sentinel names."""


class _ClusterClient(_HandlesRefusals, redis.RedisCluster):
    """Client of a cluster, which connects when it is made."""


class _Cluster:
    """Client of a cluster that connects at the first command."""

    def __init__(self, nodes: Sequence[tuple[str, int]], options: dict[str, Any]) -> None:
        self._nodes = nodes
        self._options = options

    def __getattr__(self, name: str) -> Any:
        """Pass a call of any other method on to the client, which connects at the first call."""
        return getattr(self._client, name)

    @lazy
    def _client(self) -> redis.RedisCluster:
        """Client that is connected to the cluster. A cluster has one database, so drop ``db``."""
        options = {name: value for name, value in self._options.items() if name != "db"}
        if options.get("ssl"):
            # For a cluster, redis-py before version 6 silently drops ``ssl_check_hostname``, unless
            # it is in this list.
            module: Any = redis.cluster
            if "ssl_check_hostname" not in module.REDIS_ALLOWED_KEYS:
                module.REDIS_ALLOWED_KEYS += ("ssl_check_hostname",)
        nodes = [ClusterNode(*node) for node in self._nodes]  # type: ignore[no-untyped-call]
        return _ClusterClient(startup_nodes=nodes, **options)

    def pubsub(self) -> Any:
        """Return a new subscription, after asking which nodes the cluster has now."""
        # A subscription is opened at the start, and again after it was lost. The nodes may have
        # changed meanwhile. A command finds the present nodes by itself, but a subscription does
        # not.
        self._client.nodes_manager.initialize()
        return self._client.pubsub()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        client = self.__dict__.pop("_client", None)
        if client is not None:
            client.close()
