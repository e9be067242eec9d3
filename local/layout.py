"""Where the local stack keeps things: one ignored folder, `.local/` of the project or what ALIGN_LOCAL_HOME names."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from local.process import Daemons

CLUSTER_LOCK = "requirements-cluster.txt"
PEERS_LOCK = "requirements-peers.txt"
MEGATRON_NEXT_LOCK = "requirements-megatron-next.txt"


@dataclass(frozen=True)
class Layout:
    """All paths. `home` holds one stack; environments and downloads of the project serve all stacks."""

    root: Path
    home: Path

    @classmethod
    def find(cls) -> Layout:
        root = Path(__file__).resolve().parents[1]
        home = os.environ.get("ALIGN_LOCAL_HOME")
        return cls(root, Path(home).resolve() if home else root / ".local")

    # Shared by all stacks of this checkout

    @property
    def shared(self) -> Path:
        return self.root / ".local"

    @property
    def venv(self) -> Path:
        return self.shared / "venv"

    @property
    def python(self) -> Path:
        return self.venv / "bin/python"

    @property
    def peers_environment(self) -> Path:
        """Other trainers, to compare with; no stage of ours uses it."""
        return self.shared / "venv-peers"

    @property
    def megatron_next_environment(self) -> Path:
        """The next Python and Megatron-core, for tests; no stage of ours uses it."""
        return self.shared / "venv-megatron-next"

    @property
    def sources(self) -> Path:
        return self.shared / "sources"

    @property
    def tools(self) -> Path:
        return self.shared / "tools"

    @property
    def built_cluster_environment(self) -> Path:
        """Where the environment of jobs is really built: virtual environments do not move."""
        return self.shared / "store/env" / self.cluster_lock_hash

    @property
    def install_log(self) -> Path:
        return self.shared / "install.log"

    # Of one stack

    @property
    def store(self) -> Path:
        return self.home / "store"

    @property
    def secrets(self) -> Path:
        return self.home / "secrets"

    @property
    def work(self) -> Path:
        return self.home / "work"

    @property
    def stack_file(self) -> Path:
        return self.home / "stack.json"

    @property
    def ports_file(self) -> Path:
        return self.home / "ports.json"

    @property
    def daemons(self) -> Daemons:
        return Daemons(self.home / "run", self.home / "logs")

    def state(self, service: str) -> Path:
        return self.home / "state" / service

    @property
    def cluster_lock_hash(self) -> str:
        return hashlib.sha256((self.root / CLUSTER_LOCK).read_bytes()).hexdigest()

    @property
    def cluster_environment(self) -> Path:
        """The environment of jobs as this stack's store has it."""
        return self.store / "env" / self.cluster_lock_hash

    def make_folders(self) -> None:
        """The folders of this stack, closed to other users."""
        for folder in (self.shared, self.home, self.store, self.store / "env", self.secrets, self.work, self.home / "state"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (self.home, self.store, self.secrets):
            folder.chmod(0o700)
