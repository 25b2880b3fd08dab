"""How a job asks for encrypted connections, as the transport's TLS takes it.

`[train] tls = "secret"` needs nothing but the run's secret: each process makes itself a certificate
that nobody signs, and the secret is proved over both ends of the very channel. A folder holds what
others have signed for this host, and who signs for the others.
"""

from __future__ import annotations

from pathlib import Path

from ratrain.describe.train import TLS_BY_SECRET, TLS_OFF
from ratrain.errors import ProviderUnavailable, RunFailed, SpecError
from ratrain.transport import Tls
from ratrain.transport.wire.tls import Guard

PLACE = "[train] tls"
CERTIFICATE, KEY, AUTHORITY = "host.crt", "host.key", "authority.pem"
"""The files of a host's folder."""


def tls_of(asked: str) -> Tls | None:
    """What a job's `tls` means; None: nothing is encrypted."""
    if asked == TLS_OFF:
        return None
    if asked == TLS_BY_SECRET:
        return Tls()
    folder = Path(asked)
    return Tls(folder / CERTIFICATE, folder / KEY, folder / AUTHORITY)


def guard_of(asked: str) -> Guard | None:
    """This process's certificate, and what it requires of others; refused where it is none that
    they would accept."""
    tls = tls_of(asked)
    if tls is None:
        return None
    try:
        return Guard(tls)
    except SpecError as error:
        files = f"{CERTIFICATE}, {KEY} and {AUTHORITY}"
        fix = error.fix or f"put {files} into that folder on every host"
        raise SpecError(error.what, place=PLACE, fix=fix) from error
    except ProviderUnavailable as error:
        raise RunFailed(
            f'"{asked}" needs the package cryptography, which this Python has not',
            place=PLACE,
            fix="pip install 'ratrain[tls]' on every host, or give a folder of certificates",
        ) from error
