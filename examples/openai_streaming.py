"""Print an answer while it is made, with OpenAI's client: `pip install openai`, `headrace serve`, then this."""

import os
import time

from openai import OpenAI

URL = os.environ.get("HEADRACE_URL", "http://127.0.0.1:8000")


def main() -> None:
    client = OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("HEADRACE_API_KEY", "none"))
    started_s = time.monotonic()
    first_s = None
    stream = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": "Explain how a water mill works, in three sentences."}],
        max_tokens=120,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            first_s = first_s or time.monotonic() - started_s
            print(chunk.choices[0].delta.content, end="", flush=True)
        if chunk.usage:
            took_s = time.monotonic() - started_s
            print(f"\n{chunk.usage.completion_tokens} tokens in {took_s:.2f} s, the first after {first_s:.2f} s")


if __name__ == "__main__":
    main()
