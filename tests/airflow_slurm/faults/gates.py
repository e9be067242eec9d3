"""Points of the protocol at which a run stands still until an accident has happened.

What travels over SSH is encrypted, so a point is not a byte on the wire: the login node's commands (a folder before the
real ones, see ``slurm_bin``) and the receipt store stop there. A gate that is reached renames ``arm`` to ``reached``, and
goes on once there is ``go``.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_slurm.file_receipts import FileReceipts

#: The longest any gate stays shut, in seconds: a test that dies must not leave commands behind.
LONGEST_S = 60
#: What each command is called here; squeue and sacct by name belong to a submission, without one to the wait.
_SCRIPT = f"""#!/bin/sh
dir=${{0%/bin/*}}
what=${{0##*/}}
PATH=${{PATH#*:}}
case "$what $*" in
  squeue*--name=*) name=look ;;
  squeue*) name=poll ;;
  sacct*) name=acct ;;
  scontrol*release*) name=release ;;
  scancel*) name=cancel ;;
  *) name=$what ;;
esac
at() {{
  armed=
  [ -e "$dir/arm" ] && read -r armed < "$dir/arm"
  [ "$armed" = "$name:$1" ] && mv "$dir/arm" "$dir/reached" 2>/dev/null || return 0
  i=0
  while [ ! -e "$dir/go" ] && [ $i -lt {LONGEST_S * 20} ]; do sleep 0.05; i=$((i+1)); done
  rm -f "$dir/go"
}}
begin=$(date +%s.%N)
at before
out=$(mktemp "$dir/out.XXXXXX")
"$what" "$@" > "$out"
rc=$?
at after
cat "$out"
rm -f "$out"
echo "$begin $(date +%s.%N) $name $rc" >> "$dir/commands"
exit $rc
"""
COMMANDS = ("sbatch", "squeue", "sacct", "scontrol", "scancel", "sinfo")


@dataclass(frozen=True)
class Command:
    """One command as the login node ran it: seconds since the epoch, and its exit code."""

    begin: float
    end: float
    name: str
    code: int


class Gates:
    """The gates of one run, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True)
        for command in COMMANDS:
            (self.bin / command).write_text(_SCRIPT)
            (self.bin / command).chmod(0o755)

    def arm(self, point: str) -> None:
        """Shut the gate at ``command:before``, ``command:after``, or ``record:before`` and so on of the receipt store."""
        (self.folder / ".arm").write_text(point + "\n")
        (self.folder / ".arm").rename(self.folder / "arm")

    async def reached(self, timeout_s: float) -> None:
        """Wait until a run stands at the gate.

        :raises TimeoutError: if it never comes by.
        """
        async with asyncio.timeout(timeout_s):
            while not (self.folder / "reached").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        (self.folder / "reached").unlink()

    def go(self) -> None:
        """Open the gate."""
        (self.folder / "go").touch()

    def commands(self) -> list[Command]:
        """What the login node has run so far."""
        path = self.folder / "commands"
        lines = path.read_text().splitlines() if path.exists() else []
        return [Command(float(b), float(e), name, int(code)) for b, e, name, code in (line.split() for line in lines)]


class GatedReceipts(FileReceipts):
    """A receipt store that stops at gates too."""

    def __init__(self, root: str, gates: str) -> None:
        super().__init__(root)
        self._gates = Path(gates)

    def claim(self, key: str, owner: dict[str, Any]) -> Any:
        claim = super().claim(key, owner)
        self._at("claim:after")
        return claim

    def record(self, key: str, n: int, receipt: Any) -> None:
        name = "record" if receipt.released_at is None else "released"
        self._at(f"{name}:before")
        super().record(key, n, receipt)
        self._at(f"{name}:after")

    def close(self, key: str, n: int, end: Any) -> None:
        self._at("close:before")
        super().close(key, n, end)

    def _at(self, point: str) -> None:
        armed = self._gates / "arm"
        try:
            if armed.read_text().strip() != point:
                return
            armed.rename(self._gates / "reached")
        except FileNotFoundError:
            return
        deadline = time.monotonic() + LONGEST_S
        while not (self._gates / "go").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        (self._gates / "go").unlink(missing_ok=True)
