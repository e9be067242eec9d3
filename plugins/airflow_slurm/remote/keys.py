"""Private keys as people paste them: with ``\\n`` spelled out, Windows line ends, or the last line feed missing."""

from __future__ import annotations

import asyncssh

from airflow_slurm.errors import BadConnection


def normalise_private_key(text: str) -> str:
    """The key with real line feeds and one at the end. Not a word of it is ever logged or put into an error."""
    if "\\n" in text and "\n" not in text.strip():
        text = text.replace("\\r\\n", "\n").replace("\\n", "\n")
    return text.replace("\r\n", "\n").replace("\r", "\n").strip() + "\n"


def load_private_key(text: str, passphrase: str | None, where: str) -> asyncssh.SSHKey:
    """Read a key of any type and form.

    :param where: what to name in an error.
    :raises BadConnection: naming the passphrase if that is what is missing or wrong.
    """
    try:
        return asyncssh.import_private_key(normalise_private_key(text), passphrase)
    except asyncssh.KeyEncryptionError:
        said = "the passphrase is wrong" if passphrase else "the private key is encrypted and no passphrase is given"
        raise BadConnection(f"In {where}, {said}: set private_key_passphrase.") from None
    except asyncssh.KeyImportError as error:
        if "passphrase" in str(error).lower():
            raise BadConnection(f"In {where}, the private key needs its passphrase: set private_key_passphrase.") from None
        raise BadConnection(f"In {where}, the private key can't be read: {error}. Give it in OpenSSH or PEM form.") from None
