"""Ask a running server with Anthropic's client: `pip install anthropic`, `headrace serve`, then this."""

import os

from anthropic import Anthropic

URL = os.environ.get("HEADRACE_URL", "http://127.0.0.1:8000")
MODEL = os.environ.get("HEADRACE_MODEL", "smollm2-135m")


def main() -> None:
    client = Anthropic(base_url=URL, api_key=os.environ.get("HEADRACE_API_KEY", "none"))
    question = [{"role": "user", "content": "What is a headrace?"}]
    answer = client.messages.create(model=MODEL, system="Be brief.", messages=question, max_tokens=60)
    print(answer.content[0].text)
    print(f"{answer.usage.input_tokens} + {answer.usage.output_tokens} tokens, {answer.stop_reason}")
    with client.messages.stream(model=MODEL, messages=question, max_tokens=60) as stream:
        for text in stream.text_stream:
            print(text, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
