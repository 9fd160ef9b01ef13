"""Probabilities of labels by transformers: what crates/tern/tests/decisions.rs compares with.

    pip install torch transformers gguf accelerate
    python decisions.py FOLDER_OF_TEST_DATA > ../../../crates/tern/tests/decisions.json

The weights of the GGUF file as f32. Each case has the prompt's text as the chat template renders it.
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

FILE = "smollm2-135m-instruct-q4_1.gguf"
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
STATE = "The parcel arrived on Tuesday. It was empty, and nobody answers the telephone."
YES_NO = [["yes", "Yes", "YES", " yes", " Yes", " YES"], ["no", "No", "NO", " no", " No", " NO"]]

CASES = [
    {
        "question": "Statement or question: The parcel was full.\n\nIs it true? Answer with yes or no only.",
        "labels": YES_NO,
    },
    {
        "question": "Question: Which team should answer?\nOptions:\nA: billing\nB: shipping\nC: sales\n\n"
        "Answer with the label of one option only.",
        "labels": [[label, " " + label] for label in "ABC"],
    },
    {
        "question": "Question: How upset is the customer?\nLevels:\n0: calm\n1: annoyed\n2: furious\n\n"
        "Answer with the number of one level only.",
        "labels": [[label, " " + label] for label in "012"],
    },
]


def main():
    folder = sys.argv[1]
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=FILE)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=FILE, dtype=torch.float32).eval()
    for case in CASES:
        text = (
            f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{STATE}\n\n{case['question']}"
            "<|im_end|>\n<|im_start|>assistant\n"
        )
        tokens = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
        with torch.no_grad():
            logprobs = model(tokens).logits[0, -1].double().log_softmax(-1)
        # the spellings that are one token where the answer begins
        masses = []
        for spellings in case["labels"]:
            ids = [tokenizer(spelling, add_special_tokens=False).input_ids for spelling in spellings]
            masses.append(sum(logprobs[one[0]].exp().item() for one in ids if len(one) == 1))
        case["label_mass"] = sum(masses)
        case["probabilities"] = [mass / sum(masses) for mass in masses]
        case["tokens"] = tokens.shape[1]
    json.dump({"file": FILE, "state": STATE, "cases": CASES}, sys.stdout, indent=1)
    print()


main()
