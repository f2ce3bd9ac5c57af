"""Facts that tell measurements of the same thing apart. Uses only the standard library, for peers' environments.

`python machine.py` prints the versions in that Python's environment.
"""

import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
_FRAMEWORKS = ("keras", "tensorflow", "torch", "jax", "openvino", "onnxruntime")
_PACKAGES = (*_FRAMEWORKS, "transformers", "keras-hub", "tokenizers")
# Environment variables that change the speed of whatever runs.
_CHANGE_SPEED = (
    "TF_ENABLE_ONEDNN_OPTS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "OMP_NUM_THREADS",
    "XLA_FLAGS",
    "GLIBC_TUNABLES",
    *(f"MALLOC_{name}_" for name in ("MMAP_THRESHOLD", "TRIM_THRESHOLD", "TOP_PAD")),
)


def identity(script: str, python: str = sys.executable) -> dict[str, Any]:
    """Return the machine, versions in that Python's environment, code and variables; one that differs may matter."""
    own = {"versions": versions(python), "code": code(script), "variables": variables()}
    return {"machine": describe_machine(), **own}


def variables() -> dict[str, str]:
    """Return those of the environment that change the speed of a measurement."""
    return {name: os.environ[name] for name in _CHANGE_SPEED if name in os.environ}


def describe_machine() -> str:
    cpu, memory = (_read(f"/proc/{name}") for name in ("cpuinfo", "meminfo"))
    model = re.search(r"model name\s*:\s*(.+)", cpu)
    # In a cloud, different processors have the same model name.
    numbers = [re.search(rf"{name}\s*:\s*(\d+)", cpu) for name in ("cpu family", "model", "stepping")]
    kind = f" ({'-'.join(found[1] for found in numbers if found)})" if any(numbers) else ""
    kib = re.search(r"MemTotal:\s*(\d+)", memory)
    has = ", ".join(f"{flag} {'yes' if f' {flag}' in cpu else 'no'}" for flag in ("avx2", "avx512", "amx"))
    gib = f"{int(kib[1]) / 2**20:.0f} GiB" if kib else "memory unknown"
    parts = [f"{model[1] if model else platform.machine()}{kind}", f"{os.cpu_count()} cores", has, gib, *cards()]
    return ", ".join(parts)


@functools.cache
def cards() -> tuple[str, ...]:
    """Return the names of this machine's NVIDIA cards."""
    if not shutil.which("nvidia-smi"):
        return ()
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True)
    return tuple(done.stdout.splitlines()) if done.returncode == 0 else ()


@functools.cache
def versions(python: str = sys.executable) -> dict[str, str]:
    """Return the versions of Python and of the packages that compute, in that interpreter's environment."""
    if not shutil.which(python):
        sys.exit(f"--peers-python must be an interpreter. Received: {python}")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([python, __file__], env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def _versions_here() -> dict[str, str]:
    found = {"Python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "none"
    return found


@functools.cache
def code(script: str) -> str:
    """Return a digest of the package's code and of what measures: a script, and what scripts share.

    A commit does not tell uncommitted changes.
    """
    digest = hashlib.sha256()
    shared = [*_HERE.glob("*contenders.py"), *(_HERE / name for name in ("process.py", "worker.py", "fresh.py"))]
    for path in [*sorted((_HERE.parent / "keras_bert_zoo").rglob("*.py")), *sorted(shared), _HERE / script]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


@functools.cache
def commit() -> str:
    """Return the repository's commit, or `""` without git."""
    if not shutil.which("git"):
        return ""
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=_HERE, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def _read(path: str) -> str:
    return Path(path).read_text(encoding="utf-8") if os.path.exists(path) else ""


if __name__ == "__main__":
    print(json.dumps(_versions_here()))
