"""constraints.txt pins what is installed: every package that pyproject.toml requires, with all dependencies, and nothing else."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# torch's libraries for a GPU depend on the machine, and so are not pinned
OF_THE_MACHINE = re.compile(r"^(nvidia-|cuda-|triton$)")


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(text: str) -> dict[str, str]:
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    return {plain(name): version for name, _, version in (line.partition("==") for line in lines if line)}


def needed(requirements: Iterable[str]) -> dict[str, str]:
    """Installed versions of these packages and all their dependencies: name → version."""
    found: dict[str, str] = {}
    queue = [Requirement(r) for r in requirements]
    seen: set[tuple[str, frozenset[str]]] = set()
    while queue:
        one = queue.pop()
        key = plain(one.name), frozenset(one.extras)
        if key in seen or OF_THE_MACHINE.match(key[0]):
            continue
        seen.add(key)
        try:
            installed = distribution(one.name)
        except PackageNotFoundError:
            continue
        found[key[0]] = installed.version.partition("+")[0]
        for line in installed.requires or ():
            more = Requirement(line)
            environments = [dict(default_environment()) | {"extra": extra} for extra in ("", *one.extras)]
            if more.marker is None or any(more.marker.evaluate(e) for e in environments):  # type: ignore[arg-type]
                queue.append(more)
    return found


def stale(pins: dict[str, str], here: dict[str, str]) -> list[str]:
    """Missing or wrong entries of constraints.txt."""
    return [
        f"{name} is {version} here and {pins.get(name, 'not pinned')} in constraints.txt"
        for name, version in sorted(here.items())
        if pins.get(name) != version
    ]


def test_what_is_installed_is_pinned() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    asked = [*PROJECT["project"]["dependencies"], *(r for extra in extras.values() for r in extra)]
    here, pins = needed(asked), pinned((ROOT / "constraints.txt").read_text())
    assert not stale(pins, here)
    if all(plain(Requirement(r).name) in here for r in asked):  # everything is installed
        assert set(pins) - set(here) <= {"setuptools"}, "pinned, and needed by nobody"


def test_every_package_asked_for_is_pinned_where_it_may_be() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    pins = pinned((ROOT / "constraints.txt").read_text())
    for line in [*PROJECT["project"]["dependencies"], *(r for extra in extras.values() for r in extra)]:
        one = Requirement(line)
        assert pins[plain(one.name)] in one.specifier, line


@pytest.mark.parametrize("planted", [{"numpy": "0.1"}, {}])
def test_a_stale_pin_is_noticed(planted: dict[str, str]) -> None:
    assert len(stale(planted, needed(["numpy"]))) == 1
