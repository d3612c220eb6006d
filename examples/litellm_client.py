"""LiteLLM over a running server: `pip install litellm`, `headrace serve`, then this.

In the configuration of LiteLLM's proxy the same is `model: openai/NAME` with `api_base: http://HOST:8000/v1`.
"""

import os

import litellm

URL = os.environ.get("HEADRACE_URL", "http://127.0.0.1:8000")
MODEL = os.environ.get("HEADRACE_MODEL", "smollm2-135m")


def main() -> None:
    server = {
        "model": f"openai/{MODEL}",
        "api_base": f"{URL}/v1",
        "api_key": os.environ.get("HEADRACE_API_KEY", "none"),
    }
    question = [{"role": "user", "content": "What is a headrace?"}]
    answer = litellm.completion(messages=question, max_tokens=60, **server)
    print(answer.choices[0].message.content)
    for chunk in litellm.completion(messages=question, max_tokens=60, stream=True, **server):
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main()
