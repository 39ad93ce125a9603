"""Connections of a run: who may connect, how each end proves itself, what is encrypted.

Each run has a key of its own that reaches the ranks through Dask. Both ends prove that they hold it
(HMAC-SHA256 over both ends' fresh random numbers) before anything else is read. On a Unix socket and on the
loopback interface nothing is encrypted, since nothing leaves the machine. Any other address gets TLS 1.3 with a
certificate that is made for the run and that ranks trust alone, unless it was stated that the network encrypts.
The connections between two ranks are made in the same way as those to the coordinator.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import hmac
import ipaddress
import logging
import os
import secrets
import select
import shutil
import socket
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from aner_nb.errors import ClusterError, RankLost

_LOG: Final = logging.getLogger(__name__)
_NONCE_BYTES: Final = 32
_HANDSHAKE_SECONDS: Final = 3.0
_CONNECT_SECONDS: Final = 10.0
_SILENCE_SECONDS: Final = 5

Encryption = Literal["tls", "network"]
"""Who encrypts what leaves a host: we, by TLS, or the network, as somebody stated."""

NOT_ENCRYPTED: Final = "none: stays on one host"
LEFT_TO_NETWORK: Final = "none here: left to the network, as stated"

_TO_COORDINATOR: Final = (b"rank", b"coordinator")
_TO_NEXT_RANK: Final = (b"link from", b"link to")
"""What the two ends of a connection call themselves in their proofs: one of the one kind is no good for the other."""


@dataclass(frozen=True, slots=True)
class Invitation:
    """What a rank needs to reach its coordinator. Secret: it travels through Dask only."""

    run_id: int
    rank: int
    key: str
    """Hexadecimal, 256 bits."""
    unix_path: str
    """Empty: no Unix socket is offered."""
    address: tuple[str, int]
    """("", 0): no TCP address is offered."""
    certificate: str
    """PEM; empty where TCP is not encrypted."""
    encryption: Encryption = "tls"
    """For the connections that the rank makes to other ranks."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A rank that connected and proved that it belongs to the run."""

    rank: int
    connection: socket.socket
    same_host: bool
    """Came over the Unix socket, so a descriptor can be passed."""
    encryption: str


class Listener:
    """Where ranks connect: to the coordinator, or to the next rank of a chain.

    Parameters
    ----------
    run_id
        64 bits.
    unix : bool
        Offer a Unix socket in a private folder.
    host : str
        Address to bind, the one that the ranks can reach; empty: no TCP.
    key : bytes
        Of the run, for a rank that listens; empty: the coordinator makes one.
    """

    def __init__(
        self, run_id: int, *, unix: bool, host: str, encryption: Encryption = "tls", key: bytes = b""
    ) -> None:
        self._run_id = run_id
        self._encryption: Encryption = encryption
        self._parts = _TO_NEXT_RANK if key else _TO_COORDINATOR
        self._key = key or secrets.token_bytes(32)
        self._folder = ""
        self._sockets: list[socket.socket] = []
        self._context: ssl.SSLContext | None = None
        self._certificate = ""
        self._address = ("", 0)
        self._loopback = False
        if unix:
            self._folder = tempfile.mkdtemp(prefix="aner-", dir=_short_temporary_folder())
            listening = socket.socket(socket.AF_UNIX)
            listening.bind(f"{self._folder}/coordinator")
            listening.listen(64)
            self._sockets.append(listening)
        if host:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listening = socket.create_server((host, 0), family=family, backlog=64)
            self._sockets.append(listening)
            self._address = (host, int(listening.getsockname()[1]))
            self._loopback = ipaddress.ip_address(host).is_loopback
            if not self._loopback and encryption == "tls":
                self._certificate, self._context = _server_context()

    def invitation(self, rank: int) -> Invitation:
        """Return what a rank needs to connect."""
        path = f"{self._folder}/coordinator" if self._folder else ""
        return Invitation(
            self._run_id, rank, self._key.hex(), path, self._address, self._certificate, self._encryption
        )

    def accept(self, timeout: float) -> Arrival | None:
        """Return the next rank that proves itself within `timeout` seconds, else None.

        A stranger is refused, logged, and changes nothing.
        """
        ready, _, _ = select.select(self._sockets, [], [], timeout)
        if not ready:
            return None
        connection, peer = ready[0].accept()
        same_host = connection.family == socket.AF_UNIX
        try:
            connection.settimeout(_HANDSHAKE_SECONDS)
            encryption = NOT_ENCRYPTED
            if not same_host:
                _tune(connection)
                if self._context is not None:
                    connection = self._context.wrap_socket(connection, server_side=True)
                    encryption = _describe(connection)
                elif not self._loopback:
                    encryption = LEFT_TO_NETWORK
            rank = _challenge(connection, self._key, self._parts)
        except (OSError, EOFError, ValueError) as error:
            _LOG.warning("refused a connection from %s: %s", peer or "this host", error)
            connection.close()
            return None
        return Arrival(rank, connection, same_host, encryption)

    def close(self) -> None:
        """Stop listening and remove the private folder; connected ranks stay connected."""
        for listening in self._sockets:
            listening.close()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


def connect(invitation: Invitation) -> tuple[socket.socket, bool]:
    """Connect to the coordinator; return the connection and whether it stays on this host.

    The Unix socket is tried first: a rank for which it opens shares the coordinator's host, whatever the hosts
    are called.

    Raises
    ------
    RankLost
        If neither way leads to a coordinator that holds the run's key.
    """
    key = bytes.fromhex(invitation.key)
    reasons: list[str] = []
    if invitation.unix_path:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(_CONNECT_SECONDS)
            connection.connect(invitation.unix_path)
            _respond(connection, key, invitation.rank, _TO_COORDINATOR)
            return connection, True
        except (OSError, EOFError, ValueError) as error:
            connection.close()
            reasons.append(f"Unix socket: {error}")
    if invitation.address[0]:
        try:
            return _connect_tcp(invitation, key, _TO_COORDINATOR), False
        except (OSError, EOFError, ValueError) as error:
            reasons.append(f"{invitation.address[0]}: {error}")
    raise RankLost(
        f"no way to the coordinator ({'; '.join(reasons)}).",
        where=f"rank {invitation.rank}",
        remedy="The worker must reach the machine of the notebook: open its firewall for the workers.",
    )


def connect_to_rank(invitation: Invitation) -> socket.socket:
    """Connect to the rank whose address and certificate the invitation has, as the rank that it names.

    Raises
    ------
    OSError, EOFError, ValueError
        If there is no way, or the other end does not hold the run's key.
    """
    return _connect_tcp(invitation, bytes.fromhex(invitation.key), _TO_NEXT_RANK)


def _connect_tcp(invitation: Invitation, key: bytes, parts: tuple[bytes, bytes]) -> socket.socket:
    connection = socket.create_connection(invitation.address, timeout=_CONNECT_SECONDS)
    try:
        _tune(connection)
        if invitation.certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.check_hostname = False  # the certificate itself is pinned
            context.load_verify_locations(cadata=invitation.certificate)
            connection = context.wrap_socket(connection)
        _respond(connection, key, invitation.rank, parts)
    except BaseException:
        connection.close()
        raise
    return connection


def _challenge(connection: socket.socket, key: bytes, parts: tuple[bytes, bytes]) -> int:
    """Make the other end prove that it holds the key, prove it in turn; return its rank."""
    ours = secrets.token_bytes(_NONCE_BYTES)
    connection.sendall(ours)
    answer = _receive(connection, 2 + _NONCE_BYTES + 32)
    rank, theirs, proof = answer[:2], answer[2 : 2 + _NONCE_BYTES], answer[-32:]
    if not hmac.compare_digest(proof, _proof(key, parts[0], rank, ours, theirs)):
        raise ValueError("it does not hold the key of this run")
    connection.sendall(_proof(key, parts[1], rank, theirs, ours))
    return int.from_bytes(rank, "little")


def _respond(connection: socket.socket, key: bytes, rank: int, parts: tuple[bytes, bytes]) -> None:
    theirs = _receive(connection, _NONCE_BYTES)
    ours = secrets.token_bytes(_NONCE_BYTES)
    name = rank.to_bytes(2, "little")
    connection.sendall(name + ours + _proof(key, parts[0], name, theirs, ours))
    if not hmac.compare_digest(_receive(connection, 32), _proof(key, parts[1], name, ours, theirs)):
        raise ValueError("the other end does not hold the key of this run")


def _proof(key: bytes, *parts: bytes) -> bytes:
    return hmac.new(key, b"".join(parts), hashlib.sha256).digest()


def _receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise EOFError("the connection was closed")
        data += piece
    return data


def _tune(connection: socket.socket) -> None:
    """Send at once, and notice within seconds when the other host no longer answers."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = (("TCP_KEEPIDLE", 2), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", _SILENCE_SECONDS - 2))
    for name, value in (*options, ("TCP_USER_TIMEOUT", _SILENCE_SECONDS * 1000)):
        if hasattr(socket, name):
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _describe(connection: ssl.SSLSocket) -> str:
    cipher = connection.cipher()
    return f"{connection.version()} {cipher[0] if cipher else ''}".strip()


def _short_temporary_folder() -> str | None:
    """Return a folder whose paths fit a Unix socket's address (about 100 bytes); None: the default."""
    default = tempfile.gettempdir()
    if len(os.fsencode(default)) < 60:
        return None
    if Path("/tmp").is_dir():  # noqa: S108 -- a folder of our own, mode 0700, is made below it
        return "/tmp"  # noqa: S108
    raise ClusterError(f"the temporary folder's path {default!r} is too long for a Unix socket.")


def _server_context() -> tuple[str, ssl.SSLContext]:
    """Return a certificate for this run, as PEM, and the TLS context that presents it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "aner_nb run")])
    now = datetime.datetime.now(datetime.UTC)
    slack = datetime.timedelta(days=30)  # hosts' clocks may differ; the key lives for one run anyway
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - slack)
        .not_valid_after(now + slack)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with tempfile.NamedTemporaryFile() as file:  # the ssl module reads certificates from files only
        file.write(pem + secret)
        file.flush()
        context.load_cert_chain(file.name)
    return pem.decode(), context
