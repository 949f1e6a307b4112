# SPDX-License-Identifier: Apache-2.0
"""The secret by which the ranks of a job know each other, and whether their messages are encrypted: from arguments, or
from the variables of the environment that `oktopk run` sets, too (docs/tcp.md). SECURITY.md says what travels where."""

from __future__ import annotations

import hashlib
import hmac
import os
from typing import NamedTuple, Optional, Union

from oktopk._core import UsageError, read_secret_file
from oktopk.torch._settings import truth

File = Union[str, "os.PathLike[str]"]

SECRET, SECRET_FILE, ENCRYPT = "OKTOPK_SECRET", "OKTOPK_SECRET_FILE", "OKTOPK_ENCRYPT"
LEAST_BYTES = 16


class Secrecy(NamedTuple):
    """secret: None: the ranks have none from outside, and the first one makes it."""

    secret: Optional[str] = None
    encrypt: bool = False

    def __repr__(self) -> str:  # no message or traceback shows the secret
        return f"Secrecy(from outside {self.secret is not None}, encrypt {self.encrypt})"

    @property
    def words(self) -> str:
        """What all ranks must have in common."""
        return f"encrypt {self.encrypt}, secret from outside {self.secret is not None}"

    def fingerprint(self, job: str) -> str:
        """Equal where the secrets are equal. It tells a stranger no more than a recorded handshake does."""
        return hmac.new((self.secret or "").encode(), f"oktopk secret of {job}".encode(), hashlib.sha256).hexdigest()


def secrecy_of(secret_file: Optional[File] = None, encrypt: Optional[bool] = None) -> Secrecy:
    """UsageError names an argument, a variable or a file that is unfit, and encryption without a secret from outside:
    the ranks would have to send each other the key in clear."""
    secret = secret_of(secret_file)
    encrypts = wants_encryption(encrypt)
    if encrypts and secret is None:
        raise UsageError(
            f"oktopk: encryption needs a secret that all ranks have: give secret_file=, or set {SECRET_FILE} or "
            f"{SECRET}; without it the ranks would send each other the key in clear"
        )
    return Secrecy(secret, encrypts)


def wants_encryption(encrypt: Optional[bool]) -> bool:
    """As the argument says; None: as the variable says."""
    if encrypt is not None:
        return truth("encrypt", encrypt)
    said = os.environ.get(ENCRYPT, "")
    if said not in ("", "0", "1"):
        raise UsageError(f"oktopk: {ENCRYPT} = {said!r}, but it must be 0 or 1")
    return said == "1"


def secret_of(secret_file: Optional[File]) -> Optional[str]:
    """The secret in a file, or that of the environment, or None."""
    if secret_file is not None:
        return read_secret_file(os.fspath(secret_file))
    file, text = os.environ.get(SECRET_FILE, ""), os.environ.get(SECRET, "")
    read = read_secret_file(file) if file else ""
    if read and text and read != text:
        raise UsageError(f"oktopk: {SECRET_FILE} = {file!r} holds another secret than {SECRET}: set one of them")
    if text and len(text.encode(errors="surrogateescape")) < LEAST_BYTES:
        raise UsageError(f"oktopk: {SECRET} has {len(text)} bytes, but it must have at least {LEAST_BYTES}")
    return read or text or None
