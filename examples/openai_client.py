"""Ask a running server with OpenAI's client: `pip install openai`, `headrace serve`, then this.

HEADRACE_URL and HEADRACE_API_KEY say where the server is and what its key is.
"""

import os

from openai import OpenAI

URL = os.environ.get("HEADRACE_URL", "http://127.0.0.1:8000")


def main() -> None:
    client = OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("HEADRACE_API_KEY", "none"))
    model = client.models.list().data[0].id
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a headrace?"}],
        max_tokens=60,
        temperature=0.2,
        seed=1,
        extra_body={"top_k": 40, "min_p": 0.05},
    )
    print(answer.choices[0].message.content)
    print(f"{answer.usage.prompt_tokens} + {answer.usage.completion_tokens} tokens, {answer.choices[0].finish_reason}")
    continued = client.completions.create(model=model, prompt="The mill stands where", max_tokens=20, n=2)
    for choice in continued.choices:
        print(f"{choice.index}: {choice.text!r}")


if __name__ == "__main__":
    main()
