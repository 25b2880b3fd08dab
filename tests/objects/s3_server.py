"""A real S3 server on loopback (moto's, a process of its own), and a way to it that can be cut."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

BUCKET = "training"


def environment(port: int) -> dict[str, str]:
    """What leads clients of S3 to a port of this machine."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "a-test",
        "AWS_SECRET_ACCESS_KEY": "a-test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@contextmanager
def s3_server() -> Generator[int]:
    """The port of a server that has one bucket."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [Path(sys.executable).parent / "moto_server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _make_bucket(port)
        yield port
    finally:
        server.kill()
        server.wait()


def _make_bucket(port: int) -> None:
    end_s = time.monotonic() + 60
    while True:
        with suppress(OSError):
            client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            # It knows by the signature which of its services is asked.
            scope = "20260101/us-east-1/s3/aws4_request"
            signed = f"AWS4-HMAC-SHA256 Credential=a/{scope}, SignedHeaders=host, Signature=0"
            client.request("PUT", f"/{BUCKET}", headers={"Authorization": signed})
            reply = client.getresponse()
            assert reply.status == 200, reply.read()
            return
        assert time.monotonic() < end_s, "the server does not start"
        time.sleep(0.1)


class Way:
    """A way to the server that counts requests and the bytes of answers. The `cut_at`th request is
    not answered: it does not arrive, or with `arrives` its answer is lost; nor is any after it
    unless `once`."""

    def __init__(self, server: int) -> None:
        self.requests, self.answered_bytes = 0, 0
        self.cut_at, self.arrives, self.once = 0, False, False
        self.asked: list[str] = []
        self._lock = threading.Lock()
        way = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass_on(self) -> None:
                body = _body(self)
                number, cut = way.count(f"{self.command} {self.path}")
                if cut and not (way.arrives and number == way.cut_at):
                    self._cut()
                else:
                    self._answer(body, cut)

            def _cut(self) -> None:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)

            def _answer(self, body: bytes, cut: bool) -> None:
                client = http.client.HTTPConnection("127.0.0.1", server, timeout=60)
                headers = {
                    name: value
                    for name, value in self.headers.items()
                    if name.lower() not in ("transfer-encoding", "content-length", "expect")
                }
                client.request(self.command, self.path, body, headers)
                reply = client.getresponse()
                content = reply.read()
                if cut:
                    self._cut()
                    return
                with way._lock:
                    way.answered_bytes += len(content)
                self.send_response_only(reply.status)
                for name, value in reply.getheaders():
                    if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                        self.send_header(name, value)
                length = reply.getheader("Content-Length") if self.command == "HEAD" else None
                self.send_header("Content-Length", length or str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on  # noqa: N815

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def count(self, asked: str) -> tuple[int, bool]:
        """The number of a request, and whether it is cut."""
        with self._lock:
            self.requests += 1
            self.asked.append(asked)
            beyond = bool(self.cut_at) and self.requests >= self.cut_at
            return self.requests, beyond and (self.requests == self.cut_at or not self.once)

    def begin(self, cut_at: int = 0, *, arrives: bool = False, once: bool = False) -> None:
        """Counts anew."""
        with self._lock:
            self.requests, self.answered_bytes, self.asked = 0, 0, []
            self.cut_at, self.arrives, self.once = cut_at, arrives, once

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _body(handler: BaseHTTPRequestHandler) -> bytes:
    if handler.headers.get("Transfer-Encoding", "").lower() != "chunked":
        return handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
    body = b""
    while size := int(handler.rfile.readline().split(b";")[0], 16):
        body += handler.rfile.read(size)
        handler.rfile.readline()
    handler.rfile.readline()
    return body


@contextmanager
def variables(new: dict[str, str]) -> Generator[None]:
    """The environment with these, meanwhile."""
    before = {name: os.environ.get(name) for name in new}
    os.environ.update(new)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
