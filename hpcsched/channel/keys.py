"""Keys of one driver life: two CURVE key pairs, one of the server and one shared by all its clients.

Whoever holds the client's secret key may speak to the driver, so the files are readable by the owner alone: they
are created with mode 0600 in a folder of mode 0700, whatever the umask. Files have the certificate format of ZeroMQ
(ZPL, the one `zmq.auth.load_certificate` reads). Only file names ever travel in argv or the environment.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

import msgspec
import zmq
import zmq.auth

from hpcsched.errors import ChannelError


class Keys(msgspec.Struct, frozen=True):
    """Certificate files. Clients need `server_public_file` and `client_secret_file`, the driver all."""

    server_public_file: Path
    server_secret_file: Path
    client_public_file: Path
    client_secret_file: Path


def create_keys(folder: Path) -> Keys:
    """Make new pairs in `folder` (made when missing; keys of an earlier driver life in it are replaced).

    Raises ChannelError when the folder is another user's or cannot be written.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = folder.stat()
        if info.st_uid != os.geteuid():
            raise ChannelError(
                f"{folder}: belongs to user {info.st_uid}, not to us; keys are only kept in a folder of our own"
            )
        folder.chmod(0o700)
        keys = keys_in(folder)
        for public_file, secret_file in (
            (keys.server_public_file, keys.server_secret_file),
            (keys.client_public_file, keys.client_secret_file),
        ):
            public, secret = zmq.curve_keypair()
            _write(public_file, _certificate(public, None))
            _write(secret_file, _certificate(public, secret))
    except OSError as error:
        raise ChannelError(f"{folder}: cannot write the channel's keys: {error.strerror}") from error
    return keys


def keys_in(folder: Path) -> Keys:
    """The names that `create_keys` uses; looks at nothing."""
    return Keys(
        folder / "server.key",
        folder / "server.key_secret",
        folder / "client.key",
        folder / "client.key_secret",
    )


def load_public(file: Path) -> bytes:
    """The public key (Z85, 40 characters) of a certificate. Raises ChannelError."""
    return _load(file)[0]


def load_pair(file: Path) -> tuple[bytes, bytes]:
    """Public and secret key of a certificate that only we can read. Raises ChannelError."""
    try:
        info = file.stat()
    except OSError as error:
        raise ChannelError(f"{file}: cannot read the channel's key: {error.strerror}") from error
    if info.st_uid != os.geteuid() or stat.S_IMODE(info.st_mode) & 0o077:
        raise ChannelError(
            f"{file}: a secret key must belong to us and be readable by nobody else "
            f"(owner {info.st_uid}, mode {stat.S_IMODE(info.st_mode):04o}); it is not used"
        )
    public, secret = _load(file)
    if secret is None:
        raise ChannelError(f"{file}: holds no secret key")
    return public, secret


def _load(file: Path) -> tuple[bytes, bytes | None]:
    try:
        public, secret = zmq.auth.load_certificate(file)
    except (OSError, ValueError) as error:
        raise ChannelError(f"{file}: cannot read the channel's key: {error}") from error
    return public, secret


def _certificate(public: bytes, secret: bytes | None) -> str:
    lines = ["metadata", "curve", f'    public-key = "{public.decode()}"']
    if secret is not None:
        lines.append(f'    secret-key = "{secret.decode()}"')
    return "\n".join(lines) + "\n"


def _write(file: Path, text: str) -> None:
    # A fresh name opened with O_EXCL: never through a link that someone else has laid, never over an open reader.
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w") as stream:
            os.fchmod(stream.fileno(), 0o600)
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
