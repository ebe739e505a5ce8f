"""TLS before a server that has none: a certificate authority, and a proxy that ends the encryption."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from tests.support.proxy import Proxy
from tests.support.server import Server, free_port


class Authority:
    """A certificate authority with a certificate for a server and one for a client, as files.

    Parameters:
        directory: where they go.
        names: whom the server's certificate is for; by default those of this machine.
    """

    def __init__(self, directory: Path, *names: str) -> None:
        import trustme  # not at the top: each process of a run collects every test, and few make certificates

        directory.mkdir(exist_ok=True)
        self._ca = trustme.CA()
        self._server = self._ca.issue_cert(*names or ("127.0.0.1", "localhost"))
        self._files = str(directory / "server.pem"), str(directory / "server.key")
        self._server.cert_chain_pems[0].write_to_path(self._files[0])
        self._server.private_key_pem.write_to_path(self._files[1])
        client = self._ca.issue_cert("client@example.org")
        self.ca, self.certificate, self.key = (str(directory / name) for name in ("ca.pem", "client.pem", "client.key"))
        self._ca.cert_pem.write_to_path(self.ca)
        client.cert_chain_pems[0].write_to_path(self.certificate)
        client.private_key_pem.write_to_path(self.key)

    @property
    def options(self) -> dict[str, Any]:
        """What a client needs, as redis-py and ``broker_use_ssl`` call it."""
        return {
            "ssl_cert_reqs": ssl.CERT_REQUIRED,
            "ssl_ca_certs": self.ca,
            "ssl_certfile": self.certificate,
            "ssl_keyfile": self.key,
        }

    def server(self, command: str) -> tuple[Server, str]:
        """A server that does TLS itself, not started yet, and its URL."""
        port, (certificate, key) = str(free_port()), self._files
        files = {"tls-cert-file": certificate, "tls-key-file": key, "tls-ca-cert-file": self.ca}
        server = Server(command, **{"tls-port": port, "tls-auth-clients": "yes", **files})
        return server, f"rediss://127.0.0.1:{port}/0"

    def proxy(self, target: int) -> Proxy:
        """A proxy that shows the server's certificate and asks each client for one of this authority."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._server.configure_cert(context)
        self._ca.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
        return Proxy(target, tls=context)
