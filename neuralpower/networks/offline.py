"""A network is built from its description alone: meanwhile nothing is fetched from other machines.

Libraries fetch without being asked: weights of a backbone, another network's configuration, compiled kernels.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from neuralpower.errors import ModelError
from neuralpower.processes.alone import alone

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
