"""Find the text that is nearest to a question by embeddings: `pip install openai`, `headrace serve`, then this."""

import os

from openai import OpenAI

URL = os.environ.get("HEADRACE_URL", "http://127.0.0.1:8000")
TEXTS = [
    "A headrace leads the water to the wheel of a mill.",
    "Bread is made of flour, water and salt.",
    "The moon is four hundred thousand kilometres away.",
]
QUESTION = "How does water reach the mill?"


def cosine(a: list[float], b: list[float]) -> float:
    """Of two vectors of length one, which is what the server gives."""
    return sum(x * y for x, y in zip(a, b, strict=True))


def main() -> None:
    client = OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("HEADRACE_API_KEY", "none"))
    model = client.models.list().data[0].id
    found = client.embeddings.create(model=model, input=[QUESTION, *TEXTS])
    asked, *vectors = [entry.embedding for entry in found.data]
    ranked = sorted(zip(TEXTS, vectors, strict=True), key=lambda pair: -cosine(asked, pair[1]))
    for text, vector in ranked:
        print(f"{cosine(asked, vector):+.3f}  {text}")


if __name__ == "__main__":
    main()
