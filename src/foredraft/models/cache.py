"""Where pulled models lie on this machine, and what a MODEL on the command line means.

`<home>/models/<name>.gguf` is a whole, verified file: it appears under that name only when it is complete.
The resumable pieces of a download lie in `<home>/partial/`. This module fetches nothing; see `pull.py`.
"""

import os
from pathlib import Path

from foredraft.errors import ModelNotFoundError, UnsupportedModelError
from foredraft.models.registry import REGISTRY, look_up


def cache_home() -> Path:
    """The folder of foredraft's files: `FOREDRAFT_HOME`, else `~/.cache/foredraft`."""
    return Path(os.environ.get("FOREDRAFT_HOME") or "~/.cache/foredraft").expanduser().absolute()


def model_path(name: str) -> Path:
    """Where the model of that name lies once it has been pulled."""
    return cache_home() / "models" / f"{name}.gguf"


def find_model(name_or_path: str | Path) -> Path:
    """The GGUF file that a MODEL means: the name of a pulled model, or a path."""
    text = str(name_or_path)
    if text in REGISTRY and model_path(text).is_file():
        return model_path(text)
    path = Path(name_or_path).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        raise UnsupportedModelError(f"{text!r} is a folder: a model is one GGUF file, give that file's path")
    if text.startswith("hf:"):
        raise UnsupportedModelError(
            f"{text!r}: models of the Hub are not read directly, download the GGUF file and give its path"
        )
    if isinstance(name_or_path, Path) or _looks_like_path(text):
        raise ModelNotFoundError(f"no file at {text!r} (looked from {Path.cwd()}): is the path spelt right?")
    entry = look_up(text)
    raise ModelNotFoundError(
        f"model {text!r} has not been pulled (nothing at {model_path(text)}), "
        f"fetch it with: foredraft pull {entry.name}"
    )


def _looks_like_path(text: str) -> bool:
    return os.sep in text or text.startswith("~") or text.lower().endswith(".gguf")
