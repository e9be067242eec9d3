"""SFTP against a real sshd: strict host keys, reconnecting, forks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from include.stores.artifacts import ArtifactStore
from include.stores.errors import StoreError
from include.stores.sftp import SftpFileSystem, SftpTarget
from tests.stores.servers import SshServer, make_key


def test_a_target_without_a_host_key_is_refused() -> None:
    with pytest.raises(StoreError, match="never taken on trust"):
        SftpTarget("host")


def test_a_known_hosts_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"known_hosts file .* is not there"):
        SftpTarget("host", known_hosts=str(tmp_path / "none"))


def test_a_given_host_key_is_enough(ssh_server: SshServer, tmp_path: Path) -> None:
    fs = SftpFileSystem(ssh_server.target(known_hosts=None, host_key=ssh_server.host_key))
    fs.pipe_file(f"{tmp_path}/x", b"1")
    assert (tmp_path / "x").read_bytes() == b"1"


def test_another_host_key_is_refused(ssh_server: SshServer, tmp_path: Path) -> None:
    fs = SftpFileSystem(ssh_server.target(known_hosts=None, host_key=make_key(tmp_path / "other")))
    with pytest.raises(StoreError, match="host's key is not the expected one"):
        fs.exists("/tmp")


def test_another_user_key_is_refused(ssh_server: SshServer, tmp_path: Path) -> None:
    make_key(tmp_path / "stranger")
    fs = SftpFileSystem(ssh_server.target(client_keys=(str(tmp_path / "stranger"),)))
    with pytest.raises(StoreError, match="no given key is accepted"):
        fs.exists("/tmp")


def test_a_host_that_is_not_there_is_an_error_and_not_a_missing_file(ssh_server: SshServer) -> None:
    store = ArtifactStore(SftpFileSystem(ssh_server.target(port=1)), "/tmp")
    with pytest.raises(StoreError, match="cannot be opened"):
        store.exists("x")


def test_the_passphrase_is_not_shown(ssh_server: SshServer) -> None:
    assert "secret" not in repr(ssh_server.target(passphrase="secret"))


def test_a_broken_connection_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "sshd"
    folder.mkdir()
    server = SshServer(folder)
    fs = SftpFileSystem(server.target())
    with server.run():
        fs.pipe_file(f"{tmp_path}/x", b"before")
    with server.run():
        assert fs.cat_file(f"{tmp_path}/x") == b"before"


def test_a_forked_process_makes_a_connection_of_its_own(ssh_server: SshServer, tmp_path: Path) -> None:
    fs = SftpFileSystem(ssh_server.target())
    fs.pipe_file(f"{tmp_path}/x", b"parent")
    child = os.fork()
    if child == 0:
        try:
            fs.pipe_file(f"{tmp_path}/y", fs.cat_file(f"{tmp_path}/x") + b" and child")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert fs.cat_file(f"{tmp_path}/y") == b"parent and child"


def test_what_may_not_be_written_is_a_permission_error(ssh_server: SshServer) -> None:
    fs = SftpFileSystem(ssh_server.target())
    with pytest.raises(OSError, match="/proc/none"):
        fs.pipe_file("/proc/none", b"x")


def test_a_file_larger_than_the_buffers_passes_through(ssh_server: SshServer, tmp_path: Path) -> None:
    fs = SftpFileSystem(ssh_server.target())
    data = os.urandom(9 << 20)
    with fs.open(f"{tmp_path}/x", "wb") as stream:
        stream.write(data)
    with fs.open(f"{tmp_path}/x", "rb") as stream:
        assert stream.read() == data
        stream.seek(5 << 20)
        assert stream.read(10) == data[5 << 20 : (5 << 20) + 10]
    assert fs.cat_file(f"{tmp_path}/x", 10, 20) == data[10:20]


def test_listing_names_kinds_and_sizes(ssh_server: SshServer, tmp_path: Path) -> None:
    fs = SftpFileSystem(ssh_server.target())
    fs.makedirs(f"{tmp_path}/d/e")
    fs.pipe_file(f"{tmp_path}/d/f", b"12345")
    found = [(Path(e["name"]).name, e["type"], e["size"]) for e in fs.ls(f"{tmp_path}/d")]
    assert [(name, kind) for name, kind, _ in found] == [("e", "directory"), ("f", "file")]
    assert found[1][2] == 5


def test_a_folder_is_removed_only_when_asked_for(ssh_server: SshServer, tmp_path: Path) -> None:
    fs = SftpFileSystem(ssh_server.target())
    fs.makedirs(f"{tmp_path}/d/e")
    with pytest.raises(OSError, match="d"):
        fs.rm(f"{tmp_path}/d")
    fs.rm(f"{tmp_path}/d", recursive=True)
    assert not (tmp_path / "d").exists()
