# SPDX-License-Identifier: Apache-2.0
"""The pack's own Python environment: found or made, then entered. Standard library only; works on any Python 3.

A verb calls `enter()` first. What is missing is named together, before any work. The environment lives in the plugin's data
folder (CLAUDE_PLUGIN_DATA) when Claude Code runs the pack, else in .venv of the pack, else in the user's cache.
"""

import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PACK = Path(__file__).resolve().parent.parent
NEED_PYTHON = (3, 11)
NEED_BYTES = 500 << 20
STAMP = "llm-to-npu-dependencies"
ZIG_VARIABLE = "LLM_TO_NPU_ZIG"
PROBE = "jinja2"  # the smallest of the requirements: fetched once to see whether pip can


def enter() -> None:
    """Go on inside the environment: returns in it, and replaces the process by one in it otherwise."""
    sys.path.insert(0, str(PACK))
    try:
        folder = location()
        if Path(sys.prefix).resolve() == folder.resolve() and _stamp(folder) == wanted():
            return
        if _stamp(folder) != wanted():
            make(folder)
    except (OSError, UnicodeDecodeError) as error:  # a full disk, a folder that may not be written, a torn file
        print(f"refused: the environment cannot be made or read: {error}", file=sys.stderr)
        print("next: mend what is named above, then run the same command again")
        sys.exit(2)
    python = folder / "bin" / "python"
    os.execv(str(python), [str(python), *sys.orig_argv[1:]] if hasattr(sys, "orig_argv") else [str(python), *sys.argv])


def location() -> Path:
    """Where the environment is, or will be made."""
    data = os.environ.get("CLAUDE_PLUGIN_DATA")
    if data:
        return Path(data) / "venv"
    if os.access(PACK, os.W_OK):
        return PACK / ".venv"
    return Path(os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))) / "llm-to-npu" / "venv"


def has_compiler() -> bool:
    """Whether the system has a C++ compiler of its own."""
    return any(shutil.which(name) for name in ("g++", "clang++"))


def wants_zig() -> bool:
    """Whether the user agreed to ziglang as the compiler: by the variable, or by a yes when asked at a terminal."""
    if os.environ.get(ZIG_VARIABLE) == "1":
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print(
        "no C++ compiler was found. Use ziglang from PyPI (101 MB, 411 MB installed)? [y/N] ", end="", file=sys.stderr
    )
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        return False
    os.environ[ZIG_VARIABLE] = "1"
    return True


def missing(folder: Path) -> list:
    """What stands in the way, each with what to do: all of it, not only the first."""
    found = []
    if sys.version_info < NEED_PYTHON:
        found.append(
            f"Python {platform.python_version()}: 3.11 or newer is needed (run the verb with python3.11 or newer)"
        )
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        found.append(
            f"{sys.platform} {platform.machine()}: Linux on x86-64 is needed (the twin compiles kernels for it)"
        )
    try:
        import ensurepip  # noqa: F401  Debian ships venv without it
        import venv  # noqa: F401
    except ImportError:
        found.append("the venv module: apt-get install python3-venv")
    if not has_compiler() and not wants_zig():
        found.append(
            f"a C++20 compiler: apt-get install g++; or run again with {ZIG_VARIABLE}=1 to use ziglang from PyPI "
            "(101 MB to download, 411 MB installed, about three minutes at its first use)"
        )
    place = folder
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < NEED_BYTES:
        found.append(f"disk: {free >> 20} MiB free at {place}, {NEED_BYTES >> 20} MiB are needed")
    refusal = registry_refusal()
    if refusal:
        found.append(f"network: pip gets no package from its registry ({refusal})")
    return found


def registry_refusal() -> str:
    """Why pip cannot fetch a small package, in its last words; "" where it can, and where there is no pip to ask yet."""
    if importlib.util.find_spec("pip") is None:
        return ""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check"]
        command += ["--timeout", "10", "--retries", "1", "--dest", folder, PROBE]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        except subprocess.TimeoutExpired:
            return "no answer within a minute"
    said = [line for line in done.stderr.splitlines() if line.strip()]
    return "" if done.returncode == 0 else (said[-1].strip() if said else f"exit {done.returncode}")


def dependencies() -> list:
    """The run-time requirements of pyproject.toml."""
    import tomllib

    return tomllib.loads((PACK / "pyproject.toml").read_text())["project"]["dependencies"]


def make_test() -> None:
    """Add what the tests need (torch and transformers among it) to the environment."""
    import tomllib

    wanted_packages = tomllib.loads((PACK / "pyproject.toml").read_text())["project"]["optional-dependencies"]["test"]
    python = location() / "bin" / "python"
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted_packages]
    sys.exit(subprocess.run(command, check=False).returncode and 2)


def wanted() -> str:
    """A fingerprint of requirements and Python version: another one makes the environment anew."""
    text = "\n".join([platform.python_version(), (PACK / "pyproject.toml").read_text().split("[project.optional")[0]])
    return hashlib.sha256(text.encode()).hexdigest()


def make(folder: Path) -> None:
    """Make the environment with its steps shown; exits 2 when something is missing."""
    problems = missing(folder)
    if problems:
        print("llm-to-npu cannot start here. Missing:", file=sys.stderr)
        for problem in problems:
            print(f"  - {problem}", file=sys.stderr)
        print("next: install what is named above, then run the same command again")
        sys.exit(2)
    print(f"making the environment in {folder} (once; about 250 MB, one to two minutes)", file=sys.stderr)
    steps = [
        [sys.executable, "-m", "venv", str(folder)],
        [
            str(folder / "bin" / "python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            *dependencies(),
        ],
    ]
    for step in steps:
        print("  $ " + " ".join(step[:6]) + (" ..." if len(step) > 6 else ""), file=sys.stderr)
        if subprocess.run(step, check=False).returncode:
            print("next: check the network and the package registry, then run the same command again")
            sys.exit(2)
    (folder / STAMP).write_text(wanted())


def _stamp(folder: Path) -> str:
    stamp = folder / STAMP
    return stamp.read_text() if stamp.exists() and (folder / "bin" / "python").exists() else ""


if __name__ == "__main__":
    enter()
    if "--test" in sys.argv:
        make_test()
    print(f"environment: {location()}")
