"""The inputs of recordings: three texts, and prompts for greedy decoding.

All of them were written for this project. Each text has sixty to a hundred tokens in a large vocabulary.
"""

TEXTS = {
    "story": (
        "Once upon a time, there was a little boy named Tim. Tim had a red ball and a small brown dog. One day, they went to the "
        "park to play. The dog ran after the ball, but the ball rolled into the pond. Tim was sad and started to cry. Then a kind "
        "duck pushed the ball back to the shore. Tim smiled and said, \"Thank you, duck!\""
    ),
    "prose": (
        "The Arctic tern is a small seabird of the family Laridae, known for the longest migration of any animal. Each year it "
        "flies from its breeding grounds in the far north of Europe, Asia and North America to the edge of the Antarctic ice, and "
        "back again, a journey of about 70,000 kilometres. In 1982 a bird ringed on the Farne Islands reached Melbourne."
    ),
    "code": (
        "fn main() {\n    let names = [\"Zoë\", \"李雷\", \"Олег\"];\n    for (i, name) in names.iter().enumerate() {\n"
        "        println!(\"{i}: héllo, {name} 🐦\");\n    }\n}\n// 3.14 < π ≤ 22/7 — ça va?\n"
    ),
}

PROMPTS = {
    "story": "Once upon a time",
    "fact": "The capital of France is",
    "list": "1, 2, 3, 4, 5,",
}

CHATML = "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n"
