"""Writer of the sample log of Inspect in ``data/foreign/inspect``. Run it in the root, without arguments. It needs inspect_ai.

Inspect writes the log with its mock model and the counts below. The table beside it was written by hand.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from inspect_ai import Task, eval  # the task's own name for it
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageSystem, ChatMessageUser, ModelOutput, ModelUsage, get_model
from inspect_ai.solver import Generate, Solver, TaskState, solver

HERE = Path(__file__).parent / "inspect"
# input, cached, written, output, total; in the last two the input includes cached tokens, as in 2025, or no cache is reported
COUNTS = [(10, 0, 5000, 20, 5030), (12, 5000, 300, 20, 5332), (8, 0, 5400, 20, 5428), (1568, 1024, None, 10, 1578)]
COUNTS += [(1700, None, None, 10, 1710)]


def answers() -> list[ModelOutput]:
    """Return the responses of the mock model."""
    responses = []
    for uncached, cached, written, output, total in COUNTS:
        answer = ModelOutput.from_content("mockllm/model", "Well.")
        more = {"input_tokens_cache_read": cached, "input_tokens_cache_write": written}
        answer.usage = ModelUsage(input_tokens=uncached, output_tokens=output, total_tokens=total, **more)
        responses.append(answer)
    return responses


@solver
def talk() -> Solver:
    """Ask three questions, with a new system prompt before the third. Inspect's own cache answers a repeated one."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        state.messages.insert(0, ChatMessageSystem(id="system", content="You are A."))
        state = await generate(state, cache=state.sample_id == "plain")
        state.messages.append(ChatMessageUser(content="Two."))
        state = await generate(state)
        if state.sample_id == "plain":
            await get_model().generate(state.messages[:2], cache=True)
            return state
        state.messages[0] = ChatMessageSystem(id="system", content="You are B.")
        state.messages.append(ChatMessageUser(content="Three."))
        return await generate(state)

    return solve


def main() -> None:
    """Write the log."""
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        os.environ["INSPECT_CACHE_DIR"] = directory
        samples = [Sample(input="One.", target="x", id="talk"), Sample(input="Uno.", target="x", id="plain")]
        model = get_model("mockllm/model", custom_outputs=answers())
        task = Task(dataset=samples, solver=talk(), name="talk")
        log = eval(task, model=model, log_dir=f"{directory}/logs", display="none", max_samples=1, log_model_api=True)[0]
        HERE.mkdir(exist_ok=True)
        shutil.copy(log.location.removeprefix("file://"), HERE / "talk.eval")


if __name__ == "__main__":
    main()
