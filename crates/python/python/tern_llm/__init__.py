"""Language models on CPUs and NVIDIA GPUs: generate, chat, stream, embed, rerank.

>>> from tern_llm import Model
>>> model = Model("stories")  # a small model inside the package; or "smollm2", a GGUF file, "org/repo:Q4_K_M"
>>> answer = model.generate("Once upon a time", max_tokens=8, temperature=0)
>>> answer.text
', there was a little girl named Lily'
>>> for delta in model.stream("The little dog", max_tokens=4, temperature=0):
...     print(delta.text, end="")
 was very excited.

A model batches the requests of all threads and tasks. What it accepts and answers is what the server of the
command ``tern serve`` does, without a network: see ``Options`` for the parameters, and ``Model.openai`` for
whole bodies.
"""

from ._native import Error, LoadError, __version__
from .answer import Answer, Delta, Ranked, ToolCall
from .errors import RequestError
from .model import Model
from .options import LoadOptions, Options
from .stream import AsyncEvents, AsyncStream, Events, Stream

__all__ = [
    "Answer",
    "AsyncEvents",
    "AsyncStream",
    "Delta",
    "Error",
    "Events",
    "LoadError",
    "LoadOptions",
    "Model",
    "Options",
    "Ranked",
    "RequestError",
    "Stream",
    "ToolCall",
    "__version__",
]
