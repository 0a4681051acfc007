"""Make the baseline fixture whose hash stands as a literal in ``tests/test_baseline.py``.

``python data/baseline/make_baseline.py`` wrote ``fixture.json`` beside this file, once.
It holds what an encoder could write in another way: keys out of order, floats, characters beyond ASCII, empty objects.
"""

from __future__ import annotations

from pathlib import Path

from loopkit.contract.baseline import Baseline
from loopkit.contract.messages import FunctionSchema, ToolSchema


def fixture() -> Baseline:
    """The baseline."""
    parameters = {
        "type": "object",
        "properties": {
            "z": {"type": "number", "minimum": 0.1, "maximum": 1e22, "default": -0.0},
            "a": {"type": "string", "enum": ["é", "😀", '"\\/', "\u2028\x7f\t\n"]},
            "nothing": {},
        },
        "required": ["z", "a"],
        "additionalProperties": False,
    }
    return Baseline(
        "Be brief.\n\nWhat is known: naïve café, 日本語, 👩‍🔬.",
        (
            ToolSchema(function=FunctionSchema(name="weigh", description="Weigh \u00bd of it.", parameters=parameters)),
            ToolSchema(function=FunctionSchema(name="rest", parameters={"type": "object", "properties": {}}, strict=True)),
        ),
    )


if __name__ == "__main__":
    Path(__file__).with_name("fixture.json").write_bytes(fixture().to_json())
