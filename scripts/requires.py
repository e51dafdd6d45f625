"""Prints the requirements of one group of `pyproject.toml`: build, base, or the name of an extra.

The Makefile installs with it, so that a requirement is written down in one place only. It needs nothing but
the standard library, because it runs before anything is installed.
"""

import sys
import tomllib
from pathlib import Path


def requirements(group: str) -> list[str]:
    text = Path(__file__).parent.parent.joinpath("pyproject.toml").read_text(encoding="utf-8")
    pyproject = tomllib.loads(text)
    project = pyproject["project"]
    groups: dict[str, list[str]] = {
        "build": pyproject["build-system"]["requires"],
        "base": project["dependencies"],
        **project["optional-dependencies"],
    }
    if group not in groups:
        sys.exit(f"requires.py: no group {group!r}; there are {', '.join(groups)}")
    return groups[group]


if __name__ == "__main__":
    print("\n".join(line for group in sys.argv[1:] for line in requirements(group)))
