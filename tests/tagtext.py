"""Control tags for tests, built from pieces, and comparisons that never show a text that may hold one.

A model may read a test file or a failure message, so no tag is spelled out in either. ``P A F S G GE`` build the usual forms,
``FAMILY_TAGS`` holds every tag that the default set covers, by family.
"""

from __future__ import annotations

from loopkit.neutralise import DEFAULT, Tags, neutralise

LT, GT, BAR, WIDE_BAR, LSB, RSB = "<", ">", "|", "\uff5c", "[", "]"


def P(x: str) -> str:
    return LT + BAR + x + BAR + GT


def F(x: str) -> str:
    """Full-width bars; a blank becomes U+2581."""
    return LT + WIDE_BAR + x.replace(" ", "\u2581") + WIDE_BAR + GT


def A(x: str) -> str:
    return LT + x + GT


def S(x: str) -> str:
    return LSB + x + RSB


def G(x: str) -> str:
    return LT + BAR + x + GT


def GE(x: str) -> str:
    return LT + x + BAR + GT


def MNS(x: str) -> str:
    return RSB + LT + RSB + x + LSB + GT + LSB


MBOS = RSB + "~b" + RSB
MBOD = RSB + "~!b" + LSB
MEOS = LSB + "e~" + LSB
QUOTE = P('"')
DSML = WIDE_BAR + "DSML" + WIDE_BAR

_SLASHED = ("", "/")
_PIPED = {
    "chatml": "im_start im_end endoftext extra_0 extra_204 im_sep",
    "qwen": "object_ref_start object_ref_end box_start box_end quad_start quad_end vision_start vision_end vision_pad image_pad "
    "video_pad audio_start audio_end audio_pad fim_prefix fim_suffix fim_middle fim_pad repo_name file_sep",
    "llama": "begin_of_text end_of_text start_header_id end_header_id eot_id eom_id python_tag finetune_right_pad_id "
    "reserved_special_token_0 reserved_special_token_250 header_start header_end eot eom step python_start python_end "
    "image_start image_end image patch tile_x_separator tile_y_separator reasoning_thinking_start reasoning_thinking_end",
    "phi": "system user assistant end placeholder1 placeholder6 dummy_12 tool /tool tool_call /tool_call tool_response",
    "deepseek": "User Assistant EOT",
    "glm": "observation begin_of_image end_of_image begin_of_transcription code_prefix code_middle code_suffix",
    "harmony": "start message channel constrain return call startoftext endofprompt reserved_200017",
    "command-r": "START_OF_TURN_TOKEN END_OF_TURN_TOKEN USER_TOKEN CHATBOT_TOKEN SYSTEM_TOKEN USER_0_TOKEN EXTRA_9_TOKEN "
    "GOOD_TOKEN START_THINKING END_THINKING START_ACTION END_ACTION START_TOOL_RESULT START_RESPONSE END_TEXT IMG_PATCH",
    "kimi": "im_system im_user im_assistant im_middle tool_calls_section_begin tool_calls_section_end tool_call_begin "
    "tool_call_end tool_call_argument_begin media_start media_content media_pad open close sep end_of_msg kimi_image_placeholder",
    "granite": "start_of_role end_of_role start_of_cite end_of_cite",
    "lfm": "tool_list_start tool_list_end tool_response_start",
    "apriel": "begin_user begin_assistant begin_tool_result begin_content content tool_result",
    "ernie": "begin_of_sentence end_of_sentence IMAGE_START IMAGE_END",
    "jamba": "bom pad",
    "internlm": "plugin interpreter action_start action_end Bot",
    "falcon": "prefix suffix middle",
    "yi": "Human",
    "others": "system_start developer_end inner_prefix tools_suffix tool_response:id tool_call:name tools:begin "
    "calls flush role_sep message_sep function_call System Tool role_end userprompt endofuserprompt separator turn_end "
    "plamo:op plamo:eos think video",
}
_WIDE_PIPED = {
    "deepseek": "begin of sentence;end of sentence; pad ;User;Assistant;tool calls begin;tool call end;tool sep;"
    "tool outputs begin;fim hole;begin of repo name;end of file;latest_reminder;place holder no 0;place holder no 799",
    "hunyuan": "hy_User;hy_Assistant;hy_begin of sentence;hy_eos;hy_EOT;hy_place holder no 7",
    "spark": "start of sentence",
}
_ANGLED = {
    "llama": "s /s unk",
    "gemma": "start_of_turn end_of_turn start_of_image end_of_image bos eos pad 2mass unused0 unused98",
    "glm": "sop eop think /think tool_call /tool_call tool_response arg_key /arg_key arg_value /arg_value",
    "command-r": "BOS_TOKEN EOS_TOKEN EOP_TOKEN MASK_TOKEN",
    "minimax": "begin_of_document beginning_of_sentence end_of_sentence minimax:tool_call /minimax:tool_call mm:think",
    "hunyuan": "tool_calls tool_responses tool_sep tool_call:opensource /think:opensource",
    "nemotron": "SPECIAL_0 SPECIAL_999 AVAILABLE_TOOLS /AVAILABLE_TOOLS TOOLCALL /TOOLCALL TOOL_RESPONSE extra_id_0",
    "minicpm": "tool_def_sep",
    "seed": "seed:bos seed:eos seed:think /seed:think seed:tool_call seed:cot_budget_reflect",
    "internlm": "eoh eoa",
    "muse": "atem:function_calls /atem:function_calls",
    "deepseek": "tool_result tool_results /tool_result",
    "fim": "fim_prefix fim-prefix fim_suffix fim-suffix fim_middle fim-middle fim_pad fim_repo file_sep",
    "media": "__media__ __image__ __media_0123456789abcdefABCDEF0123456789__",
    "filler": "reserved_7",
}
_SQUARED = {
    "mistral": "INST /INST SYSTEM_PROMPT /SYSTEM_PROMPT AVAILABLE_TOOLS /AVAILABLE_TOOLS TOOL_CALLS TOOL_RESULTS /TOOL_RESULTS "
    "TOOL_CONTENT CALL_ID THINK /THINK MODEL_SETTINGS /MODEL_SETTINGS IMG_BREAK IMG_END BEGIN_AUDIO STREAMING_PAD STREAMING_WORD",
    "gemma": "@BOS@",
    "glm": "gMASK sMASK",
    "kimi": "BOS EOS EOT",
}
_ONE_SIDED = "turn tool image audio tool_call tool_response channel"


def _families() -> dict[str, list[str]]:
    tags: dict[str, list[str]] = {}

    def add(family: str, *more: str) -> None:
        tags.setdefault(family, []).extend(more)

    for build, table, between in ((P, _PIPED, " "), (F, _WIDE_PIPED, ";"), (A, _ANGLED, " "), (S, _SQUARED, " ")):
        for family, names in table.items():
            add(family, *map(build, names.split(between)))
    add("gemma", *map(G, _ONE_SIDED.split()), *map(GE, _ONE_SIDED.split()), QUOTE)
    add("minimax", MBOS, MBOD, MEOS, *map(MNS, ("minimax", "image", "video", "start of image", "end of image")))
    add("deepseek", DSML, LT + "dsml:", LT + "/dsml:")
    add(
        "llama",
        *(LT + A(slash + "SYS") + GT for slash in _SLASHED),
        *("\u2581" + A(name) for name in ("PRE", "SUF", "MID", "EOT")),
    )
    falcon = "TITLE ABSTRACT INTRODUCTION SUMMARY COMMENT ANSWER QUESTION DOMAIN PREFIX SUFFIX MIDDLE"
    add("falcon", *(GT * 2 + name + LT * 2 for name in falcon.split()))
    add("olmo", *(BAR * 3 + name + BAR * 3 for name in ("IP_ADDRESS", "EMAIL_ADDRESS", "PHONE_NUMBER")))
    add("exaone", *(S(BAR + name + BAR) for name in ["system", "user", "assistant", "tool", "endofturn"]))
    return tags


FAMILY_TAGS: dict[str, list[str]] = _families()
ALL_TAGS: list[str] = sorted({tag for tags in FAMILY_TAGS.values() for tag in tags})


def assert_same_text(got: str, want: str, case: object) -> None:
    """Fail with the case and the place where two texts part, never with the texts."""
    __tracebackhide__ = True
    if got != want:
        pairs = enumerate(zip(got, want))
        offset = next((at for at, (left, right) in pairs if left != right), min(len(got), len(want)))
        raise AssertionError(
            f"{case}: the texts part at character {offset} of {len(got)} and {len(want)} (not shown: it may hold a tag)"
        )


def assert_absent(part: str, text: str, case: object) -> None:
    """Fail with the case and the place when ``text`` holds ``part``, never with either."""
    __tracebackhide__ = True
    if (offset := text.find(part)) >= 0:
        raise AssertionError(f"{case}: a tag stands at character {offset} of {len(text)} (not shown: it may hold a tag)")


def entity(char: str) -> str:
    return {LT: "&lt;", GT: "&gt;"}.get(char) or f"&#{ord(char)};"


def written(tag: str) -> str:
    """What a lone tag should become: its angle brackets, else its square ones, else its first character as entities."""
    for brackets in (LT + GT + "\uff1c\uff1e\ufe64\ufe65", LSB + RSB):
        if set(brackets) & set(tag):
            return "".join(entity(char) if char in brackets else char for char in tag)
    return entity(tag[0]) + tag[1:]


def assert_untouched(text: str, case: object, tags: Tags = DEFAULT) -> None:
    """Fail when neutralising makes another object of ``text``."""
    __tracebackhide__ = True
    got = neutralise(text, tags)
    assert_same_text(got, text, case)
    same = got is text
    assert same, f"{case}: an equal text, but not the same object"
