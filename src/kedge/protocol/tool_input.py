"""Names and inputs of tool calls as models write them: common mistakes that have only one meaning are corrected.

The server corrects a name before the call is stored. An input is stored as the model wrote it, because it is streamed
(P12); everybody who reads it does so here, so that all see the same call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

# Names from other agents of tools that do the same with the same parameters, without case and separators.
_TOOL_ALIASES = {
    alias: name
    for name, aliases in {
        "view": "read readfile viewfile openfile cat",
        "ls": "listdir listdirectory listfiles",
        "glob": "findfiles globfiles",
        "grep": "grepsearch searchfilecontent ripgrep rg",
        "edit": "strreplace editfile fileedit replaceinfile searchreplace replace",
        "multiedit": "multieditfile",
        "write": "writefile filewrite createfile writetofile",
        "bash": "shell sh terminal runcommand runshellcommand runterminalcmd runinterminal executecommand executebash"
        " execcommand shellcommand bashcommand runbash",
        "job_output": "bashoutput getjoboutput",
        "job_kill": "killshell killbash killjob",
        "fetch": "webfetch fetchurl",
        "download": "downloadfile",
        "web_search": "websearch searchweb websearchexa googlewebsearch",
        "todos": "todowrite writetodos updatetodos",
        "question": "askuserquestion askuser askquestion",
        "agent": "task subagent dispatchagent",
        "skill": "useskill loadskill activateskill readskill",
    }.items()
    for alias in aliases.split()
}
# Tools that do something similar in another way.
_SIMILAR_TOOLS = {
    alias: name
    for name, aliases in {
        "edit": "applypatch strreplaceeditor strreplacebasededittool applydiff patch insert",
        "grep": "search searchfiles searchcode codebasesearch filesearch",
        "bash": "python exec run execute localshell computer",
        "view": "readmanyfiles readfiles",
        "fetch": "websearch browser http",
        "todos": "updateplan todoread",
    }.items()
    for alias in aliases.split()
}

_FILE = {"path": "filepath file filename absolutepath targetfile pathname"}
_DIRECTORY = {"path": "directory dir dirpath directorypath folder targetdirectory"}
_REPLACEMENT = {
    "old_string": "oldstr oldtext old search searchstring find",
    "new_string": "newstr newtext new replace replacement replacestring",
    "replace_all": "",
}
_JOB = {"job_id": "id job bashid shellid"}
# Other names for parameters, by tool, and by field of a tool for the objects in it.
_PARAM_NAMES: dict[str, dict[str, str]] = {
    "view": {**_FILE, "offset": "startline linestart", "limit": "maxlines numlines linecount"},
    "ls": _DIRECTORY,
    "glob": {**_DIRECTORY, "pattern": "globpattern glob"},
    "grep": {
        "path": "directory dir dirpath directorypath searchpath file filepath",
        "pattern": "regex query searchpattern regexp",
        "include": "glob includepattern filepattern includes",
        "ignore_case": "caseinsensitive",
        "files_only": "",
    },
    "edit": {**_FILE, **_REPLACEMENT},
    "multiedit": _FILE,
    "multiedit.edits": _REPLACEMENT,
    "write": {**_FILE, "content": "contents text filetext filecontent"},
    "bash": {
        "command": "cmd script commandline shellcommand",
        "description": "explanation",
        "run_in_background": "background isbackground",
        "working_dir": "cwd workdir workingdirectory",
    },
    "job_output": _JOB,
    "job_kill": _JOB,
    "fetch": {"url": "uri link"},
    "web_search": {"query": "q searchquery searchterm", "max_results": "numresults count limit"},
    "download": {"url": "uri link", "path": "filepath file filename output destination"},
    "todos": {"todos": "items tasks todolist"},
    "agent": {"prompt": "task instructions", "title": "description", "agent": "subagenttype agenttype agentname"},
    "skill": {"name": "skill skillname command", "arguments": "args"},
}
_PARAM_ALIASES = {
    where: {alias: name for name, aliases in names.items() for alias in (name.replace("_", ""), *aliases.split())}
    for where, names in _PARAM_NAMES.items()
}
_SEPARATORS = re.compile(r"[^a-z0-9]")
_FENCE = re.compile(r"```[a-zA-Z_]*+[ \t]*+\n(.*)```", re.DOTALL)
# A string without an end reaches to the end of the text, so that the time is linear.
_STRING_OR_COMMA = re.compile(r'"(?:[^"\\]|\\.?)*+"?|,(?=\s*[}\]])', re.DOTALL)


def correct_tool_name(name: str, tools: Iterable[str]) -> str:
    """Return the tool that a name means; a name that means none, or more than one, as it is."""
    known = list(tools)
    if name in known:
        return name
    plain = _simplify(name)
    same = [tool for tool in known if _simplify(tool) == plain]
    if len(same) == 1:
        return same[0]
    alias = _TOOL_ALIASES.get(plain)
    return alias if alias in known and not same else name


def find_similar_tool(name: str) -> str | None:
    """Return the tool to suggest for a name of other agents."""
    plain = _simplify(name)
    return _SIMILAR_TOOLS.get(plain) or _TOOL_ALIASES.get(plain)


def parse_tool_input(text: str) -> dict[str, Any] | None:
    """Return a JSON object that may be in a code fence and have raw control characters and trailing commas, or None."""
    text = text.strip()
    if text.startswith("```") and (fenced := _FENCE.fullmatch(text)):
        text = fenced[1].strip()
    for candidate in (text, _STRING_OR_COMMA.sub(_drop_comma, text)):
        try:
            value: Any = json.loads(candidate or "{}", strict=False, parse_constant=_refuse_constant)
            if isinstance(value, str):  # encoded twice, as some models do
                value = json.loads(value, strict=False, parse_constant=_refuse_constant)
            json.dumps(value, ensure_ascii=False).encode()  # fails for half a surrogate pair
        except (ValueError, RecursionError):
            continue
        if value is None:
            return {}
        return cast("dict[str, Any]", value) if isinstance(value, dict) else None
    return None


def correct_params(tool: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the input of a call with the tool's own parameter names, where a name can mean only one of them."""
    params = _rename(given, _PARAM_ALIASES.get(tool, {}))
    for name, value in params.items():
        aliases = _PARAM_ALIASES.get(f"{tool}.{name}")
        if aliases and isinstance(value, list):
            params[name] = [
                _rename(cast("dict[str, Any]", item), aliases) if isinstance(item, dict) else item
                for item in cast("list[Any]", value)
            ]
    if tool == "view" and params.get("offset") in (0, "0") and params.get("offset") is not False:
        params["offset"] = 1
    return params


def _rename(given: Mapping[str, Any], aliases: Mapping[str, str]) -> dict[str, Any]:
    own = frozenset(aliases.values())
    meant = {key: aliases.get(_simplify(key)) for key in given if key not in own}
    names = list(meant.values())
    return {
        name if (name := meant.get(key)) is not None and name not in given and names.count(name) == 1 else key: value
        for key, value in given.items()
    }


def _simplify(name: str) -> str:
    return _SEPARATORS.sub("", name.lower())


def _drop_comma(match: re.Match[str]) -> str:
    return "" if match[0] == "," else match[0]


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
