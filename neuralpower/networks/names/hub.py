"""Configurations of the Hugging Face hub: config.json alone is fetched, never weights and never code.

huggingface_hub does it, so that its cache, its offline switch (HF_HUB_OFFLINE) and its token apply here.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from neuralpower.errors import ModelError, one_line
from neuralpower.files.json_files import read_json
from neuralpower.networks.names.slips import listed_as
from neuralpower.processes.alone import alone

CONFIG, QUANTISATION = "config.json", "hf_quant_config.json"  # the second is NVIDIA's Model Optimizer's
SWITCH = "HF_HUB_OFFLINE"
PATIENCE_S = 3.0  # until the hub counts as out of reach; its library tries again for half a minute
_NAME = re.compile(r"[\w.-]+/[\w.-]+")
Stamps = list[tuple[str, int, int]]


class NoSuchFileError(ModelError):
    """The repository is there, and holds no such file."""


_switched_here = False
_known: dict[str, tuple[Stamps | None, dict[str, Any]]] = {}  # what this process has read, by name


def stay_offline() -> None:
    """Turn the hub off for libraries, which fetch without being asked; a user's own setting stays."""
    global _switched_here
    if SWITCH not in os.environ:
        os.environ[SWITCH] = "1"
        _switched_here = True


@contextlib.contextmanager
def _as_the_user_set_it() -> Iterator[None]:
    """Undo `stay_offline` within."""
    from huggingface_hub import constants

    with alone():
        before = constants.HF_HUB_OFFLINE
        if _switched_here:
            constants.HF_HUB_OFFLINE = False
        try:
            yield
        finally:
            constants.HF_HUB_OFFLINE = before


@functools.cache
def is_reachable() -> bool:
    """Whether the hub answers within PATIENCE_S, with whatever status; asked once in a process."""
    import huggingface_hub
    from huggingface_hub import constants

    answered: list[object] = []

    def ask() -> None:
        with contextlib.suppress(Exception):  # of its HTTP library, which is another one in other versions
            answered.append(huggingface_hub.get_session().head(constants.ENDPOINT, timeout=PATIENCE_S))

    # A name server that does not answer knows no timeout: a thread is left alone.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(PATIENCE_S)
    return bool(answered)


def configuration(name: str) -> dict[str, Any]:
    """The config.json of `ORG/NAME` or `ORG/NAME@REVISION`, with how its weights are quantised.

    What was read stays known until the hub's cache holds another revision, or other files.

    Raises ModelError: there is no such repository, revision or file, it is gated, or there is no network.
    """
    repository, at, revision = name.partition("@")
    if not _NAME.fullmatch(repository) or (at and not revision.strip()):
        raise ModelError(f"hf:{name}: write hf:ORG/NAME or hf:ORG/NAME@REVISION, as in hf:Qwen/Qwen3-8B")
    if name in _known and _known[name][0] == _cached(repository, revision or None):
        return _known[name][1]
    values = _read(name, _fetched(repository, revision or None, CONFIG))
    if "quantization_config" not in values:
        beside = _fetched(repository, revision or None, QUANTISATION, optional=True)
        values = values if beside is None else {**values, "quantization_config": _read(name, beside)}
    _known[name] = _cached(repository, revision or None), values
    return values


def file_of(name: str, file: str, *, optional: bool = False) -> dict[str, Any] | None:
    """The JSON object of a file of `ORG/NAME` or `ORG/NAME@REVISION`; None where it may lack, and does.

    Raises ModelError as `configuration`.
    """
    repository, _, revision = name.partition("@")
    if not _NAME.fullmatch(repository):
        return None
    found = _fetched(repository, revision or None, file, optional=optional)
    return None if found is None else _read(name, found)


def _cached(repository: str, revision: str | None) -> Stamps | None:
    """(path, bytes, time of change in ns) of the files in the hub's cache; None where they are not there."""
    import huggingface_hub

    found: Stamps = []
    for file in (CONFIG, QUANTISATION):
        path = huggingface_hub.try_to_load_from_cache(repository, file, revision=revision)
        if isinstance(path, str):
            with contextlib.suppress(OSError):
                status = Path(path).stat()
                found.append((path, status.st_size, status.st_mtime_ns))
    return found or None


def _read(name: str, file: Path | None) -> dict[str, Any]:
    try:
        values = read_json(file) if file is not None else None
    except (ValueError, OSError) as error:
        raise ModelError(f"hf:{name}: its {CONFIG} is not JSON ({one_line(error)}); choose another") from None
    if not isinstance(values, dict):
        raise ModelError(f"hf:{name}: its {CONFIG} is not an object; choose another repository")
    return values


def _fetched(repository: str, revision: str | None, file: str, *, optional: bool = False) -> Path | None:
    """The file in the hub's cache, fetched if it is not there; raises ModelError, or None if it may lack."""
    import huggingface_hub
    from huggingface_hub import constants, errors

    name = f"hf:{repository}" + (f"@{revision}" if revision else "")
    refusal = ModelError
    try:
        with _as_the_user_set_it():
            cached = huggingface_hub.try_to_load_from_cache(repository, file, revision=revision)
            if not (isinstance(cached, str) or constants.HF_HUB_OFFLINE or is_reachable()):
                raise errors.LocalEntryNotFoundError(repository)
            return Path(huggingface_hub.hf_hub_download(repository, file, revision=revision))
    except errors.GatedRepoError:
        reason = (
            "is gated: ask for access on its page and set HF_TOKEN, or give a folder with its config.json"
        )
    except errors.RepositoryNotFoundError:
        reason = "is not on the hub, or is private; check the name, or set HF_TOKEN"
    except errors.RevisionNotFoundError:
        reason = "has no such revision; leave @REVISION out, or name a branch, a tag or a commit"
    except errors.LocalEntryNotFoundError:
        reason = f"is not in the cache, and {_why_not()}; connect, or give a folder with its config.json"
    except errors.EntryNotFoundError:
        refusal = NoSuchFileError
        reason = f"holds no {file}; choose a repository of transformers, or give a folder with one"
    except Exception as error:  # of its HTTP library, which is another one in other versions
        reason = f"cannot be read ({one_line(error)}); give a folder with its config.json"
    if optional:
        return None
    listed = listed_as(repository)
    raise refusal(f"{name} {reason}" + (f"; or write {listed}, which needs no network" if listed else ""))


def _why_not() -> str:
    offline = os.environ.get(SWITCH, "").upper() in ("1", "ON", "YES", "TRUE") and not _switched_here
    return f"{SWITCH} is set" if offline else f"the hub cannot be reached ({SWITCH}=1 asks the cache alone)"


# ---- A network is built from its description alone: meanwhile nothing is fetched from other machines ----
# Libraries fetch without being asked: weights of a backbone, another network's configuration, kernels.


_OFFLINE: ContextVar[bool] = ContextVar("neuralpower_offline", default=False)  # of this thread alone


@contextlib.contextmanager
def offline(name: str) -> Iterator[None]:
    """Raise ModelError, which names `name`, where this thread connects to another machine within."""

    def guarded(call: Callable[..., Any]) -> Callable[..., Any]:
        def checked(*args: Any, **kwargs: Any) -> Any:
            if _OFFLINE.get():
                raise ModelError(
                    f"{name} wants to fetch something from the network, and models are built from their "
                    "configuration alone; write what it asks for into a config.json, or leave the field out"
                )
            return call(*args, **kwargs)

        return checked

    with alone():
        look_up, connect = socket.getaddrinfo, socket.socket.connect
        token = _OFFLINE.set(True)
        socket.getaddrinfo = guarded(look_up)
        socket.socket.connect = guarded(connect)  # type: ignore[method-assign]
        try:
            yield
        finally:
            socket.getaddrinfo = look_up
            socket.socket.connect = connect  # type: ignore[method-assign]
            _OFFLINE.reset(token)
