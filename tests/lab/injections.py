"""What costs a cache, done on purpose on the real server; each is a function of a `Lab` that says in ``truth`` what it did."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from loopkit.server.embedded.templates import tiny_template
from loopkit.server.llama_api import tokenize
from loopkit.server.opening import serve
from tests.lab.talking import Lab, Talk, Truth

ANSWERED = "{%- if message.content %}{{- message.content }}{%- endif %}"
DROPS_REASONING = (
    "{%- set ns = namespace(last=-1) %}{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}"
    "{%- endif %}{%- endfor %}"
    + tiny_template().replace(
        ANSWERED,
        "{%- if message.reasoning_content and loop.index0 > ns.last %}{{- '(' + message.reasoning_content + ')' }}{%- endif %}"
        + ANSWERED,
    )
)
MOODY = "{%- if mood %}{{- mood + '\\n' }}{%- endif %}" + tiny_template()


def system_edited(lab: Lab) -> None:
    with serve("tiny", slots=1) as server:
        talk = Talk(lab, server, "a", tools=lab.random.randint(0, 2)).some()
        words = talk.messages[0]["content"].split(" ")
        words[lab.random.randrange(len(words))] = "edited!"
        talk.messages[0]["content"] = " ".join(words)
        talk.ask(Truth(("system_changed",), "messages[0].content", 0))
        talk.some(1, 2)


def system_with_a_clock(lab: Lab) -> None:
    with serve("tiny", slots=1) as server:
        talk = Talk(lab, server, "a")
        text = talk.messages[0]["content"]
        talk.messages[0]["content"] = f"It is 07:31:05. {text}"
        talk.some()
        talk.messages[0]["content"] = f"It is 07:{lab.random.randint(32, 59)}:06. {text}"
        talk.ask(Truth(("system_changed",), "messages[0].content", 0))
        talk.some(1, 2)


def tools_shuffled(lab: Lab) -> None:
    with serve("tiny", slots=1) as server:
        talk = Talk(lab, server, "a", tools=3).some()
        talk.tools = talk.tools[1:] + talk.tools[:1]
        talk.ask(Truth(("tools_changed",), "tools", 0))
        talk.some(1, 2)


def history_edited(lab: Lab) -> None:
    with serve("tiny", slots=1) as server:
        talk = Talk(lab, server, "a").some(3, 5)
        at = lab.random.randrange(1, len(talk.messages) - 1)
        talk.messages[at]["content"] += " (edited)"
        talk.ask(Truth(("history_changed",), f"messages[{at}]", 0))
        talk.some(1, 2)


def history_cut(lab: Lab) -> None:
    with serve("tiny", slots=1) as server:
        talk = Talk(lab, server, "a").some(3, 5)
        del talk.messages[1:3]
        talk.ask(Truth(("history_changed",), "messages[1]", 0))
        talk.some(1, 2)


def cache_refused(lab: Lab) -> None:
    with serve("tiny", slots=1) as server:
        talk = Talk(lab, server, "a").some()
        talk.options["cache_prompt"] = False
        talk.ask(Truth(("options_changed",), "cache_prompt", 0))


def slot_changed(lab: Lab) -> None:
    with serve("tiny", slots=2) as server:
        talk = Talk(lab, server, "a").some()
        talk.slot = 1
        talk.ask(Truth(("options_changed",), "id_slot", 0))
        talk.some(1, 2)


def template_option_changed(lab: Lab) -> None:
    with serve("tiny", slots=1, template=MOODY) as server:
        talk = Talk(lab, server, "a")
        talk.options["chat_template_kwargs"] = {"mood": "calm"}
        talk.some()
        talk.options["chat_template_kwargs"] = {"mood": lab.random.choice(["cold", "wild"])}
        talk.ask(Truth(("options_changed",), "chat_template_kwargs", 0))
        talk.some(1, 2)


def reasoning_dropped(lab: Lab) -> None:
    with serve("tiny", slots=1, template=DROPS_REASONING) as server:
        talk = Talk(lab, server, "a", tools=1)
        call = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"place":"x"}'}}
        talk.messages += [
            {"role": "user", "content": lab.text() + "."},
            {"role": "assistant", "content": "", "reasoning_content": lab.text(5, 20), "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": lab.text()},
        ]
        talk.send()
        talk.ask(Truth(("template_rewrote",), "messages[2]"))
        talk.some(1, 2)


def arguments_reserialised(lab: Lab) -> None:
    with serve("tiny", slots=1, template=tiny_template(reserialise=True)) as server:
        talk = Talk(lab, server, "a", tools=1)
        talk.messages.append({"role": "user", "content": lab.text() + "?"})
        talk.send()
        at = len(talk.messages) - 2
        talk.send(Truth(("template_rewrote",), f"messages[{at}].tool_calls[0].function.arguments"))


def retokenised(lab: Lab) -> None:
    """A model is made to write one letter a token; the tokenizer takes them together."""
    with serve("smollm2", slots=1, context=1024, n_threads=1) as server:
        talk = Talk(lab, server, "a", size=8)
        letter = tokenize(server.wire, "h")[-1]
        talk.options |= {"max_tokens": lab.random.randint(7, 14), "logit_bias": [[letter, 200]]}
        talk.messages.append({"role": "user", "content": lab.text() + "."})
        talk.send()
        talk.ask(Truth(("retokenised",), "messages[2]"))


def arguments_edited(lab: Lab) -> None:
    with serve("tiny", slots=1) as server:
        talk = Talk(lab, server, "a", tools=1).some(1, 2)
        talk.ask(call=True)
        talk.some(1, 2)
        at, calling = next((at, each) for at, each in enumerate(talk.messages) if "tool_calls" in each)
        calling["tool_calls"][0]["function"]["arguments"] = '{"place":"elsewhere"}'
        talk.ask(Truth(("history_changed",), f"messages[{at}].tool_calls[0].function.arguments", 0))
        talk.some(1, 2)


def slot_taken(lab: Lab) -> None:
    with serve("tiny", slots=1, cache_ram_mib=0) as server:
        talk = Talk(lab, server, "a").some()
        Talk(lab, server, "b").some(1, 2)
        talk.ask(Truth(("slot_taken",), "session b"))
        talk.some(1, 2)


def slot_taken_unpinned(lab: Lab) -> None:
    with serve("tiny", slots=2, cache_ram_mib=0) as server:
        talk = Talk(lab, server, "a", slot=None).some()
        for name in ("b", "c"):
            Talk(lab, server, name, slot=None).some(1, 2)
        talk.ask(Truth(("slot_taken",), "session"))
        talk.some(1, 2)


def slot_taken_before_it_was_counted(lab: Lab) -> None:
    """Two processes in one slot: what stands there after an answer is the other's already."""
    with serve("tiny", slots=1, cache_ram_mib=0) as server:
        talk, other = Talk(lab, server, "a", size=60).some(), Talk(lab, server, "b", size=20)
        talk.messages.append({"role": "user", "content": lab.text() + "."})
        talk.send(then=other.ask)
        talk.ask(Truth(("slot_taken",), "session b"))


def slot_taken_after_it_was_counted(lab: Lab) -> None:
    """Two processes in one slot: the other's request comes between the counts and ours."""
    with serve("tiny", slots=1, cache_ram_mib=0) as server:
        talk, other = Talk(lab, server, "a").some(), Talk(lab, server, "b")
        talk.messages.append({"role": "user", "content": lab.text() + "."})
        talk.send(Truth(("slot_taken",), "session b"), first=other.ask)


def branched_with_host_cache(lab: Lab) -> None:
    with serve("tiny", slots=1, cache_ram_mib=64) as server:
        talk = Talk(lab, server, "a", size=80).some(3, 4)
        other = talk.branch("b")
        del other.messages[-2:]
        other.ask(Truth(()))
        talk.ask(Truth(("host_cache_rule",), "session b"))
        talk.some(1, 2)


def moved_out_of_host_cache(lab: Lab) -> None:
    """A branch uses a third of what the host cache holds, and takes it along."""
    with serve("tiny", slots=1, cache_ram_mib=64) as server:
        talk = Talk(lab, server, "a", size=60)
        branch = talk.branch("c")
        for _ in range(2):
            talk.messages.append({"role": "user", "content": lab.text(60, 70) + "."})
            talk.send()
        Talk(lab, server, "b").some(1, 2)
        branch.messages.append({"role": "user", "content": talk.messages[1]["content"][:60] + lab.text(150, 160)})
        branch.send(Truth(()))
        talk.ask(Truth(("host_cache_rule",), "session c"))


def too_large_for_host_cache(lab: Lab) -> None:
    with serve("tiny", slots=1, context=8192, cache_ram_mib=1) as server:
        talk = Talk(lab, server, "a", size=700).some(1, 2)
        Talk(lab, server, "b").some(1, 2)
        talk.ask(Truth(("evicted",), "host cache"))
        talk.some(1, 2)


def unified_and_pinned(lab: Lab) -> None:
    with serve("tiny", slots=2, kv_unified=True) as server:
        talk = Talk(lab, server, "a").some()
        Talk(lab, server, "b", slot=1).some(1, 2)
        talk.ask(Truth(("pinned_empty_slot",), "slot 0"))
        talk.some(1, 2)


def restarted(lab: Lab) -> None:
    with serve("tiny", slots=1) as server:
        talk = Talk(lab, server, "a").some()
    with serve("tiny", slots=1) as server:
        talk.move(server)
        if lab.random.random() < 0.5:
            Talk(lab, server, "b").some(1, 1)
        talk.ask(Truth(("server_restarted",), "counters"))
        talk.some(1, 2)


def restored(lab: Lab) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with serve("tiny-swa", slots=1, slot_dir=Path(folder)) as server:
            talk = Talk(lab, server, "a", size=100).some()
            server.save_slot(0, "a.bin")
        with serve("tiny-swa", slots=1, slot_dir=Path(folder)) as server:
            talk.move(server)
            put_back = server.restore_slot(0, "a.bin")
            talk.ask(Truth(("restored_without_checkpoints",), "restore"), restored=put_back)


def restored_of_before(lab: Lab) -> None:
    """A slot that was saved, and a conversation that went on: all of the file is used, and the restart costs the rest."""
    with tempfile.TemporaryDirectory() as folder:
        with serve("tiny", slots=1, slot_dir=Path(folder)) as server:
            talk = Talk(lab, server, "a").some(1, 2)
            server.save_slot(0, "a.bin")
            talk.some(1, 2)
        with serve("tiny", slots=1, slot_dir=Path(folder)) as server:
            talk.move(server)
            put_back = server.restore_slot(0, "a.bin")
            talk.ask(Truth(("server_restarted",), "counters"), restored=put_back)
            talk.some(1, 2)


def repeated_on_hybrid(lab: Lab) -> None:
    with serve("tiny-hybrid", slots=1) as server:
        talk = Talk(lab, server, "a").some()
        del talk.messages[-1:]
        talk.send(Truth(("no_checkpoint",), "memory"))


def interleaved_on_window(lab: Lab) -> None:
    with serve("tiny-swa", slots=1) as server:
        talk = Talk(lab, server, "a", size=100).some(2, 3)
        Talk(lab, server, "b", size=100).some(1, 1)
        talk.ask(Truth(("no_checkpoint",), "memory"))


def shifted(lab: Lab) -> None:
    with serve("tiny", slots=1, context=1024, ctx_shift=True) as server:
        talk = Talk(lab, server, "a", size=30)
        talk.options |= {"ignore_eos": True, "max_tokens": 1100}
        talk.messages.append({"role": "user", "content": lab.text()})
        talk.send()
        del talk.messages[-1]
        talk.send(Truth(("context_shifted",), "slot 0"))


def nothing(lab: Lab) -> None:
    """Two conversations with a slot each, calls and results, a new epoch, the same again: no loss."""
    with serve("tiny", slots=2) as server:
        one, two = Talk(lab, server, "a", tools=2), Talk(lab, server, "b", slot=1, tools=lab.random.randint(0, 3))
        for _ in range(2):
            one.some(1, 2)
            two.some(1, 2)
        one.epoch, one.request, one.messages = 1, 0, [{"role": "system", "content": lab.text()}]
        one.some(1, 2)
        del two.messages[-1]
        while two.messages[-1]["role"] == "assistant":
            del two.messages[-1]
        if not two.tools:
            two.send()


def nothing_with_host_cache(lab: Lab) -> None:
    with serve("tiny", slots=1, cache_ram_mib=64) as server:
        one, two = Talk(lab, server, "a"), Talk(lab, server, "b")
        for _ in range(2):
            one.some(1, 2)
            two.some(1, 2)


def edited_and_taken(lab: Lab) -> None:
    with serve("tiny", slots=1, cache_ram_mib=0) as server:
        talk = Talk(lab, server, "a").some(3, 4)
        Talk(lab, server, "b").some(1, 2)
        at = lab.random.randrange(1, len(talk.messages) - 1)
        talk.messages[at]["content"] += " (edited)"
        talk.ask(Truth(("history_changed", "slot_taken")))


def edited_and_restarted(lab: Lab) -> None:
    with serve("tiny", slots=1) as server:
        talk = Talk(lab, server, "a").some(3, 4)
    with serve("tiny", slots=1) as server:
        talk.move(server)
        at = lab.random.randrange(1, len(talk.messages) - 1)
        talk.messages[at]["content"] += " (edited)"
        talk.ask(Truth(("history_changed", "server_restarted")))


def edited_early_and_taken(lab: Lab) -> None:
    """So little of what the host cache holds is of use that it is not loaded."""
    with serve("tiny", slots=1, cache_ram_mib=64) as server:
        talk = Talk(lab, server, "a", size=20)
        for _ in range(3):
            talk.messages.append({"role": "user", "content": lab.text(60, 90) + "."})
            talk.send()
        Talk(lab, server, "b").some(1, 2)
        talk.messages[1]["content"] = "Edited: " + talk.messages[1]["content"]
        talk.ask(Truth(("history_changed", "host_cache_rule")))


def shuffled_and_emptied(lab: Lab) -> None:
    with serve("tiny", slots=2, kv_unified=True) as server:
        talk = Talk(lab, server, "a", tools=3).some()
        Talk(lab, server, "b", slot=1).some(1, 2)
        talk.tools = talk.tools[1:] + talk.tools[:1]
        talk.ask(Truth(("tools_changed", "pinned_empty_slot")))


def edited_on_hybrid(lab: Lab) -> None:
    with serve("tiny-hybrid", slots=1) as server:
        talk = Talk(lab, server, "a", size=60).some(3, 4)
        at = lab.random.randrange(1, len(talk.messages) - 2, 2)  # a user's: behind an answer there is a checkpoint
        talk.messages[at]["content"] += " (edited)"
        talk.ask(Truth(("history_changed", "no_checkpoint")))


Injection = Callable[[Lab], None]
ONE: list[Injection] = [
    system_edited,
    system_with_a_clock,
    tools_shuffled,
    history_edited,
    history_cut,
    cache_refused,
    slot_changed,
    template_option_changed,
    reasoning_dropped,
    arguments_reserialised,
    retokenised,
    arguments_edited,
    slot_taken,
    slot_taken_unpinned,
    slot_taken_before_it_was_counted,
    slot_taken_after_it_was_counted,
    branched_with_host_cache,
    moved_out_of_host_cache,
    too_large_for_host_cache,
    unified_and_pinned,
    restarted,
    restored,
    restored_of_before,
    repeated_on_hybrid,
    interleaved_on_window,
    shifted,
]
TWO: list[Injection] = [edited_and_taken, edited_early_and_taken, edited_and_restarted, shuffled_and_emptied, edited_on_hybrid]
NONE: list[Injection] = [nothing, nothing_with_host_cache]
