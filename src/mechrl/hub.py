"""The Hugging Face hub: models, circuits and agents are loaded from it; circuits and agents are pushed to it. A repository holds one.

Wherever a circuit's file or an agent's folder is expected, `hf:owner/name` means the content of a repository, and `hf:owner/name@commit`
its content at that commit. The hub library reads HF_HOME, HF_TOKEN, HF_HUB_OFFLINE and its other variables itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from mechrl.errors import MechRLError

PREFIX = "hf:"
AGENT = ("model.safetensors", "config.json", "run.json")  # files in a planner's or a policy's folder


def fetch(repo: str, revision: str | None, files: Sequence[str], name: str, what: str, instead: str) -> Path:
    """The local copy of a repository's files. `name`: what the user asked for; `instead`: what they could give instead."""
    from huggingface_hub import errors as hub
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repo, revision=revision, allow_patterns=list(files)))
    except hub.GatedRepoError as exc:
        raise MechRLError(
            f"{name}: accept its licence on its hub page and run `hf auth login`, then try again"
        ) from exc
    except hub.RepositoryNotFoundError as exc:
        raise MechRLError(
            f"{name}: neither {instead} nor a public {what} on the hub; check the name"
        ) from exc
    except hub.RevisionNotFoundError as exc:
        raise MechRLError(
            f"{name}: has no revision {revision!r}; give a branch, tag or commit that the hub has"
        ) from exc
    except hub.HFValidationError as exc:
        raise MechRLError(f"{name}: neither {instead} nor a valid hub id; check the name") from exc
    except (hub.LocalEntryNotFoundError, hub.OfflineModeIsEnabled) as exc:
        raise MechRLError(
            f"{name}: not in the local hub cache, and the hub cannot be reached or HF_HUB_OFFLINE is set;"
            f" connect once to fetch it, or give {instead}"
        ) from exc
    except OSError as exc:  # HTTP errors and disk errors
        raise MechRLError(f"{name}: cannot be fetched ({_line(exc)}); try again or give {instead}") from exc


def local(path: Path | str, *files: str) -> Path:
    """The path itself, or the one file in that folder. Of `hf:…` the local copy of the one file, or of the folder with the files."""
    text = str(path)
    if not text.startswith(PREFIX):
        path = Path(path)
        return path / files[0] if len(files) == 1 and path.is_dir() else path
    found = re.fullmatch(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?", text.removeprefix(PREFIX))
    if found is None:
        raise MechRLError(f"{text}: not an address on the hub; write hf:owner/name or hf:owner/name@commit")
    one = len(files) == 1
    folder = fetch(found[1], found[2], files, text, "repository", "a local file" if one else "a local folder")
    return folder / files[0] if one else folder


def push(repo: str, files: Mapping[str, bytes], card: str, private: bool = False) -> str:
    """Creates a repository with the files and a model card, or adds a commit to it. Returns its address with that commit."""
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub import errors as hub

    api = HfApi()
    content = {**files, "README.md": card.encode()}
    try:
        api.create_repo(repo, private=private, exist_ok=True)
        done = api.create_commit(
            repo,
            operations=[CommitOperationAdd(name, data) for name, data in content.items()],
            commit_message="By MechRL",
        )
    except hub.HFValidationError as exc:
        raise MechRLError(f"{repo}: not a name for a repository; write owner/name") from exc
    except (hub.HfHubHTTPError, hub.LocalTokenNotFoundError) as exc:
        code = getattr(getattr(exc, "response", None), "status_code", 401)
        advice = (
            "run `hf auth login` with a token that may write there" if code in (401, 403) else "try again"
        )
        raise MechRLError(f"{repo}: cannot be written to ({_line(exc)}); {advice}") from exc
    except (hub.HTTPError, OSError) as exc:  # type: ignore[attr-defined]  # the HTTP client of the hub library
        raise MechRLError(f"{repo}: the hub cannot be reached ({_line(exc)}); try again") from exc
    return f"{PREFIX}{repo}@{done.oid}"


def push_agent(folder: Path | str, repo: str, private: bool = False) -> str:
    """Pushes a planner or a policy with its card. Returns its address, which `--planner`, `--policy` and `mechrl.discover` take."""
    folder = Path(folder)
    files = {name: (folder / name).read_bytes() for name in AGENT if (folder / name).is_file()}
    if AGENT[0] not in files:
        raise MechRLError(f"{folder}: not the folder of a planner or a policy, {AGENT[0]} is missing")
    method, kind = ("paper", "policy") if "config.json" in files else ("planner", "planner")
    try:
        about = (folder / "card.md").read_text(encoding="utf-8")
    except FileNotFoundError:
        about = f"# A {kind} of MechRL\n"
    use = f'circuit = mechrl.discover(model, behaviour, "{method}", {kind}="{PREFIX}{repo}")'
    return push(repo, files, f"{head()}{about}\n## Use\n\n```python\n{use}\n```\n", private)


def head(*tags: str, base_model: str = "") -> str:
    """The front matter of a model card, for the hub's search."""
    base = f"base_model: {base_model}\n" if base_model else ""
    listed = "".join(f"- {tag}\n" for tag in ("mechanistic-interpretability", "circuit-discovery", *tags))
    return f"---\nlibrary_name: mechrl\n{base}tags:\n{listed}---\n\n"


def _line(exc: BaseException) -> str:
    return " ".join(str(exc).split())[:200] or type(exc).__name__
