"""Answer a file of questions in this process, all at once: `python offline_batch.py questions.txt answers.jsonl`.

Every line of the first file is a question. Without files a few are asked and the answers are printed. For batches in
OpenAI's format there is `headrace run-batch`, which goes on where an earlier run stopped (examples/batch.jsonl).
"""

import json
import sys
from pathlib import Path

from headrace import LLM, SamplingParams

QUESTIONS = ["What is a headrace?", "What is a tailrace?", "Name three rivers."]


def main(questions: list[str], output: Path | None = None, model: str = "smollm2-135m") -> None:
    llm = LLM(model=model)
    params = SamplingParams(temperature=0.2, max_tokens=60, seed=1)
    conversations = [[{"role": "user", "content": question}] for question in questions]
    lines = []
    for question, answer in zip(questions, llm.chat(conversations, params), strict=True):
        choice = answer.outputs[0]
        told = {"question": question, "answer": choice.text, "finish_reason": choice.finish_reason, "seed": choice.seed}
        lines.append(json.dumps(told, ensure_ascii=False))
    text = "\n".join(lines) + "\n"
    if output is None:
        print(text, end="")
    else:
        output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    given = sys.argv[1:]
    asked = Path(given[0]).read_text(encoding="utf-8").splitlines() if given else QUESTIONS
    main([line for line in asked if line.strip()], Path(given[1]) if len(given) > 1 else None)
