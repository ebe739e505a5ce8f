"""Several servers that belong together: watched by Sentinel, or sharing the keys as a Cluster."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import Any, Self

import redis

from tests.support.server import Server, Startable, binary, free_port
from tests.support.waiting import eventually

#: Milliseconds of silence after which a server counts as down. As short as a loaded machine allows.
DOWN_AFTER = 700


class Sentinels(Startable):
    """A master, a replica, and three sentinels of which two decide.

    Parameters:
        password: of the servers, and another one of the sentinels.
    """

    NAME = "main"

    def __init__(self, password: str = "", sentinel_password: str = "") -> None:
        auth = {"requirepass": password, "masterauth": password} if password else {}
        self.password, self.sentinel_password = password, sentinel_password
        self.servers = [Server(**auth, **{"repl-diskless-sync-delay": "0"}) for _ in range(2)]
        self._sentinels: list[Server] = []

    @property
    def url(self) -> str:
        secret = f":{self.password}@" if self.password else ""
        nodes = [f"127.0.0.1:{each.port}" for each in self._sentinels]
        return f"sentinel://{secret}{nodes[0]}/0;" + ";".join(nodes[1:])

    @property
    def options(self) -> dict[str, Any]:
        """``redis_options``, and ``broker_transport_options``."""
        secret = {"sentinel_kwargs": {"password": self.sentinel_password}} if self.sentinel_password else {}
        return {"master_name": self.NAME, **secret}

    @property
    def master(self) -> Server:
        """The server that the sentinels call the master."""
        with self._sentinels[0].client(password=self.sentinel_password or None) as client:
            _, port = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.NAME)
        return next(each for each in self.servers if each.port == int(port))

    def client(self) -> redis.Redis:
        """A client of the present master."""
        return self.master.client()

    def start(self) -> Self:
        master, replica = self.servers
        replica._options["replicaof"] = f"127.0.0.1 {master.port}"
        master.start()
        replica.start()
        self._sentinels = [self._sentinel(master) for _ in range(3)]
        eventually(self._settled, what="three sentinels that know a replica")
        return self

    def _sentinel(self, master: Server) -> Server:
        auth = {"requirepass": self.sentinel_password} if self.sentinel_password else {}
        sentinel = Server(binary(), **auth)
        path = sentinel.directory / "sentinel.conf"
        lines = [
            f"sentinel monitor {self.NAME} 127.0.0.1 {master.port} 2",
            f"sentinel down-after-milliseconds {self.NAME} {DOWN_AFTER}",
            f"sentinel failover-timeout {self.NAME} 5000",
        ]
        if self.password:
            lines.append(f"sentinel auth-pass {self.NAME} {self.password}")
        if self.sentinel_password:
            lines.append(f"sentinel sentinel-pass {self.sentinel_password}")
        path.write_text("\n".join(lines) + "\n")
        sentinel._command = (binary(), str(path), "--sentinel")
        for option in ("save", "appendonly"):
            sentinel._options.pop(option)
        return sentinel.start()

    def _settled(self) -> bool:
        return all(self._knows(each) for each in self._sentinels)

    def _knows(self, sentinel: Server) -> bool:
        with sentinel.client(password=self.sentinel_password or None) as client:
            flat = client.execute_command("SENTINEL", "MASTER", self.NAME)
            state: dict[Any, Any] = flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))
        text = {str(_text(name)): _text(value) for name, value in state.items()}
        return (text["num-slaves"], text["num-other-sentinels"]) == ("1", "2")

    def fail_over(self) -> None:
        """Have the replica promoted, as an operator would; returns when the sentinels name it."""
        before = self.master
        with self._sentinels[0].client(password=self.sentinel_password or None) as client:
            client.execute_command("SENTINEL", "FAILOVER", self.NAME)
        eventually(lambda: self.master is not before, what="another master")

    def stop(self) -> None:
        """Stop the sentinels alone."""
        for each in self._sentinels:
            each.stop()

    def destroy(self) -> None:
        for each in (*self._sentinels, *self.servers):
            each.destroy()


class Cluster(Startable):
    """A cluster of three masters, each with a replica if wanted.

    Parameters:
        password: of the nodes.
    """

    def __init__(self, *, replicas: bool = False, password: str = "") -> None:
        self._password = password
        auth = {"requirepass": password, "masterauth": password} if password else {}
        options = {"cluster-enabled": "yes", "cluster-node-timeout": str(DOWN_AFTER)}
        self._buses = [free_port() for _ in range(6 if replicas else 3)]
        more = {"repl-diskless-sync-delay": "0", "cluster-replica-validity-factor": "0"}
        self.nodes = [Server(**options, **more, **auth, **{"cluster-port": str(bus)}) for bus in self._buses]

    @property
    def url(self) -> str:
        nodes = ";".join(f"127.0.0.1:{each.port}" for each in self.nodes)
        return f"redis-cluster://:{self._password}@{nodes}" if self._password else f"redis-cluster://{nodes}"

    def start(self) -> Self:
        for node in self.nodes:
            node.start()
        with ExitStack() as stack:
            clients = [stack.enter_context(node.client()) for node in self.nodes]
            for client, (first, last) in zip(clients, ((0, 5460), (5461, 10922), (10923, 16383)), strict=False):
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
            for client in clients[1:]:
                client.execute_command("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port, self._buses[0])
            eventually(lambda: all(map(_is_whole, clients)), what="a whole cluster")
            masters = clients[:3]
            for client, master in zip(clients[3:], masters, strict=False):
                name = _text(master.execute_command("CLUSTER", "MYID"))
                eventually(lambda c=client, n=name: _follows(c, n), what="a replica")  # type: ignore[misc]
            eventually(lambda: all(_knows_replicas(each, len(clients) - 3) for each in clients), what="the replicas")
        return self

    def client(self) -> redis.RedisCluster:
        """A client of the whole."""
        nodes = [redis.cluster.ClusterNode("127.0.0.1", each.port) for each in self.nodes if each.running]
        return redis.RedisCluster(startup_nodes=nodes, password=self._password or None)

    def master_of(self, key: str) -> Server:
        """The node that has this key now."""
        with self.client() as client:
            port = client.get_node_from_key(key).port
        return next(each for each in self.nodes if each.port == port)

    def flush(self) -> None:
        with self.client() as client:
            client.flushall(target_nodes=client.get_primaries())

    def destroy(self) -> None:
        for each in self.nodes:
            each.destroy()


def _is_whole(client: redis.Redis) -> bool:
    return "cluster_state:ok" in _lines(client.execute_command("CLUSTER", "INFO"))


def _follows(client: redis.Redis, name: str) -> bool:
    with suppress(redis.ResponseError):  # it has not heard of that node yet
        client.execute_command("CLUSTER", "REPLICATE", name)
        return True
    return False


def _knows_replicas(client: redis.Redis, count: int) -> bool:
    lines = _lines(client.execute_command("CLUSTER", "NODES"))
    return sum("slave" in line for line in lines) == count


def _lines(reply: Any) -> list[str]:
    """The lines of a reply that redis-py may have read into a mapping."""
    if isinstance(reply, dict):
        reply = "\n".join(f"{name}:{value}" for name, value in reply.items())
    return str(_text(reply)).splitlines()


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value
