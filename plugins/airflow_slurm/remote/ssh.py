"""The SSH hook that a cluster is reached with. Imported when a connection is opened, since asyncssh takes half a second."""

from __future__ import annotations

from typing import Any

from airflow.providers.ssh.hooks.ssh import SSHHookAsync

from airflow_slurm.errors import BadConnection
from airflow_slurm.remote.keys import load_private_key, normalise_private_key


class StrictSSH(SSHHookAsync):
    """The ssh provider's asynchronous hook, with keys accepted in every spelling, and no way round the host key check."""

    def _parse_extras(self, conn: Any) -> None:
        extra = conn.extra_dejson
        for name in ("no_host_key_check", "ignore_hostkey_verification"):
            if str(extra.get(name, "false")).lower() == "true":
                raise BadConnection(
                    f"Connection {self.ssh_conn_id!r} switches the host key check off ({name}). Set host_key or known_hosts instead."
                )
        super()._parse_extras(conn)
        if self.private_key:
            self.private_key = normalise_private_key(self.private_key)
            load_private_key(self.private_key, self.passphrase or None, f"connection {self.ssh_conn_id!r}")
