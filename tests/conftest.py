"""For all tests: an Airflow home of their own, the cluster's packages at the end of the path, cheap tests first."""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from local.layout import Layout

_COST = ("e2e", "browser", "slurm")
"""Markers of tests that need services, the dearest first."""


def _airflow_home() -> None:
    """Airflow reads its home at the first import: it must not be that of the person who runs the tests."""
    home = tempfile.mkdtemp(prefix="airflow-tests-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    for name in [name for name in os.environ if name.startswith("AIRFLOW_")]:
        del os.environ[name]
    os.environ |= {
        "AIRFLOW_HOME": home,
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "GX_ANALYTICS_ENABLED": "false",
    }


def _cluster_packages() -> None:
    """torch and its like live in the cluster's environment alone. Its packages come last, so that the control plane's own win."""
    layout = Layout.find()
    built = layout.built_cluster_environment
    if "ALIGN_CLUSTER_PYTHON" not in os.environ and (built / "environment.json").exists():
        os.environ["ALIGN_CLUSTER_PYTHON"] = str(built / "bin/python")
    interpreter = os.environ.get("ALIGN_CLUSTER_PYTHON")
    if interpreter and importlib.util.find_spec("torch") is None:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        packages = Path(interpreter).parents[1] / "lib" / version / "site-packages"
        if packages.is_dir():
            sys.path.append(str(packages))


_airflow_home()
_cluster_packages()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need nothing come first, then those with Slurm, a browser, the whole stack; else the order stays."""
    items.sort(key=lambda item: next((len(_COST) - rank for rank, marker in enumerate(_COST) if item.get_closest_marker(marker)), 0))
