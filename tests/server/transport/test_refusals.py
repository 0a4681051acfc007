from __future__ import annotations

import pickle

import pytest

from loopkit.errors import ContextExceeded, ServerRefused
from loopkit.server.transport.refusals import refusal


@pytest.mark.parametrize(
    ("message", "prompt", "size"),
    [
        ("the request exceeds the available context size, try increasing it", None, None),
        ("request (14429 tokens) exceeds the available context size (8192 tokens), try increasing it", 14429, 8192),
        (
            "This model's maximum context length is 4097 tokens. However, you requested 5000 tokens (4000 in the messages, ...)",
            5000,
            4097,
        ),
        (
            "This model's maximum context length is 128000 tokens. However, your messages resulted in 130,001 tokens.",
            130001,
            128000,
        ),
        ("The input (9000 tokens) is longer than the model's context length (8192 tokens).", 9000, 8192),
        ("prompt is too long: 210000 tokens > 200000 maximum", 210000, 200000),
        ("The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).", 1200000, 1048576),
        ("The prompt is longer than the maximum model length of 4096", None, 4096),
        ("Trying to keep the first 5000 tokens when context length exceeded", None, None),
        ("the number of tokens to keep is greater than the context length", None, None),
    ],
)
@pytest.mark.parametrize("status", [200, 400, 500])
def test_a_context_error_is_known_by_its_message(message: str, prompt: int | None, size: int | None, status: int) -> None:
    error = refusal("http://host", status, '{"error":{"message":"' + message + '"}}')
    assert isinstance(error, ContextExceeded)
    assert (error.prompt_tokens, error.context_size) == (prompt, size)


@pytest.mark.parametrize(
    "body",
    [
        '{"error":{"type":"exceed_context_size_error","message":"?","n_prompt_tokens":9,"n_ctx":8}}',
        '{"error":{"code":"context_length_exceeded","message":"?"}}',
    ],
)
def test_a_context_error_is_known_by_its_type(body: str) -> None:
    assert isinstance(refusal("http://host", 400, body), ContextExceeded)


LATER = ". The server is not ready. Try again later"


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (500, b'{"error":{"message":"a\\nb","code":500}}', "http://host: HTTP 500: a b"),
        (400, b'{"detail":[{"msg":"x"}]}', 'http://host: HTTP 400: {"detail":[{"msg":"x"}]}'),
        (422, b'{"detail":"no such field"}', "http://host: HTTP 422: no such field"),
        (502, b"<html>\xff</html>", "http://host: HTTP 502: <html>\ufffd</html>" + LATER),
        (503, b"", "http://host: HTTP 503: no message" + LATER),
        (401, b'{"error":"no"}', "http://host: HTTP 401: no. Check that `api_key=` is the right key"),
        (200, b'{"error":{"code":403,"message":"no"}}', "http://host: HTTP 403: no. Check that `api_key=` is the right key"),
        (
            200,
            b'{"error":{"message":"no","code":429}}',
            "http://host: HTTP 429: no. Too many requests, or the quota is used up. Try again later",
        ),
        (500, b'{"error":{"message":"half \\ud83d"}}', "http://host: HTTP 500: half \ufffd"),
        (500, b'"' + b"x" * 1000 + b'"', 'http://host: HTTP 500: "' + "x" * 299 + "…"),
    ],
)
def test_a_refusal_is_one_line(status: int, body: bytes, said: str) -> None:
    error = refusal("http://host", status, body)
    assert isinstance(error, ServerRefused)
    assert str(error) == said
    assert str(pickle.loads(pickle.dumps(error))) == said
