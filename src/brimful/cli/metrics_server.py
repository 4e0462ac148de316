"""Metrics over HTTP: the last text, for whoever asks ``GET /metrics``."""

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from brimful.errors import SettingsError
from brimful.messages import setting
from brimful.report.text.prometheus import CONTENT_TYPE

_LOOPBACK = "127.0.0.1"

_PATHS = ("/metrics", "/")


def address_of(text: str) -> tuple[str, int]:
    """Return host and port; the host is that of this machine alone if none is named.

    Raises:
        SettingsError: no port.

    >>> address_of("9464"), address_of("0.0.0.0:9464"), address_of("[::1]:0")
    (('127.0.0.1', 9464), ('0.0.0.0', 9464), ('::1', 0))
    """
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal() and int(port) < 1 << 16):
        raise SettingsError(f"{setting('prometheus', text)} is no [HOST:]PORT, such as 9464 or 0.0.0.0:9464")
    return host.strip("[]") or _LOOPBACK, int(port)


class MetricsServer:
    """Serves the last text that was set, from a thread of its own, until the program ends.

    Args:
        host, port: where to listen; port 0 takes a free one.

    Attributes:
        text: served from now on; set it as often as it changes.
        url: of the metrics.

    Raises:
        SettingsError: the address is taken, or none of this machine.
    """

    def __init__(self, host: str, port: int) -> None:
        self.text = ""
        is_ipv6 = ":" in host
        server_class = type("_Server", (_Server,), {"address_family": socket.AF_INET6 if is_ipv6 else socket.AF_INET})
        try:
            self._server: _Server = server_class((host, port), _Handler)
        except OSError as error:
            raise SettingsError(
                f"{setting('prometheus', f'{host}:{port}')} cannot be listened on ({error.strerror}): choose another port"
            ) from error
        self._server.metrics = self
        self.url = f"http://{f'[{host}]' if is_ipv6 else host}:{self._server.server_address[1]}/metrics"
        threading.Thread(target=self._server.serve_forever, name="brimful metrics", daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    metrics: MetricsServer


class _Handler(BaseHTTPRequestHandler):
    """Answers requests; an address that is not there is told, and nothing is logged."""

    timeout = 10.0
    """Seconds after which a silent client is let go."""

    server: _Server

    def do_GET(self) -> None:
        is_known = self.path.partition("?")[0] in _PATHS
        body = (self.server.metrics.text if is_known else "look for /metrics\n").encode()
        self.send_response(200 if is_known else 404)
        self.send_header("Content-Type", CONTENT_TYPE if is_known else "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Write no line for each request."""
