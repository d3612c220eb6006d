"""What a server is told when it starts, as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LogFormat = Literal["text", "json"]
MIB = 1 << 20
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Sizes in bytes, times in seconds."""

    host: str = "127.0.0.1"
    port: int = 8000
    model_names: tuple[str, ...]
    """What clients may call the model; the first is what answers say."""
    api_keys: tuple[str, ...] = ()
    shutdown_timeout_s: float = 30.0
    wedge_timeout_s: float = 300.0
    max_body_bytes: int = 32 * MIB
    max_bodies_bytes: int = 256 * MIB
    """Of all bodies together that are long and not decoded yet; one of the largest there may be always has room."""
    body_timeout_s: float = 60.0
    max_header_bytes: int = 4 * MIB
    max_headers: int = 256
    header_timeout_s: float = 10.0
    keep_alive_s: float = 5.0
    send_timeout_s: float = 60.0
    """How long a reader may leave the buffers of its stream full."""
    template_timeout_s: float = 30.0
    max_connections: int | None = None
    num_remembered: int = 256
    """Finished requests that /v1/requests still knows."""
    otlp_traces_endpoint: str | None = None
    """Where OpenTelemetry spans go."""
    num_steps: int = 512
    """Steps that the flight recorder keeps."""

    @property
    def model_name(self) -> str:
        return self.model_names[0]
