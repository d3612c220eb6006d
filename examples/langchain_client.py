"""LangChain over a running server: `pip install langchain-openai`, `headrace serve`, then this."""

import os

from langchain_openai import ChatOpenAI

URL = os.environ.get("HEADRACE_URL", "http://127.0.0.1:8000")
MODEL = os.environ.get("HEADRACE_MODEL", "smollm2-135m")


def main() -> None:
    model = ChatOpenAI(
        base_url=f"{URL}/v1",
        api_key=os.environ.get("HEADRACE_API_KEY", "none"),
        model=MODEL,
        temperature=0.2,
        max_tokens=60,
    )
    print(model.invoke([("system", "Be brief."), ("user", "What is a headrace?")]).content)
    for chunk in model.stream("What is a tailrace?"):
        print(chunk.content, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
