"""Locks of open files, which end with the process: `flock`, on Windows a byte beyond any content.

take(descriptor)              raises BlockingIOError where another process has it
take(descriptor, wait=True)   waits for it
"""

from __future__ import annotations

import errno
import os
import sys
import time

WINDOWS = sys.platform == "win32"
BINARY = getattr(os, "O_BINARY", 0)  # Windows would write another end of each line
BEYOND = 2**40  # B; a locked byte of a file can be neither read nor written there
AGAIN_S = 0.2

if sys.platform == "win32":
    import msvcrt

    def take(descriptor: int, *, wait: bool = False) -> None:
        """Lock an open file; raises BlockingIOError, and OSError where the file system has no locks."""
        while True:
            os.lseek(descriptor, BEYOND, os.SEEK_SET)
            try:
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            except PermissionError:
                if not wait:
                    raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK)) from None
                time.sleep(AGAIN_S)
            else:
                return
            finally:
                os.lseek(descriptor, 0, os.SEEK_SET)
else:
    import fcntl

    def take(descriptor: int, *, wait: bool = False) -> None:
        """Lock an open file; raises BlockingIOError, and OSError where the file system has no locks."""
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
