"""Tiny models with weights set by hand instead of trained, so that files and responses are the same on every machine.

Each byte of text is one token. The model answers ``Done.``. If the request has tools and the last message ends in ``?``, the
model calls the first tool with the shortest arguments that the server's grammar allows. ``numpy`` and ``gguf`` are imported only
when a model is written.

How the model works:

- Each dimension of the residual stream has a name (`_D`) or belongs to a named group. The embedding of a token contains a 12-bit
  code of the token. Tokens with a special role also have a dimension of their own.
- The first layer has four attention heads. The first detects a ``?`` just before the assistant's header. The second and third
  copy the codes of the previous token and of the token before that. The fourth detects whether the position is in the first
  tool's name.
- The second layer copies the tool's name. It looks in the name for the place after the two most recent tokens, and votes for the
  token there. If a pair of characters occurs twice in the name, it may choose the wrong place.
- The output matrix converts the dimensions to scores ("votes") of the next token.
"""

from __future__ import annotations

import math
from enum import IntEnum, auto
from pathlib import Path
from typing import Any, NamedTuple

from loopkit.server.embedded import tag_vocabulary
from loopkit.server.embedded.templates import CALL, CALL_END, END, END_OF_TEXT, START, TOOL, TOOLS, tiny_template

__all__ = ["KINDS", "write_tiny"]

_CONTROLS, _MARKS = [END_OF_TEXT, START, END], [CALL, CALL_END, TOOLS, TOOL]
_FIRST_BYTE = len(_CONTROLS)
_START, _END = 1, 2
_CALL, _CALL_END, _TOOLS, _TOOL = (_FIRST_BYTE + 256 + place for place in range(4))


class _D(IntEnum):
    """The named dimensions of the residual stream. ``CODE`` and the members after it are the first of several."""

    ONE = 0
    NEWLINE = auto()
    QUESTION = auto()
    ASKED = auto()  # set by the first layer if a question mark comes just before the assistant's header
    QUOTE = auto()
    COLON = auto()
    COMMA = auto()
    OPENING = auto()
    BRACE = auto()
    CALL_END = auto()
    TOOLS = auto()
    TOOL = auto()
    START = auto()
    NAME = auto()  # set by the first layer if this token is in the first tool's name, or just before it
    PLAIN = auto()  # set for all tokens without a dimension of their own
    CODELESS = auto()  # set for all tokens without a code
    FILL = auto()
    ANSWER = auto()  # first of several: one dimension for each character of the answer
    CODE = 24
    BACK1 = 36
    BACK2 = 48
    VOTE = 60


ANSWER = "Done."
_WIDTH, _BITS, _HEAD, _HEADS, _FEED = 80, 12, 40, 4, 8
_ROTATED = 7  # pairs of a head's dimensions that RoPE rotates, which measure distance; RoPE leaves the other pairs unchanged
_PERIODS = [10.0 ** (4 * pair / (_ROTATED - 1)) for pair in range(_ROTATED)]
_HEADER = 13  # tokens from the last token of a user's message to the end of the assistant's header
_BASE = 10000.0


class _Kind(NamedTuple):
    """Architecture and size of a tiny model."""

    architecture: str
    layers: int
    heads: int
    kv_heads: int


KINDS = {
    "tiny": _Kind("llama", 2, _HEADS, _HEADS),
    "tiny-tags": _Kind("llama", 2, _HEADS, _HEADS),
    "tiny-swa": _Kind("gemma3", 6, 2, 1),
    "tiny-hybrid": _Kind("lfm2", 4, 2, 2),
}


def _byte(character: str) -> int:
    return _FIRST_BYTE + ord(character)


def _byte_tokens() -> list[str]:
    """Return the character that represents each of the 256 bytes in GPT-2's vocabulary."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _further_tokens(name: str) -> dict[str, bool]:
    """Return the added tokens of a model; only ``tiny-tags`` has any. The value is True for a control token."""
    if name != "tiny-tags":
        return {}
    present = {*_CONTROLS, *_MARKS}
    tags = {tag: tag not in tag_vocabulary.USER_DEFINED for tag in tag_vocabulary.vocabulary() if tag not in present}
    return tags | dict.fromkeys(tag_vocabulary.ORDINARY, False)


def _code(byte: int) -> list[int]:
    """Return the code of an ASCII byte: its 7 low bits and 5 parity bits, each as 1 or -1. Two codes differ in at least 4."""
    data = [byte >> place & 1 for place in range(7)]
    columns = [7, 11, 13, 14, 19, 21, 22]  # distinct, each with three bits set
    parity = [sum(bit & column >> place for bit, column in zip(data, columns, strict=True)) & 1 for place in range(5)]
    return [2 * bit - 1 for bit in data + parity]


def _embeddings(np: Any, size: int) -> Any:
    """Return the embeddings of all tokens, one row per token. Each has the norm sqrt(80), so normalisation does not change it."""
    own = {
        _byte("\n"): _D.NEWLINE,
        _byte("?"): _D.QUESTION,
        _byte('"'): _D.QUOTE,
        _byte(":"): _D.COLON,
        _byte(","): _D.COMMA,
        _byte("{"): _D.OPENING,
        _byte("["): _D.OPENING,
        _byte("}"): _D.BRACE,
        _CALL_END: _D.CALL_END,
        _TOOLS: _D.TOOLS,
        _TOOL: _D.TOOL,
        _START: _D.START,
        **{_byte(character): _D.ANSWER + place for place, character in enumerate(ANSWER)},
    }
    table = np.zeros((size, _WIDTH), np.float32)
    table[:, _D.ONE], table[:, _D.FILL] = 4, 6
    for token in range(size):
        table[token, own.get(token, _D.PLAIN)] = 4
        if _FIRST_BYTE <= token < _FIRST_BYTE + 128:
            table[token, _D.CODE : _D.CODE + _BITS] = _code(token - _FIRST_BYTE)
        else:
            table[token, _D.CODELESS] = math.sqrt(_BITS)
    return table


def _votes(np: Any, size: int) -> Any:
    """Return the output matrix: how strongly each dimension (column) votes for each next token (row).

    The first column is the bias of each token, because the dimension ``ONE`` is set at every position.
    """
    table = np.zeros((size, _WIDTH), np.float32)
    table[:, _D.ONE] = -40
    for byte in range(33, 127):
        table[_FIRST_BYTE + byte, _D.ONE] = -2 - byte / 64  # a tie goes to the lower byte
    # The biases prefer to close a value as soon as the grammar allows it, and to write no white space.
    bias = {" ": -12, '"': 6, "}": 2, "]": 1, ",": 0, ".": -1.75, "0": -1.75, "f": -1.75}
    for character, vote in bias.items():
        table[_byte(character), _D.ONE] = vote
    table[_END, _D.ONE], table[_CALL, _D.ONE], table[_CALL_END, _D.ONE] = -1, -50, -8
    table[_CALL, _D.NEWLINE] = table[_CALL, _D.ASKED] = 40  # only both together exceed the bias and start a call
    table[_byte(ANSWER[0]), _D.NEWLINE] = 24
    for place, following in enumerate([*map(_byte, ANSWER[1:]), _END]):
        table[following, _D.ANSWER + place] = 24
    # A string without constraints is ".", repeated if the grammar demands more characters. A name also follows a quote, but
    # there the votes of the copied name are smaller.
    table[_byte("."), _D.QUOTE] = 60
    table[_byte("."), _D.ANSWER + ANSWER.index(".")] = 5
    table[_byte(" "), _D.COLON] = table[_byte(" "), _D.COMMA] = 24  # the separators of tojson
    table[_byte("}"), _D.OPENING] = table[_byte("]"), _D.OPENING] = 24
    table[_CALL_END, _D.BRACE] = table[_END, _D.CALL_END] = 24
    for byte in range(128):
        table[_FIRST_BYTE + byte, _D.VOTE : _D.VOTE + _BITS] = [6 * sign for sign in _code(byte)]
    return table


def _attention(np: Any, layer: int) -> dict[str, Any]:
    """Return the attention weights of one layer. A row of q, k and v is one dimension of a head; o writes the values back."""
    q, k, v = (np.zeros((_HEADS * _HEAD, _WIDTH), np.float32) for _ in range(3))
    o = np.zeros((_WIDTH, _HEADS * _HEAD), np.float32)
    bits = range(_BITS)

    def carry(head: int, what: int, to: int, count: int = 1) -> None:
        for place in range(count):
            v[head * _HEAD + place, what + place] = o[to + place, head * _HEAD + place] = 1

    still = 2 * _ROTATED
    if layer == 0:
        for head, distance in enumerate((_HEADER, 1, 2)):
            for pair, period in enumerate(_PERIODS):
                row = head * _HEAD + 2 * pair
                q[row, _D.ONE] = 5
                k[row, _D.ONE], k[row + 1, _D.ONE] = 5 * math.cos(distance / period), 5 * math.sin(distance / period)
        carry(0, _D.QUESTION, _D.ASKED)
        carry(1, _D.CODE, _D.BACK1, _BITS)
        carry(2, _D.CODE, _D.BACK2, _BITS)
        row = 3 * _HEAD + still  # this head attends to the end of the name, else to its beginning, else to a neutral token
        q[row, _D.ONE] = 10
        k[row, _D.START], k[row, _D.TOOLS], k[row, _D.TOOL] = 5, 10, 15
        carry(3, _D.TOOLS, _D.NAME)
    else:
        for bit in bits:
            for row, now, then in ((still + bit, _D.CODE, _D.BACK1), (still + _BITS + bit, _D.BACK1, _D.BACK2)):
                q[row, now + bit], k[row, then + bit] = 12, 6
        # Each equal bit scores 72: 1,728 for two equal tokens, at most 1,152 otherwise. The name adds 1,600. The neutral token
        # scores 2,560. Keys in the name are divided by their norm of 1.22, so they score 2,728 (equal) or at most 2,256.
        row = still + 2 * _BITS
        q[row, _D.ONE], k[row, _D.NAME] = 20, 5
        q[row + 1, _D.ONE], k[row + 1, _D.START] = 20, 8
        carry(0, _D.CODE, _D.VOTE, _BITS)
    return {"attn_q": q, "attn_k": k, "attn_v": v, "attn_output": o}


def _tensors(np: Any, kind: _Kind, size: int) -> dict[str, Any]:
    """Return all weights of a model by name. Weights that the model does not need have no effect: norms are 1, others are 0."""
    wide, feed = _WIDTH, _FEED
    heads, kv = kind.heads * _HEAD, kind.kv_heads * _HEAD
    shared = {
        "attn_norm": (wide,),
        "ffn_norm": (wide,),
        "ffn_gate": (feed, wide),
        "ffn_up": (feed, wide),
        "ffn_down": (wide, feed),
    }
    attention = {"attn_q": (heads, wide), "attn_k": (kv, wide), "attn_v": (kv, wide), "attn_output": (wide, heads)}
    norms = {"attn_q_norm": (_HEAD,), "attn_k_norm": (_HEAD,)}
    convolution = {"shortconv.conv": (wide, 3), "shortconv.in_proj": (3 * wide, wide), "shortconv.out_proj": (wide, wide)}
    kinds: dict[str, list[dict[str, tuple[int, ...]]]] = {
        "llama": [{**shared, **attention}],
        "gemma3": [{**shared, **attention, **norms, "post_attention_norm": (wide,), "post_ffw_norm": (wide,)}],
        "lfm2": [{**shared, **convolution}, {**shared, **attention, **norms}],
    }
    layers = kinds[kind.architecture]
    tensors = {"token_embd": _embeddings(np, size), "output": _votes(np, size)}
    tensors["token_embd_norm" if kind.architecture == "lfm2" else "output_norm"] = np.ones(wide, np.float32)
    for place in range(kind.layers):
        for name, shape in layers[place % len(layers)].items():
            tensors[f"blk.{place}.{name}"] = (np.ones if name.endswith("norm") else np.zeros)(shape, np.float32)
        if kind.architecture == "llama":
            tensors |= {f"blk.{place}.{name}": tensor for name, tensor in _attention(np, place).items()}
    if kind.architecture == "llama":
        natural = [_BASE ** (-2 * pair / _HEAD) for pair in range(_HEAD // 2)]
        periods = _PERIODS + [1e12] * (_HEAD // 2 - _ROTATED)
        tensors["rope_freqs"] = np.array([a * b for a, b in zip(natural, periods, strict=True)], np.float32)
    return tensors


def write_tiny(path: Path, name: str = "tiny") -> None:
    """Write a tiny model as a GGUF file. The file has about 0.5 MB, for ``tiny-tags`` 2 MB.

    Parameters
    ----------
    path : pathlib.Path
        Path of the file to write or overwrite.
    name : str
        One of:

        - ``tiny``: a llama model with a plain KV cache.
        - ``tiny-tags``: like ``tiny``, with the control tags of all known families in its vocabulary.
        - ``tiny-swa``: a gemma3 model with a sliding window of 64 tokens. It answers, but calls no tools.
        - ``tiny-hybrid``: an lfm2 model with a recurrent state, which cannot be truncated. It answers, but calls no tools.
    """
    import gguf
    import numpy as np

    kind = KINDS[name]
    kinds = gguf.TokenType
    further = _further_tokens(name)
    tokens = [*_CONTROLS, *_byte_tokens(), *_MARKS, *further]
    types = [kinds.CONTROL] * len(_CONTROLS) + [kinds.NORMAL] * 256 + [kinds.USER_DEFINED] * len(_MARKS)
    tensors = _tensors(np, kind, len(tokens))
    writer = gguf.GGUFWriter(path, kind.architecture)
    writer.add_name(name)
    writer.add_context_length(32768)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(kind.layers)
    writer.add_feed_forward_length(_FEED)
    writer.add_head_count(kind.heads)
    writer.add_head_count_kv([0, kind.kv_heads] * 2 if kind.architecture == "lfm2" else kind.kv_heads)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(_HEAD)
    writer.add_rope_freq_base(_BASE)
    if kind.architecture == "lfm2":
        writer.add_shortconv_l_cache(3)
    else:
        writer.add_key_length(_HEAD)
        writer.add_value_length(_HEAD)
    if kind.architecture == "gemma3":
        writer.add_sliding_window(64)
    writer.add_vocab_size(len(tokens))
    writer.add_file_type(0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types + [kinds.CONTROL if control else kinds.USER_DEFINED for control in further.values()])
    writer.add_token_merges(["! !"])  # unused; the format requires one
    writer.add_bos_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_eos_token_id(_END)
    writer.add_add_bos_token(False)  # noqa: FBT003  # gguf's parameter has no usable name
    writer.add_chat_template(tiny_template())
    for tensor_name, tensor in tensors.items():
        writer.add_tensor(f"{tensor_name}.weight", tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
