"""A certificate authority of tests, and people who sit between two engines."""

from __future__ import annotations

import datetime
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from ratrain.transport import Address, Tls
from ratrain.transport.wire.address import Endpoint

PEM = serialization.Encoding.PEM
OLD = serialization.PrivateFormat.PKCS8


class Authority:
    """Signs certificates into files under `folder`."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._certificate(self._name, self._key, 30, is_authority=True)
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(certificate)

    def sign(self, name: str, *, days: int = 30, password: bytes = b"", use: str = "") -> Tls:
        """The files of one host."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        files = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        files[0].write_bytes(self._certificate(subject, key, days, use=use))
        lock = serialization.NoEncryption()
        if password:
            lock = serialization.BestAvailableEncryption(password)
        files[1].touch(mode=0o600)
        files[1].write_bytes(key.private_bytes(PEM, OLD, lock))
        return Tls(files[0], files[1], self.file)

    def _certificate(self, subject, key, days: int, *, is_authority=False, use: str = "") -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=60))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        )
        if use:
            oid = getattr(ExtendedKeyUsageOID, use)
            made = made.add_extension(x509.ExtendedKeyUsage([oid]), critical=False)
        return made.sign(self._key, hashes.SHA256()).public_bytes(PEM)


Change = Callable[[bytes], bytes]
Meet = Callable[[socket.socket, bool], socket.socket]


@contextmanager
def between(address: Address, change: Change, meet: Meet = lambda s, _: s) -> Iterator[Address]:
    """The address of somebody who passes on what he hears on the way to and from `address`:
    `change` sees all bytes and says what goes on; `meet(socket, is_server)` may end TLS."""
    there = address.endpoints[0]
    listener = socket.create_server(("127.0.0.1", 0))
    open_: list[socket.socket] = []

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with suppress(Exception):
            while data := source.recv(65536):
                sink.sendall(change(data))
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection((there.host, there.port))
                open_.extend((near, far))
                threading.Thread(target=join, args=(near, far), daemon=True).start()

    def join(near: socket.socket, far: socket.socket) -> None:
        with suppress(Exception):
            far, near = meet(far, False), meet(near, True)
            open_.extend((near, far))
            threading.Thread(target=pump, args=(far, near), daemon=True).start()
            pump(near, far)

    threading.Thread(target=serve, daemon=True).start()
    host, port = listener.getsockname()
    try:
        yield replace(address, endpoints=(Endpoint(there.provider, there.nic, host, port),))
    finally:
        listener.close()
        for sock in open_:
            with suppress(OSError):
                sock.close()


def soon() -> float:
    """A deadline for a handshake of tests."""
    return time.monotonic() + 5.0
