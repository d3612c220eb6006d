"""The benchmark of a thousand streams still runs, with a few."""

import subprocess
import sys


def test_a_few_streams_through_the_whole_server_arrive_whole():
    command = [sys.executable, "-m", "benchmarks.streams", "--streams", "8", "--tokens", "40"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "8 streams of 40 tokens" in done.stdout and "0 broken" in done.stdout
