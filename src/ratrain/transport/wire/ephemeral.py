"""A throw-away certificate for one engine: TLS where the job has a secret but no authority.

Nobody has to vouch for it: the handshake proves the job's secret over its fingerprint
(`tls.py`).
"""

from __future__ import annotations

import datetime

from ratrain.errors import ProviderUnavailable


def self_signed() -> tuple[bytes, bytes]:
    """A new self-signed P-256 certificate and its private key, both PEM."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise ProviderUnavailable(
            f"TLS without your own certificates needs the package cryptography: {error}",
            place="Config.tls",
            fix="pip install 'ratrain[tls]', or give Tls(certificate=, key=, authority=)",
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ratrain transport")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=3650))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    return certificate.public_bytes(pem), key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, plain
    )
