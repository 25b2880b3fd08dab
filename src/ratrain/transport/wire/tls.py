"""TLS 1.3 under the provider `sock`, bound to the job's secret.

    server -> client   unencrypted: "RATTLS" and version (8), zeros (32)
    both               the TLS handshake, then `handshake.py` inside it, with this key:
                       HMAC-SHA256(secret, "tls" | SHA256(the server's certificate)
                                               | SHA256(the client's, or zeros)
                                               | the client's Finished message)

So both prove the secret over the very channel that they see ("tls-server-end-point" and
"tls-unique" of RFC 5929; in TLS 1.3 the Finished message is a MAC over the whole handshake under
the channel's own keys). Whoever ends one TLS connection and opens another in between, with a
certificate however valid, makes the two sides see different ones, and is refused.

The unencrypted banner only lets a side without TLS say so at once; nothing falls back to plain TCP.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import socket
import ssl
import stat
from pathlib import Path
from typing import TypeVar

from ratrain import proof
from ratrain.errors import HandshakeFailed, SpecError
from ratrain.readers.files import read_text
from ratrain.readers.limits import SMALL_BYTES
from ratrain.transport.config import Tls
from ratrain.transport.wire.ephemeral import self_signed
from ratrain.transport.wire.handshake import ENGINES, NO_TLS, UNDER_TLS, WANTS_TLS
from ratrain.transport.wire.tls_socket import TlsRefused, TlsSocket

S = TypeVar("S", bound=TlsSocket)
_SAME = "give every engine of the job the same kind of Config.tls"


class Guard:
    """An engine's certificate, and what it requires of its peers' certificates."""

    def __init__(self, tls: Tls) -> None:
        self._server = _context(ssl.PROTOCOL_TLS_SERVER)
        self._client = _context(ssl.PROTOCOL_TLS_CLIENT)
        if tls.certificate:
            self._der = self._load(tls)
            _try_out(self._server, self._client, tls)
        else:
            certificate, key = self_signed()
            self._der = _der(certificate.decode())
            with _in_memory(certificate + key) as path:
                self._server.load_cert_chain(path)

    def _load(self, tls: Tls) -> bytes:
        """Load the user's files; the certificate in DER."""
        for name in ("certificate", "key", "authority"):
            if not Path(getattr(tls, name)).is_file():
                raise SpecError(
                    f"no such file: {getattr(tls, name)}",
                    place=f"Tls.{name}",
                    fix="give the path of a PEM file",
                )
        for context in (self._server, self._client):
            context.verify_mode = ssl.CERT_REQUIRED
            _load_pair(context, tls)
            try:
                context.load_verify_locations(tls.authority)
            except (OSError, ValueError) as error:
                raise _bad_file("authority", str(tls.authority), error) from error
        _require_own(Path(tls.key))
        return _der(read_text(Path(tls.certificate), SMALL_BYTES))

    def secure(
        self,
        sock: socket.socket,
        secret: bytes,
        *,
        server: bool,
        deadline_s: float,
        speaks: proof.Protocol = ENGINES,
        kind: type[S] = TlsSocket,
    ) -> tuple[S, bytes]:
        """The TLS socket made of `sock` (which is closed if that fails), of a `kind`, and the key
        with which the secret is proved inside it. `speaks`: what a peer without TLS would."""
        with contextlib.ExitStack() as stack:
            stack.callback(sock.close)
            _announce(sock, speaks, server=server, deadline_s=deadline_s)
            context = self._server if server else self._client
            secured = stack.enter_context(kind(sock, context, server=server, deadline_s=deadline_s))
            secured.shake()
            key = self._bind(secured.tls, secret, server=server)
            stack.pop_all()
        return secured, key

    def _bind(self, tls: ssl.SSLObject, secret: bytes, *, server: bool) -> bytes:
        """The key that proves the secret in this one channel."""
        mine = hashlib.sha256(self._der).digest()
        peer = tls.getpeercert(binary_form=True)
        theirs = hashlib.sha256(peer).digest() if peer else bytes(32)
        if not server and self._client.verify_mode == ssl.CERT_NONE:
            mine = bytes(32)  # clients show none
        finished = tls.get_channel_binding("tls-unique")
        if not finished or (not server and not peer):
            raise HandshakeFailed(
                "this Python's TLS library offers no channel binding",
                fix="use a Python built with OpenSSL 1.1.1 or newer",
            )
        both = mine + theirs if server else theirs + mine
        return hmac.digest(secret, b"tls" + both + finished, "sha256")


def _require_own(key: Path) -> None:
    """Refuses a private key that others can read, as ssh does: anybody, or this user's group where
    it is this user's. One of an administrator's may be for a group."""
    found = key.stat()
    own = found.st_uid == os.getuid()
    if found.st_mode & (stat.S_IRWXO | (stat.S_IRWXG if own else 0)):
        raise SpecError(
            f"other users can read the private key {key} (mode {stat.S_IMODE(found.st_mode):o})",
            place="Tls.key",
            fix=f"chmod {'600' if own else 'o='} {key}",
        )


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.check_hostname = False  # the secret says who belongs to the job, not a name
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # nobody resumes
    return context


def _load_pair(context: ssl.SSLContext, tls: Tls) -> None:
    try:
        # Without a password callback OpenSSL would ask for one on the terminal, and hang.
        context.load_cert_chain(tls.certificate, tls.key, password=lambda: "")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH" or error.reason == "KEY_TYPE_MISMATCH":
            raise SpecError(
                f"{tls.key} is not the key of {tls.certificate}",
                place="Tls.key",
                fix="give the private key that the certificate was made for",
            ) from error
        try:
            _der(read_text(Path(tls.certificate), SMALL_BYTES))
        except (SpecError, ValueError) as damaged:
            raise _bad_file("certificate", str(tls.certificate), damaged) from error
        raise _bad_file("key", str(tls.key), error) from error
    except (OSError, ValueError) as error:
        raise _bad_file("certificate or key", f"{tls.certificate}, {tls.key}", error) from error


def _bad_file(what: str, path: str, error: Exception) -> SpecError:
    why = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
    return SpecError(
        f"{path} cannot be read: {why}",
        place=f"Tls.{what}",
        fix="give PEM files; the key without a password",
    )


def _der(pem: str) -> bytes:
    """The first certificate of a PEM text."""
    begin, end = ssl.PEM_HEADER, ssl.PEM_FOOTER
    start = pem.find(begin)
    stop = pem.find(end, start)
    if start < 0 or stop < 0:
        raise SpecError("it contains no certificate")
    return ssl.PEM_cert_to_DER_cert(pem[start : stop + len(end)])


@contextlib.contextmanager
def _in_memory(data: bytes):
    """A path from which `data` can be read and which is on no disk."""
    fd = os.memfd_create("ratnet-tls", os.MFD_CLOEXEC)
    try:
        os.write(fd, data)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def _try_out(server: ssl.SSLContext, client: ssl.SSLContext, tls: Tls) -> None:
    """One handshake of the engine with itself: a certificate that no peer would accept (expired,
    of another authority, not for this use) is refused at the start, not at first contact."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(down, up, server_side=False),
        server.wrap_bio(up, down, server_side=True),
    ]
    try:
        for _ in range(4):
            for end in ends:
                with contextlib.suppress(ssl.SSLWantReadError):
                    end.do_handshake()
    except ssl.SSLCertVerificationError as error:
        raise SpecError(
            f"{tls.certificate} is not accepted by {tls.authority}: {error.verify_message}",
            place="Tls.certificate",
            fix="give a certificate that is valid now, signed by that authority, and allows "
            "both server and client use",
        ) from error
    except ssl.SSLError as error:
        raise _bad_file("certificate", str(tls.certificate), error) from error


def _announce(
    sock: socket.socket, speaks: proof.Protocol, *, server: bool, deadline_s: float
) -> None:
    """Send or check the unencrypted banner before TLS begins."""
    if server:
        proof.send(sock, NO_TLS, deadline_s)
        return
    head = proof.read(sock, len(NO_TLS), deadline_s)[: proof.HEAD_BYTES]
    if head[:-2] == speaks.magic:
        proof.send(sock, WANTS_TLS, deadline_s)
        raise TlsRefused("TLS here, none at the peer", fix=_SAME)
    UNDER_TLS.require(head)
