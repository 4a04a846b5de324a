"""Series with a trend and perhaps an anomaly, as rows to learn from, and how well a model describes those it never saw.

python demo.py rows FOLDER           writes FOLDER/train.jsonl and FOLDER/held-out.jsonl
python demo.py score MODEL FOLDER    asks MODEL about the held-out ones
"""

import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np

QUESTION = "What is it?"
TRENDS = ("rising", "falling", "flat")
ANOMALIES = ("nothing odd", "a spike", "a drop")


def series(trend, anomaly, rng):
    """Noise and a wave on a slope, at any level and scale; a spike or a drop is one sample far off the others."""
    count = int(rng.integers(40, 120))
    slope = {"rising": 1, "falling": -1, "flat": 0}[trend] * rng.uniform(2.5, 6)
    wave = rng.uniform(0, 0.5) * np.sin(np.linspace(0, rng.uniform(5, 40), count) + rng.uniform(0, 6))
    values = slope * np.linspace(-0.5, 0.5, count) + wave + rng.normal(0, rng.uniform(0.1, 0.4), count)
    if anomaly != ANOMALIES[0]:
        values[int(rng.integers(2, count - 2))] += (1 if "spike" in anomaly else -1) * rng.uniform(4, 7)
    return values * 10 ** rng.uniform(-2, 4) + rng.normal(0, 100)


def rows(count, seed):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        trend, anomaly = rng.choice(TRENDS), rng.choice(ANOMALIES)
        values = [float(f"{value:.6g}") for value in series(trend, anomaly, rng)]
        parts = [{"type": "timeseries", "timeseries": values}, {"type": "text", "text": QUESTION}]
        answer = f"{trend}, {anomaly}"
        yield {"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": answer}]}


def write(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, count, seed in (("train", 6000, 1), ("held-out", 200, 2)):
        text = "".join(json.dumps(row) + "\n" for row in rows(count, seed))
        (folder / f"{name}.jsonl").write_text(text)


def score(model, folder):
    """Share of held-out series whose trend, and whose anomaly, is named; of the model and of the best constant answer."""
    import watersmeet

    ws = watersmeet.load(model)
    found = [json.loads(line)["messages"] for line in (folder / "held-out.jsonl").read_text().splitlines()]
    truth = [answer["content"] for _, answer in found]
    told = [ws.ask(question["content"], max_new=24).text for question, _ in found]
    for kind, words in (("trend", TRENDS), ("anomaly", ANOMALIES)):
        right = [next(word for word in words if word in text) for text in truth]
        share = np.mean([word in text and text.count(word) == 1 for word, text in zip(right, told, strict=True)])
        constant = Counter(right).most_common(1)[0][1] / len(right)
        print(f"{kind}: {share:.2f} of {len(right)} named rightly, {constant:.2f} by the best constant answer")


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "rows":
        write(Path(sys.argv[2]))
    elif len(sys.argv) == 4 and sys.argv[1] == "score":
        score(sys.argv[2], Path(sys.argv[3]))
    else:
        sys.exit(__doc__)
