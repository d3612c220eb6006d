"""The listening socket, taken before a model is loaded, and who holds it when it cannot be had."""

from __future__ import annotations

import errno
import os
import resource
import socket
from pathlib import Path

from headrace.words.errors import ConfigError

RESERVED_FILES = 48
"""File descriptors that are not for connections."""
BACKLOG = 2_048
MAX_PORT = 65_535


def bind(host: str, port: int) -> socket.socket:
    """A bound socket; ConfigError names the port and, where the system tells, the process that holds it."""
    if not 0 <= port <= MAX_PORT:
        raise ConfigError("port", f"must be from 0 (a free one) to {MAX_PORT}, got {port}")
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ConfigError("host", f"{host!r} is no address of this machine: {error.strerror}") from error
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise ConfigError("port", _why(error, port)) from error
    return sock


def listen(sock: socket.socket) -> None:
    """From here on clients may connect. Somebody may have been faster since the port was bound."""
    try:
        sock.listen(BACKLOG)
    except OSError as error:
        raise ConfigError("port", _why(error, sock.getsockname()[1])) from error


def _why(error: OSError, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        pid = holder(port)
        by = f" by process {pid}" if pid else ""
        return f"{port} is in use{by}; end that process or choose another port"
    return f"{port} cannot be used: {error.strerror}"


def holder(port: int) -> int | None:
    """The process that listens on a port, as far as /proc lets it be seen."""
    inodes = {f"socket:[{inode}]" for inode in _listening(port)}
    for folder in Path("/proc").glob("[0-9]*/fd") if inodes else ():
        try:
            if any(os.readlink(fd) in inodes for fd in folder.iterdir()):
                return int(folder.parent.name)
        except OSError:
            continue
    return None


def _listening(port: int) -> list[str]:
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                found.append(fields[9])
    return found


def max_connections() -> int:
    """As many as the limit of open files leaves room for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            pass
    return max(8, soft - RESERVED_FILES)
