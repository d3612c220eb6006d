"""Continue a few prompts in this process: the whole offline API in a dozen lines.

Run it with `python examples/offline_quickstart.py`. The model is fetched once, about 93 MB.
"""

from headrace import LLM, SamplingParams

PROMPTS = [
    "A water mill turns",
    "The longest river in Africa is",
    "My favourite way to spend a rainy afternoon is",
    "Once upon a time, a small engine",
]


def main(model: str = "smollm2-135m") -> None:
    sampling_params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=32)
    llm = LLM(model=model)
    outputs = llm.generate(PROMPTS, sampling_params)
    for output in outputs:
        print(f"{output.prompt!r} goes on with {output.outputs[0].text!r}")


if __name__ == "__main__":
    main()
