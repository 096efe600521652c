"""A server for the page, which is updated while runs learn.

One thread looks at the runs' files twice a second. Browsers learn of changes through server-sent
events, each of which holds all metrics, so that a browser that was away has missed nothing. Flows
are larger, so the page asks for those that it shows.
"""

import json
import math
import re
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..errors import UserError
from .data import RunReader, blank, make_readers, snapshot, to_json
from .page import build_page


class Watcher:
    """Looks at runs and tells waiting threads when something has changed.

    Attributes:
        interval: Seconds between two looks at the files.
        heartbeat: Seconds after which a silent stream of events sends a sign of life.
    """

    interval = 0.5
    heartbeat = 5.0

    def __init__(self, readers: Sequence[RunReader]):
        """Looks at the runs for the first time."""
        self.readers = list(readers)
        self.stopped = threading.Event()
        self._changed = threading.Condition()
        self._version = 0
        self._text = ""
        self._seen: list[Any] = []
        self._look()
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def start(self) -> None:
        """Begins to look at the runs in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Waits for the threads to end: Python must not exit while JAX compiles in one."""
        self.stopped.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join()
        for reader in self.readers:
            reader.close()

    def wait(self, seen: int, timeout: float) -> tuple[int, str]:
        """Waits for a change after that number; returns its number, and all metrics as JSON."""
        with self._changed:
            self._changed.wait_for(lambda: self._version > seen or self.stopped.is_set(), timeout)
            return self._version, self._text

    def _poll(self) -> None:
        while not self.stopped.wait(self.interval):
            # Files may be locked or too many be open for a while: the next look may succeed.
            with suppress(OSError):
                self._look()

    def _look(self) -> None:
        seen = [reader.fingerprint() for reader in self.readers]
        if seen == self._seen:
            return
        found = snapshot(self.readers)
        try:
            text = to_json(found)
        except ValueError as error:  # a file holds what no page can show, and may be mended
            text = to_json(found | {"runs": [_unreadable(run, error) for run in found["runs"]]})
        self._seen = seen
        with self._changed:
            self._version += 1
            self._text = text
            self._changed.notify_all()


def _unreadable(run: dict[str, Any], error: Exception) -> dict[str, Any]:
    """A run as it is shown if its figures cannot be: without them, and why."""
    try:
        to_json(run)
    except ValueError:
        return run | blank(f"The figures cannot be shown: {error}")
    return run


class PageServer(ThreadingHTTPServer):
    """Serves the page of some runs.

    Attributes:
        patience: Seconds within which a request must have arrived, and an answer been taken.
        most_connections: With more at once, those that have waited longest for their request are
            ended, so that the watcher always has file descriptors left.
    """

    daemon_threads = True
    request_queue_size = 128  # as many may wait to be let in
    patience = 10.0
    most_connections = 32

    def __init__(self, directories: Sequence[Path], host: str, port: int, imports: str | None):
        """Takes the port, 0 for any that is free, and begins to look at the runs.

        The runs need not exist yet; ``imports`` is as in `RunReader`.
        """
        readers = make_readers(directories, imports)
        self._open: dict[socket.socket, float] = {}  # connections, and when their request is due
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise UserError(
                f"cannot serve at {host}, port {port}: {error}; choose another with --port"
            ) from error
        names = (host.lower(), "localhost", "127.0.0.1", "::1")
        self.names = names if ip_address(str(self.server_address[0])).is_loopback else None
        self.watcher = Watcher(readers)
        self.watcher.start()

    @property
    def url(self) -> str:
        """Where the page is."""
        host, port = str(self.server_address[0]), self.server_address[1]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/"

    def server_bind(self) -> None:
        """Takes the port; the parent's method would also look up this computer's name, slowly."""
        socketserver.TCPServer.server_bind(self)

    def close(self) -> None:
        """Ends everything; call it from another thread than the one that serves."""
        self.watcher.stop()
        self.shutdown()
        self.server_close()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Makes room for one more connection, if need be; whether there is any."""
        waiting = [each for each, due in list(self._open.items()) if due < math.inf]
        if len(self._open) >= self.most_connections and waiting:
            self._end(waiting[0])
            self._open.pop(waiting[0], None)
        return len(self._open) < self.most_connections

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answers in a thread of its own."""
        self._open[request] = time.monotonic() + self.patience
        super().process_request(request, client_address)

    def arrived(self, request: Any) -> None:
        """Notes that a request is complete; its answer may take as long as it wants."""
        if request in self._open:
            self._open[request] = math.inf

    def shutdown_request(self, request: Any) -> None:
        """Closes a connection."""
        self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Twice a second: ends connections whose request never became complete."""
        for request, due in list(self._open.items()):
            if time.monotonic() > due:
                self._end(request)

    def _end(self, request: socket.socket) -> None:
        with suppress(OSError):  # it ended by itself
            request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores browsers that went away."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    server_version = "mufield"
    sys_version = ""
    timeout = PageServer.patience

    def parse_request(self) -> bool:
        complete = super().parse_request()
        self.server.arrived(self.connection)
        return complete

    def do_GET(self) -> None:
        if not self._is_meant():
            self.send_error(HTTPStatus.FORBIDDEN, "Ask for localhost")
            return
        path = self.path.partition("?")[0]
        flow = re.fullmatch(r"/flow/(\d{1,6})/(\d{1,6})", path)
        if path == "/":
            self._answer(build_page(json.loads(self.server.watcher.wait(0, 0.0)[1])), "text/html")
        elif path == "/events":
            self._stream()
        elif flow and int(flow[1]) < len(self.server.watcher.readers):
            found = self.server.watcher.readers[int(flow[1])].flow(int(flow[2]))
            self._answer(to_json(found), "application/json")
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _refuse(self) -> None:
        self.send_error(HTTPStatus.METHOD_NOT_ALLOWED, "Only GET")

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse

    def log_message(self, format: str, *args: Any) -> None:
        """Prints nothing: requests come all the time."""

    def _is_meant(self) -> bool:
        """Whether the request names this computer.

        Against DNS rebinding: a page from elsewhere could let its own name point to this
        computer's address, and so read what is served here.
        """
        if self.server.names is None:  # it is served to other computers, whatever they call it
            return True
        try:
            name = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        except ValueError:
            return False
        return name in self.server.names

    def _answer(self, text: str, kind: str) -> None:
        body = text.encode()
        self._begin(kind, {"Content-Length": str(len(body))})
        self.wfile.write(body)

    def _stream(self) -> None:
        self._begin("text/event-stream", {})
        # Milliseconds after which a browser that lost the server tries again.
        self.wfile.write(b"retry: 500\n\n")
        watcher, sent = self.server.watcher, 0
        while not watcher.stopped.is_set():
            version, text = watcher.wait(sent, watcher.heartbeat)
            line = f"id: {version}\ndata: {text}\n\n" if version > sent else ": alive\n\n"
            self.wfile.write(line.encode())
            sent = version

    def _begin(self, kind: str, more: dict[str, str]) -> None:
        self.send_response(HTTPStatus.OK)
        headers = {
            "Content-Type": f"{kind}; charset=utf-8",
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
        }
        for name, value in (headers | more).items():
            self.send_header(name, value)
        self.end_headers()
