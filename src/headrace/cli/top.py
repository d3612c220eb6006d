"""`headrace top`: a server's load and its requests, live in the terminal."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from headrace.cli import gauges
from headrace.cli.gauges import Moment
from headrace.cli.remote import URL, KeyOption, Server
from headrace.words.errors import HeadraceError

WINDOW_S = 60.0
"""Percentiles and the share of hits are of the last minute."""
BARS = "▁▂▃▄▅▆▇█"
NUM_BARS = 48
LATENCIES = {
    "queue": "vllm:request_queue_time_seconds",
    "first token": "vllm:time_to_first_token_seconds",
    "between tokens": "vllm:inter_token_latency_seconds",
    "whole request": "vllm:e2e_request_latency_seconds",
}
QUANTILES = (0.5, 0.9, 0.99)
OTHER_LINES = 21
"""What stands above and below the list of requests."""
ONCE_LINES = 40
COLOURS = {"running": "cyan", "waiting": "yellow", "blocked": "yellow", "stop": "green", "length": "green"}


def top(
    url: Annotated[str, typer.Option("--url", help="The server.")] = URL,
    api_key: KeyOption = None,
    interval: Annotated[float, typer.Option(help="Seconds between looks.", min=0.1)] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look twice, print one picture, and end.")] = False,
) -> int:
    """Watch a running server: load, speed, latencies, requests. Ctrl-C ends."""
    console = Console()
    watch = Watch(Server(url, api_key, timeout_s=10))
    watch.look()
    if once:
        time.sleep(interval)
        watch.look()
        console.print(watch.picture(ONCE_LINES, since_start=True))
        return 0
    try:
        with Live(watch.picture(console.height), console=console, screen=True, auto_refresh=False) as live:
            for _ in _ticks(interval):
                watch.try_to_look()
                live.update(watch.picture(console.height), refresh=True)
    except KeyboardInterrupt:
        pass
    return 0


def _ticks(interval_s: float) -> Iterator[None]:
    while True:
        time.sleep(interval_s)
        yield


class Watch:
    """What a server said of late. After a look that failed it shows the last one, and the error."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._moments: deque[Moment] = deque(maxlen=600)
        self._requests: list[dict[str, Any]] = []
        self._error: str | None = None

    def look(self) -> None:
        text = self._server.get("/metrics").decode()
        self._moments.append(gauges.read_moment(text, time.monotonic()))
        self._requests = self._server.get_json("/v1/requests")["data"]

    def try_to_look(self) -> None:
        try:
            self.look()
            self._error = None
        except HeadraceError as error:
            self._error = str(error)

    def picture(self, height: int, since_start: bool = False) -> RenderableType:
        """Of at most `height` lines; latencies of the last minute, or of all that the server remembers."""
        now, before = self._moments[-1], self._moments[-2] if len(self._moments) > 1 else None
        then = next((m for m in self._moments if m.at_s >= now.at_s - WINDOW_S), None)
        parts: list[RenderableType] = [Text(f"headrace top  {self._server.url}", style="bold")]
        if self._error:
            parts.append(Text(self._error, style="red"))
        since = None if since_start or then is now else then
        parts += [_levels(before, then, now), self._speed(), _latencies(since, now)]
        parts.append(_table(self._requests[: max(3, height - OTHER_LINES)], len(self._requests)))
        return Group(*parts)

    def _speed(self) -> RenderableType:
        moments = list(self._moments)[-NUM_BARS - 1 :]
        rates = [
            gauges.rate("vllm:generation_tokens_total", a, b) or 0.0
            for a, b in zip(moments, moments[1:], strict=False)
        ]
        return Panel(Text(bars(rates), style="cyan"), title="generated tok/s", title_align="left", height=3)


def bars(values: Sequence[float]) -> str:
    """A line of bars up to the largest value, which stands behind them."""
    most = max(values, default=0.0)
    if most <= 0:
        return "nothing yet"
    return "".join(BARS[round((len(BARS) - 1) * value / most)] for value in values) + f"  at most {most:,.0f}"


def _levels(before: Moment | None, then: Moment | None, now: Moment) -> RenderableType:
    hits = gauges.share("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total", then, now)
    shown = {
        "running": number(now.values.get("vllm:num_requests_running")),
        "waiting": number(now.values.get("vllm:num_requests_waiting")),
        "generated": f"{number(gauges.rate('vllm:generation_tokens_total', before, now))} tok/s",
        "prompts": f"{number(gauges.rate('vllm:prompt_tokens_total', before, now))} tok/s",
        "KV cache": percent(now.values.get("vllm:kv_cache_usage_perc")),
        "prefix hits": percent(hits),
        "preempted": number(now.values.get("vllm:num_preemptions_total")),
    }
    boxes = (Panel(Text(text, style="bold"), title=name, title_align="left", width=17) for name, text in shown.items())
    return Columns(boxes, padding=(0, 1))


def _latencies(then: Moment | None, now: Moment) -> RenderableType:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column("since the start" if then is None else "last minute", style="dim")
    for q in QUANTILES:
        table.add_column(f"p{round(100 * q)}", justify="right", min_width=8)
    for label, name in LATENCIES.items():
        table.add_row(label, *(seconds(gauges.quantile(name, q, then, now)) for q in QUANTILES))
    return table


def _table(lines: Sequence[dict[str, Any]], total: int) -> RenderableType:
    if not total:
        return Text("no request yet", style="dim")
    table = Table(box=None, padding=(0, 1), header_style="dim")
    table.add_column("request", no_wrap=True, max_width=24)
    table.add_column("state", no_wrap=True)
    for name in ("prompt", "cached", "output", "first token", "took"):
        table.add_column(name, justify="right", no_wrap=True)
    for line in lines:
        state = line["finish_reason"] or line["status"]
        table.add_row(
            line["id"],
            Text(state, style=COLOURS.get(state, "red")),
            number(line["num_prompt_tokens"]),
            number(line["num_cached_tokens"]),
            number(line["num_output_tokens"]),
            seconds(line["time_to_first_token_s"]),
            seconds(line["took_s"]),
        )
    more = total - len(lines)
    return Group(table, Text(f"and {more} more", style="dim")) if more else table


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"


def seconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.2f} s" if value < 100 else f"{value / 60:.1f} min"
