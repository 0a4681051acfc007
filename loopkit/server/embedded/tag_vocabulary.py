"""The control tags of all known model families, built from pieces: data for ``tiny-tags`` and for the tests.

They are built from pieces so that this source does not spell out a tag. The code that neutralises tags does not use this module:
the tests compare that code with this independent list.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["BEYOND", "FAMILIES", "ORDINARY", "USER_DEFINED", "vocabulary"]

_LT, _GT, _BAR, _WIDE_BAR, _LSB, _RSB = "<", ">", "|", "\uff5c", "[", "]"


def piped(x: str) -> str:
    return _LT + _BAR + x + _BAR + _GT


def wide_piped(x: str) -> str:
    """Return a tag with full-width bars. Each space becomes U+2581, as in vocabularies."""
    return _LT + _WIDE_BAR + x.replace(" ", "\u2581") + _WIDE_BAR + _GT


def angled(x: str) -> str:
    return _LT + x + _GT


def squared(x: str) -> str:
    return _LSB + x + _RSB


def left_piped(x: str) -> str:
    return _LT + _BAR + x + _GT


def right_piped(x: str) -> str:
    return _LT + x + _BAR + _GT


def minimax(x: str) -> str:
    return _RSB + _LT + _RSB + x + _LSB + _GT + _LSB


MBOS, MBOD, MEOS = _RSB + "~b" + _RSB, _RSB + "~!b" + _LSB, _LSB + "e~" + _LSB
QUOTE = piped('"')
DSML = _WIDE_BAR + "DSML" + _WIDE_BAR

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
    "glm": "observation begin_of_image end_of_image begin_of_video end_of_video begin_of_audio end_of_audio "
    "begin_of_transcription end_of_transcription code_prefix code_middle code_suffix",
    "harmony": "start message channel constrain return call startoftext endofprompt reserved_200017",
    "command-r": "START_OF_TURN_TOKEN END_OF_TURN_TOKEN USER_TOKEN CHATBOT_TOKEN SYSTEM_TOKEN USER_0_TOKEN EXTRA_9_TOKEN "
    "GOOD_TOKEN BAD_TOKEN YES_TOKEN NO_TOKEN START_THINKING END_THINKING START_ACTION END_ACTION START_TOOL_RESULT "
    "END_TOOL_RESULT START_RESPONSE END_RESPONSE START_TEXT END_TEXT IMG_PATCH",
    "kimi": "im_system im_user im_assistant im_middle tool_calls_section_begin tool_calls_section_end tool_call_begin "
    "tool_call_end tool_call_argument_begin media_start media_content media_pad media_end open close sep end_of_msg "
    "kimi_image_placeholder",
    "granite": "start_of_role end_of_role start_of_cite end_of_cite",
    "lfm": "tool_list_start tool_list_end tool_call_start tool_response_start tool_response_end",
    "bielik": "function_list function_output",
    "apriel": "begin_user begin_assistant begin_tool_result begin_content content tool_result",
    "ernie": "begin_of_sentence end_of_sentence IMAGE_START IMAGE_END",
    "jamba": "bom pad",
    "internlm": "plugin interpreter action_start action_end Bot",
    "falcon": "prefix suffix middle",
    "yi": "Human",
    "others": "system_start system_end developer_start developer_end user_start user_end assistant_start assistant_end "
    "inner_prefix inner_suffix tools_prefix tools_suffix begin tool_response:id tool_response:name tool_response:result "
    "tool_response:begin tool_response:end tool_call:name tools:begin tools:end calls flush role_sep message_sep function_call "
    "System Tool role_end userprompt endofuserprompt separator role_start turn_end plamo:op plamo:eos "
    "think video img media_begin",
}
_WIDE_PIPED = {
    "deepseek": "begin of sentence;end of sentence; pad ;User;Assistant;tool calls begin;tool calls end;tool call begin;"
    "tool call end;tool sep;tool outputs begin;tool outputs end;tool output begin;tool output end;fim hole;fim begin;fim end;"
    "begin of repo name;end of file;begin sys;latest_reminder;action;query;place holder no 0;place holder no 799",
    "hunyuan": "hy_User;hy_Assistant;hy_begin of sentence;hy_end of sentence;hy_eos;hy_EOT;hy_fim begin;hy_place holder no 7",
    "spark": "start of sentence",
}
_ANGLED = {
    "llama": "s /s unk",
    "gemma": "start_of_turn end_of_turn start_of_image end_of_image bos eos pad 2mass unused0 unused98",
    "glm": "sop eop think /think tool_call /tool_call tool_response /tool_response arg_key /arg_key arg_value /arg_value",
    "command-r": "BOS_TOKEN EOS_TOKEN EOP_TOKEN MASK_TOKEN",
    "minimax": "begin_of_document beginning_of_sentence end_of_sentence minimax:tool_call /minimax:tool_call mm:think /mm:think",
    "hunyuan": "tool_calls /tool_calls tool_responses /tool_responses tool_sep tool_call:opensource /think:opensource",
    "nemotron": "SPECIAL_0 SPECIAL_11 SPECIAL_999 AVAILABLE_TOOLS /AVAILABLE_TOOLS TOOLCALL /TOOLCALL TOOL_RESPONSE "
    "/TOOL_RESPONSE extra_id_0",
    "minicpm": "tool_def_sep",
    "seed": "seed:bos seed:eos seed:pad seed:think /seed:think seed:tool_call /seed:tool_call seed:cot_budget_reflect",
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
_BEYOND_ANGLED = {
    "qwen": "tts_pad tts_text_bos tts_text_eod tts_text_bos_single tools /tools",
    "gemma": "mask image_soft_token",
    "command-r": "PAD UNK CLS SEP results /results",
    "hunyuan": "answer /answer",
    "ernie": "mask:0 mask:7",
    "jamba": "documents active_output_modes",
    "minimax": "response /response",
    "deepseek": "result /result function_results /function_results",
    "others": "role /role system /system user /user assistant /assistant sep REKA_IMG_TOKEN /tool_output 用户 AI",
    "fim": "PRE SUF MID EOT repo_name reponame filename gh_stars",
    "starcoder": "pr pr_title pr_diff_hunk jupyter_start jupyter_code issue_start issue_closed commit_before "
    "NAME EMAIL KEY PASSWORD",
    "media": "image img /img video slice vision sound global-img fake_token_around_image im_patch",
}
_BEYOND_SQUARED = {
    "mistral": "ARGS IMG AUDIO TRANSCRIBE PREFIX MIDDLE SUFFIX",
    "glm": "MASK",
    "kimi": "PAD UNK",
    "yandex": "SEP",
    "filler": "PAD151645",
}
_USER_ANGLED = "think tool_call tool_response tool_calls tool_responses arg_key arg_value answer"
_NUMBERED: tuple[tuple[Callable[[str], str], str, int], ...] = (
    (piped, "extra_", 205),
    (piped, "reserved_special_token_", 251),
    (piped, "reserved_", 20),
    (wide_piped, "place holder no ", 800),
    (angled, "unused", 99),
    (angled, "SPECIAL_", 100),
    (angled, "extra_id_", 20),
    (squared, "PAD", 20),
)
_Build = tuple[Callable[[str], str], dict[str, str], str]


def _built(*tables: _Build) -> dict[str, list[str]]:
    tags: dict[str, list[str]] = {}
    for build, table, between in tables:
        for family, names in table.items():
            tags.setdefault(family, []).extend(map(build, names.split(between)))
    return tags


def _families() -> dict[str, list[str]]:
    tags = _built((piped, _PIPED, " "), (wide_piped, _WIDE_PIPED, ";"), (angled, _ANGLED, " "), (squared, _SQUARED, " "))
    tags["gemma"] += [*map(left_piped, _ONE_SIDED.split()), *map(right_piped, _ONE_SIDED.split()), QUOTE]
    tags["minimax"] += [MBOS, MBOD, MEOS, *map(minimax, ("minimax", "image", "video", "start of image", "end of image"))]
    tags["deepseek"] += [DSML, _LT + "dsml:", _LT + "/dsml:"]
    tags["llama"] += [_LT + angled(slash + "SYS") + _GT for slash in _SLASHED]
    tags["llama"] += ["\u2581" + angled(name) for name in ("PRE", "SUF", "MID", "EOT")]
    falcon = "TITLE ABSTRACT INTRODUCTION SUMMARY COMMENT ANSWER QUESTION DOMAIN PREFIX SUFFIX MIDDLE"
    tags["falcon"] += [_GT * 2 + name + _LT * 2 for name in falcon.split()]
    tags["olmo"] = [_BAR * 3 + name + _BAR * 3 for name in ("IP_ADDRESS", "EMAIL_ADDRESS", "PHONE_NUMBER")]
    tags["exaone"] = [squared(_BAR + name + _BAR) for name in ("system", "user", "assistant", "tool", "endofturn")]
    return tags


def _beyond() -> dict[str, list[str]]:
    tags = _built((angled, _BEYOND_ANGLED, " "), (squared, _BEYOND_SQUARED, " "))
    tags["deepseek"].append(_LT + _BAR + "/table" + _GT + _BAR)
    return tags


FAMILIES = _families()
"Tags that `neutralise` recognises by default, by model family. Of a numbered series, only some members are listed."
BEYOND = _beyond()
"Tags that `neutralise` leaves unchanged by default, by model family, because ordinary text often contains the same spelling."
USER_DEFINED = frozenset(
    [
        *(angled(slash + name) for name in _USER_ANGLED.split() for slash in _SLASHED),
        *map(piped, ("start", "channel", "message", "constrain")),
        *(build(name) for build in (left_piped, right_piped) for name in ("tool_call", "tool_response", "channel")),
        *map(wide_piped, ("tool calls begin", "tool calls end", "tool sep", "User", "Assistant")),
        *(
            angled("tool_sep"),
            QUOTE,
            DSML,
            _LT + "dsml:",
            _LT + "/dsml:",
            _LT + _BAR + "/table" + _GT + _BAR,
            squared("PAD151645"),
        ),
    ]
)
"Tags that are added tokens, but not marked as special. A server always converts them to tokens, without ``parse_special``, too."
ORDINARY = (
    "/think",
    "/no_think",
    "  ",
    "    ",
    "\n\n",
    "\t\t",
    *map(angled, ("table", "/table", "td", "h1", "strong", "code", "/code")),
)
"Added tokens of known vocabularies that are not control tags: white space, HTML tags and words."


def vocabulary() -> list[str]:
    """Return all tags of all families.

    Returns
    -------
    list of str
        The tags, sorted and without duplicates. Numbered series are complete.
    """
    numbered = [build(f"{name}{number}") for build, name, count in _NUMBERED for number in range(count)]
    return sorted({*numbered, *(tag for table in (FAMILIES, BEYOND) for tags in table.values() for tag in tags)})
