"""One example of every struct of the protocol, with the JSON that stands for it on the wire (sections 3 and 4)."""

import msgspec

from kedge.protocol.api import (
    ContextPart,
    Offered,
    OfferedModel,
    OfferedProvider,
    SessionContext,
    SessionGrant,
    SessionGrants,
)
from kedge.protocol.errors import ErrorBody
from kedge.protocol.events import (
    AgentEvent,
    CaughtUp,
    ConfigChanged,
    Connected,
    FileChange,
    Heartbeat,
    SkillsChanged,
    StreamReset,
)
from kedge.protocol.files import (
    FilesConflictBody,
    FileStep,
    ForkBody,
    RedoBody,
    Rewound,
    SessionFile,
    SessionFiles,
    SessionFilesQuery,
    Timeline,
    TimelineCall,
    TimelineFile,
    TimelineTotal,
    TimelineTurn,
    TimelineUndo,
    UndoBody,
)
from kedge.protocol.lsp import LspEvent, LspServer, LspServers
from kedge.protocol.mcp import McpEvent, McpServer, McpServers, McpTool
from kedge.protocol.mcp_requests import (
    McpLoggedOut,
    McpLogin,
    McpLoginAccepted,
    McpLoginAnswerBody,
    McpLoginQuery,
    McpLoginState,
    McpPrompt,
    McpPromptArgument,
    McpPromptBody,
    McpPrompts,
    McpPromptText,
    McpResource,
    McpResourceBody,
    McpResourceContent,
    McpResources,
    McpTest,
)
from kedge.protocol.messages import (
    Delta,
    File,
    Finish,
    Image,
    Message,
    Reasoning,
    ShellCommand,
    Text,
    ToolCall,
    ToolResult,
)
from kedge.protocol.requests import (
    Answer,
    AnswerReceipt,
    PermissionRequest,
    QuestionRequest,
    RequestResolution,
    Skip,
)
from kedge.protocol.runs import (
    Attachment,
    QueuedPrompt,
    Receipt,
    Run,
    RunEnd,
    RunOptions,
    RunStatus,
    Submission,
    Usage,
    Waiting,
)
from kedge.protocol.sessions import (
    Job,
    JobList,
    JobOutput,
    ListedSession,
    Session,
    SessionChange,
    SessionDetails,
    SessionStatus,
    Workspace,
)
from kedge.protocol.skills import (
    FileProblem,
    ShadowedFile,
    SkillInfo,
    SkillList,
    SubAgentInfo,
    UserCommand,
    UserCommands,
)

RUN = Run(
    run_id="r1",
    session_id="s1",
    kind="prompt",
    state="queued",
    prompt="hi",
    on_busy="queue",
    permissions="ask",
    model=None,
    attempt=0,
    cancel_requested=False,
    seq=3,
)
RUN_JSON = (
    '{"run_id":"r1","session_id":"s1","kind":"prompt","state":"queued","prompt":"hi","on_busy":"queue",'
    '"permissions":"ask","model":null,"attempt":0,"cancel_requested":false,"seq":3}'
)
JOB = Job(
    id="j1",
    command="make",
    description="build",
    session_id="s1",
    run_id="r1",
    state="running",
    exit_code=None,
    started_at=1.5,
    output_file="/tmp/out",
)
JOB_JSON = (
    '{"id":"j1","command":"make","description":"build","session_id":"s1","run_id":"r1","state":"running",'
    '"exit_code":null,"started_at":1.5,"output_file":"/tmp/out"}'
)
ATTACHMENT = Attachment("a.txt", "text/plain", b"hi")
ATTACHMENT_JSON = '{"file_name":"a.txt","mime_type":"text/plain","content":"aGk="}'
SESSION = Session(id="s1", title="t", created_at=1.5, updated_at=2.5)
SESSION_JSON = '{"id":"s1","title":"t","created_at":1.5,"updated_at":2.5}'
USAGE_JSON = (
    '{"input_tokens":1,"output_tokens":2,"cache_read_tokens":3,"cache_write_tokens":4,"cost":0.5,"estimated":true}'
)
NO_USAGE_JSON = (
    '{"input_tokens":0,"output_tokens":0,"cache_read_tokens":0,"cache_write_tokens":0,"cost":0.0,"estimated":false}'
)

# Each struct with nothing that can be left out, then, where something can be, with everything.
MODEL = OfferedModel(
    name="p/m",
    context_window=9000,
    max_output_tokens=None,
    input_price=1.5,
    output_price=2.0,
    cache_read_price=None,
    cache_write_price=None,
    images=False,
    tools=True,
    reasoning=False,
    efforts=[],
    source="catalog",
    roles=["large"],
)
MODEL_JSON = (
    '{"name":"p/m","context_window":9000,"max_output_tokens":null,"input_price":1.5,"output_price":2.0,'
    '"cache_read_price":null,"cache_write_price":null,"images":false,"tools":true,"reasoning":false,"efforts":[],'
    '"source":"catalog","roles":["large"]}'
)
PROVIDER = OfferedProvider(id="p", title="P", usable=True, why="P_API_KEY is set", models=[MODEL])
PROVIDER_JSON = f'{{"id":"p","title":"P","usable":true,"why":"P_API_KEY is set","models":[{MODEL_JSON}]}}'

EXAMPLES: list[tuple[msgspec.Struct, str]] = [
    (ErrorBody("session_busy", "wait"), '{"code":"session_busy","message":"wait"}'),
    # runs
    (ATTACHMENT, ATTACHMENT_JSON),
    (
        Submission(session_id="s1", prompt="hi", attachments=(Attachment("a", "text/plain", b""),)),
        (
            '{"session_id":"s1","prompt":"hi","kind":"prompt","attachments":[{"file_name":"a","mime_type":"text/plain",'
            '"content":""}],"on_busy":"queue","permissions":"ask","model":null,"parent_run_id":null,"options":{}}'
        ),
    ),
    (RunOptions(), "{}"),
    (
        RunOptions(
            system="be brief",
            max_steps=3,
            max_cost=0.5,
            output_schema={"type": "object"},
            mode="plan",
            allow=("bash(git *)",),
            deny=("write(*)",),
            effort="low",
        ),
        (
            '{"system":"be brief","max_steps":3,"max_cost":0.5,"output_schema":{"type":"object"},"mode":"plan",'
            '"allow":["bash(git *)"],"deny":["write(*)"],"effort":"low"}'
        ),
    ),
    (
        Receipt("r1", "s1", "queued", 3, replayed=False),
        '{"run_id":"r1","session_id":"s1","state":"queued","seq":3,"replayed":false}',
    ),
    (RUN, RUN_JSON),
    (
        msgspec.structs.replace(RUN, state="running", merged_into="r0", parent_run_id="p1", model="a/b"),
        (
            '{"run_id":"r1","session_id":"s1","kind":"prompt","state":"running","prompt":"hi","on_busy":"queue",'
            '"permissions":"ask","model":"a/b","attempt":0,"cancel_requested":false,"seq":3,"merged_into":"r0",'
            '"parent_run_id":"p1"}'
        ),
    ),
    (
        RunStatus(
            **{field: getattr(RUN, field) for field in RUN.__struct_fields__},
            usage=Usage(1, 2, 3, 4, 0.5, True),
            error="no",
            code="failed",
        ),
        f'{RUN_JSON[:-1]},"usage":{USAGE_JSON},"error":"no","code":"failed"}}',
    ),
    (Usage(1, 2, 3, 4, 0.5, True), USAGE_JSON),
    (Waiting("rate_limit", 1.5), '{"reason":"rate_limit","until":1.5}'),
    (
        msgspec.structs.replace(RUN, waiting=Waiting("network", 1.5)),
        f'{RUN_JSON[:-1]},"waiting":{{"reason":"network","until":1.5}}}}',
    ),
    (
        RunEnd(session_id="s1", run_id="r1", message_id=None, text="", usage=Usage()),
        f'{{"session_id":"s1","run_id":"r1","message_id":null,"text":"","usage":{NO_USAGE_JSON}}}',
    ),
    (
        RunEnd(session_id="s1", run_id="r1", message_id="m1", text="", usage=Usage(), error="no", code="failed"),
        (
            f'{{"session_id":"s1","run_id":"r1","message_id":"m1","text":"","usage":{NO_USAGE_JSON},'
            '"error":"no","code":"failed"}'
        ),
    ),
    (
        RunEnd(session_id="s1", run_id="r1", message_id="m1", text="so far", usage=Usage(), cancelled=True),
        (
            f'{{"session_id":"s1","run_id":"r1","message_id":"m1","text":"so far","usage":{NO_USAGE_JSON},'
            '"cancelled":true}'
        ),
    ),
    # sessions
    (Workspace("w1", "/tmp", 1.5), '{"id":"w1","path":"/tmp","created_at":1.5}'),
    (SESSION, SESSION_JSON),
    (
        msgspec.structs.replace(SESSION, parent_session_id="s0"),
        '{"id":"s1","title":"t","created_at":1.5,"updated_at":2.5,"parent_session_id":"s0"}',
    ),
    (
        msgspec.structs.replace(SESSION, model="a/b", effort="high"),
        '{"id":"s1","title":"t","created_at":1.5,"updated_at":2.5,"model":"a/b","effort":"high"}',
    ),
    (SessionChange(), "{}"),
    (SessionChange(title="t", model=None, effort="low"), '{"title":"t","model":null,"effort":"low"}'),
    (
        SessionDetails(id="s1", title="t", created_at=1.5, updated_at=2.5, usage=Usage()),
        f'{SESSION_JSON[:-1]},"usage":{NO_USAGE_JSON}}}',
    ),
    (
        SessionStatus(
            id="s1", title="t", created_at=1.5, updated_at=2.5, usage=Usage(), is_busy=True, active=None, queue=[RUN]
        ),
        f'{SESSION_JSON[:-1]},"usage":{NO_USAGE_JSON},"is_busy":true,"active":null,"queue":[{RUN_JSON}]}}',
    ),
    (
        SessionGrants([SessionGrant(id="q1", tool="bash", description="run ls", rules=["bash(ls *)"])]),
        '{"grants":[{"id":"q1","tool":"bash","description":"run ls","rules":["bash(ls *)"]}]}',
    ),
    (
        SessionContext(
            model="a/b",
            context_window=1000,
            used_tokens=10,
            free_tokens=990,
            summarize_at_tokens=800,
            estimated=False,
            parts=[ContextPart(kind="system", tokens=10, chars=40)],
        ),
        (
            '{"model":"a/b","context_window":1000,"used_tokens":10,"free_tokens":990,"summarize_at_tokens":800,'
            '"estimated":false,"parts":[{"kind":"system","tokens":10,"chars":40}]}'
        ),
    ),
    (
        ListedSession(
            id="s1",
            title="t",
            created_at=1.5,
            updated_at=2.5,
            usage=Usage(),
            workspace_id="w1",
            path="/w",
            state="needs_you",
            last_model="a/b",
        ),
        (
            f'{SESSION_JSON[:-1]},"usage":{NO_USAGE_JSON},"workspace_id":"w1","path":"/w","state":"needs_you",'
            '"last_model":"a/b"}'
        ),
    ),
    # jobs
    (JOB, JOB_JSON),
    (JobList([JOB]), f'{{"jobs":[{JOB_JSON}]}}'),
    (MODEL, MODEL_JSON),
    (PROVIDER, PROVIDER_JSON),
    (
        Offered(model="p/m", small_model=None, why="w", catalog_date="2026-11-15", providers=[PROVIDER]),
        f'{{"model":"p/m","small_model":null,"why":"w","catalog_date":"2026-11-15","providers":[{PROVIDER_JSON}],"catalog_source":null}}',
    ),
    # messages
    (Text("hi"), '{"type":"text","text":"hi"}'),
    (Reasoning("hm"), '{"type":"reasoning","text":"hm"}'),
    (Reasoning("hm", "sig"), '{"type":"reasoning","text":"hm","signature":"sig"}'),
    (
        ToolCall("c1", "bash", '{"a":1}', True),
        '{"type":"tool_call","id":"c1","name":"bash","input":"{\\"a\\":1}","finished":true}',
    ),
    (
        ToolResult("c1", "bash", "out", False),
        '{"type":"tool_result","tool_call_id":"c1","name":"bash","content":"out","is_error":false}',
    ),
    (
        ToolResult("c1", "bash", "out", True, {"exit": 1}),
        (
            '{"type":"tool_result","tool_call_id":"c1","name":"bash","content":"out","is_error":true,'
            '"metadata":{"exit":1}}'
        ),
    ),
    (Image("image/png", b"\x89P"), '{"type":"image","mime_type":"image/png","data":"iVA="}'),
    (Image("image/png", b"\x89P", "a.png"), '{"type":"image","mime_type":"image/png","data":"iVA=","name":"a.png"}'),
    (File("a", "text/plain", b"hi"), '{"type":"file","name":"a","mime_type":"text/plain","data":"aGk="}'),
    (
        ShellCommand("ls", "a\n", None),
        '{"type":"shell_command","command":"ls","output":"a\\n","exit_code":null}',
    ),
    (Reasoning("", "sig", redacted=True), '{"type":"reasoning","text":"","signature":"sig","redacted":true}'),
    (
        Finish("tool_use", usage=Usage(1, 2, 3, 4, 0.5, True)),
        f'{{"type":"finish","reason":"tool_use","usage":{USAGE_JSON}}}',
    ),
    (Finish("end_turn"), '{"type":"finish","reason":"end_turn"}'),
    (Finish("error", "no", "why"), '{"type":"finish","reason":"error","message":"no","details":"why"}'),
    (
        Message(id="m1", session_id="s1", run_id="r1", role="user", parts=[Text("hi")], created_at=1.5),
        (
            '{"id":"m1","session_id":"s1","run_id":"r1","role":"user","parts":[{"type":"text","text":"hi"}],'
            '"created_at":1.5}'
        ),
    ),
    (
        Message(
            id="m1",
            session_id="s1",
            run_id="r1",
            role="assistant",
            parts=[],
            created_at=1.5,
            model="a/b",
            summary=True,
        ),
        (
            '{"id":"m1","session_id":"s1","run_id":"r1","role":"assistant","parts":[],"created_at":1.5,"model":"a/b",'
            '"summary":true}'
        ),
    ),
    (
        Delta("m1", "s1", "r1", 0, "text", 5, "hi"),
        '{"message_id":"m1","session_id":"s1","run_id":"r1","part":0,"kind":"text","offset":5,"text":"hi"}',
    ),
    # requests
    (
        PermissionRequest(
            id="q1",
            session_id="s1",
            run_id="r1",
            tool_call_id="c1",
            tool="bash",
            action="run",
            description="run ls",
            params={},
        ),
        (
            '{"id":"q1","session_id":"s1","run_id":"r1","tool_call_id":"c1","tool":"bash","action":"run",'
            '"description":"run ls","params":{}}'
        ),
    ),
    (
        PermissionRequest(
            id="q1",
            session_id="s1",
            run_id="r1",
            tool_call_id="c1",
            tool="edit",
            action="write",
            description="d",
            params={"a": [1]},
            path="a.py",
        ),
        (
            '{"id":"q1","session_id":"s1","run_id":"r1","tool_call_id":"c1","tool":"edit","action":"write",'
            '"description":"d","params":{"a":[1]},"path":"a.py"}'
        ),
    ),
    (
        QuestionRequest(id="q1", session_id="s1", run_id="r1", tool_call_id="c1", questions=[{"question": "why?"}]),
        '{"id":"q1","session_id":"s1","run_id":"r1","tool_call_id":"c1","questions":[{"question":"why?"}]}',
    ),
    (Answer(action="allow", by="tui"), '{"action":"allow","by":"tui"}'),
    (Answer(action="answer", by="tui", answers=["x"]), '{"action":"answer","by":"tui","answers":["x"]}'),
    (
        RequestResolution(id="q1", session_id="s1", run_id="r1", tool_call_id="c1", action="deny", by="tui"),
        '{"id":"q1","session_id":"s1","run_id":"r1","tool_call_id":"c1","action":"deny","by":"tui"}',
    ),
    (
        RequestResolution(
            id="q1", session_id="s1", run_id="r1", tool_call_id="c1", action="answer", by="tui", answers=[1]
        ),
        '{"id":"q1","session_id":"s1","run_id":"r1","tool_call_id":"c1","action":"answer","by":"tui","answers":[1]}',
    ),
    (Skip(True), '{"skip":true}'),
    (
        AnswerReceipt(resolved=False, by="tui", action="deny"),
        '{"resolved":false,"by":"tui","action":"deny"}',
    ),
    # events
    (
        AgentEvent(type="error", run_id="r1", session_id="s1", error="no", code="failed"),
        '{"type":"error","run_id":"r1","session_id":"s1","error":"no","code":"failed"}',
    ),
    (
        AgentEvent(
            type="re_authenticate",
            run_id="r1",
            session_id="s1",
            provider_id="openai",
            message="log in",
            details={"url": "u"},
        ),
        (
            '{"type":"re_authenticate","run_id":"r1","session_id":"s1","provider_id":"openai","message":"log in",'
            '"details":{"url":"u"}}'
        ),
    ),
    (
        FileChange("s1", "r1", "a.py", 2, 10, 3),
        '{"session_id":"s1","run_id":"r1","path":"a.py","version":2,"added":10,"removed":3}',
    ),
    (
        FileStep(path="a.py", status="modified", added=1, removed=0),
        '{"path":"a.py","status":"modified","added":1,"removed":0}',
    ),
    (
        FileStep(path="a.py", status="deleted", obstacle="changed"),
        '{"path":"a.py","status":"deleted","obstacle":"changed"}',
    ),
    (
        FilesConflictBody("files_conflict", "nothing was touched", (FileStep(path="a.py", status="created"),)),
        '{"code":"files_conflict","message":"nothing was touched","files":[{"path":"a.py","status":"created"}]}',
    ),
    (
        SessionFile(path="a.py", status="modified", versions=2, added=3, removed=1, diff="@@"),
        '{"path":"a.py","status":"modified","versions":2,"added":3,"removed":1,"diff":"@@"}',
    ),
    (SessionFiles([], ["/w is not watched"]), '{"files":[],"notes":["/w is not watched"]}'),
    (SessionFilesQuery("r1", True), '{"run_id":"r1","diff":true}'),
    (
        UndoBody(message_id="m1", force=True),
        '{"message_id":"m1","restore":"both","dry_run":false,"force":true,"include_unsure":false}',
    ),
    (RedoBody(dry_run=True), '{"dry_run":true}'),
    (
        ForkBody(with_files=True),
        '{"message_id":null,"with_files":true,"dry_run":false,"force":false,"include_unsure":false}',
    ),
    (
        Rewound(
            id="s1",
            title="t",
            created_at=1.0,
            updated_at=2.0,
            undone_from="m1",
            files=[FileStep(path="a.py", status="created")],
            notes=[],
            dry_run=False,
            prompt="hi",
        ),
        (
            '{"id":"s1","title":"t","created_at":1.0,"updated_at":2.0,"undone_from":"m1",'
            '"files":[{"path":"a.py","status":"created"}],"notes":[],"dry_run":false,"prompt":"hi"}'
        ),
    ),
    (
        TimelineFile(path="a.py", status="modified", added=1, removed=2, unsure="background_job", undone=True),
        '{"path":"a.py","status":"modified","added":1,"removed":2,"unsure":"background_job","undone":true}',
    ),
    (TimelineCall(tool="bash", files=[], command="make"), '{"tool":"bash","files":[],"command":"make"}'),
    (TimelineTotal(files=1, added=2), '{"files":1,"added":2,"removed":0,"unsure":0}'),
    (
        TimelineTurn(
            seq=3,
            message_id="m1",
            run_id="r1",
            prompt="hi",
            created_at=1.0,
            state="undone",
            calls=[],
            back=TimelineTotal(),
        ),
        (
            '{"seq":3,"message_id":"m1","run_id":"r1","prompt":"hi","created_at":1.0,"state":"undone","calls":[],'
            '"back":{"files":0,"added":0,"removed":0,"unsure":0}}'
        ),
    ),
    (
        TimelineUndo(seq=9, message_id="m1", restore="files", state="redone", at=1.5),
        '{"seq":9,"message_id":"m1","restore":"files","state":"redone","at":1.5}',
    ),
    (
        Timeline(turns=[], undos=[], omitted=0, notes=[]),
        '{"turns":[],"undos":[],"omitted":0,"notes":[]}',
    ),
    (ConfigChanged("w1"), '{"workspace_id":"w1"}'),
    (
        McpTool(name="mcp_git_log", tool="log", description="Show commits"),
        '{"name":"mcp_git_log","tool":"log","description":"Show commits"}',
    ),
    (
        McpServer(name="git", kind="stdio", state="ready", tools=[McpTool(name="mcp_git_log", tool="log")], pid=7),
        '{"name":"git","kind":"stdio","state":"ready","tools":[{"name":"mcp_git_log","tool":"log"}],"pid":7}',
    ),
    (
        McpServers([McpServer(name="web", kind="http", state="failed", error="gone")]),
        '{"servers":[{"name":"web","kind":"http","state":"failed","error":"gone"}]}',
    ),
    (McpEvent(name="git", state="ready", tools=3), '{"name":"git","state":"ready","tools":3}'),
    (
        LspServers([LspServer(name="ruff", root=".", state="ready", pid=7, documents=2, errors=1)]),
        '{"servers":[{"name":"ruff","root":".","state":"ready","pid":7,"documents":2,"errors":1}]}',
    ),
    (
        LspServer(name="ruff", root=".", state="starting"),
        '{"name":"ruff","root":".","state":"starting"}',
    ),
    (
        LspEvent(name="ruff", root=".", state="failed", error="gone"),
        '{"name":"ruff","root":".","state":"failed","error":"gone"}',
    ),
    (
        QueuedPrompt(RUN, [ATTACHMENT]),
        f'{{"run":{RUN_JSON},"attachments":[{ATTACHMENT_JSON}]}}',
    ),
    (JobOutput(JOB, "done", 4), f'{{"job":{JOB_JSON},"text":"done","next":4}}'),
    (McpLogin("https://example.com/login"), '{"url":"https://example.com/login"}'),
    (McpLoginQuery(1.5), '{"wait":1.5}'),
    (McpLoginState("waiting"), '{"state":"waiting"}'),
    (McpLoginState("failed", "refused"), '{"state":"failed","error":"refused"}'),
    (McpLoginAnswerBody("http://127.0.0.1:1/callback?code=x"), '{"url":"http://127.0.0.1:1/callback?code=x"}'),
    (McpLoginAccepted(True), '{"accepted":true}'),
    (McpLoggedOut(False), '{"removed":false}'),
    (McpPromptArgument(name="who", required=True), '{"name":"who","required":true}'),
    (
        McpPrompt(server="git", name="greet", arguments=[McpPromptArgument(name="who")]),
        '{"server":"git","name":"greet","arguments":[{"name":"who"}]}',
    ),
    (McpPrompts([McpPrompt(server="git", name="greet")]), '{"prompts":[{"server":"git","name":"greet"}]}'),
    (McpPromptBody("greet", {"who": "you"}), '{"name":"greet","arguments":{"who":"you"}}'),
    (McpPromptText("Hi."), '{"text":"Hi.","attachments":[]}'),
    (
        McpResource(server="git", uri="note://{day}", name="day", mime_type="text/plain", is_template=True),
        '{"server":"git","uri":"note://{day}","name":"day","mime_type":"text/plain","is_template":true}',
    ),
    (McpResources([McpResource(server="git", uri="note://a")]), '{"resources":[{"server":"git","uri":"note://a"}]}'),
    (McpResourceBody("note://a"), '{"uri":"note://a"}'),
    (McpResourceContent([]), '{"attachments":[]}'),
    (
        McpTest(name="git", ok=False, error="gone", needs_login=True),
        '{"name":"git","ok":false,"error":"gone","needs_login":true}',
    ),
    (
        McpTest(
            name="git", ok=True, version="1", connect_ms=3, list_ms=2, tools=[McpTool(name="mcp_git_log", tool="log")]
        ),
        '{"name":"git","ok":true,"version":"1","connect_ms":3,"list_ms":2,"tools":[{"name":"mcp_git_log","tool":"log"}]}',
    ),
    (SkillsChanged("w1"), '{"workspace_id":"w1"}'),
    (
        UserCommands([UserCommand(name="review", description="Reviews", source="plugin", text="Look.")]),
        (
            '{"commands":[{"name":"review","description":"Reviews","source":"plugin","text":"Look.",'
            '"kind":"command","argument_hint":""}]}'
        ),
    ),
    (
        UserCommand(name="pdf", description="PDFs", source="user", text="Read.", kind="skill", argument_hint="[file]"),
        '{"name":"pdf","description":"PDFs","source":"user","text":"Read.","kind":"skill","argument_hint":"[file]"}',
    ),
    (
        SkillInfo(name="pdf", description="PDFs", source="user", path="/s", user_invocable=True, model_invocable=False),
        '{"name":"pdf","description":"PDFs","source":"user","path":"/s","user_invocable":true,"model_invocable":false}',
    ),
    (
        SubAgentInfo(
            name="fix",
            description="Fixes",
            source="workspace",
            path="/a.md",
            tools=["view"],
            may_write=False,
            wants_to_write=True,
        ),
        (
            '{"name":"fix","description":"Fixes","source":"workspace","path":"/a.md","tools":["view"],"may_write":false,'
            '"wants_to_write":true}'
        ),
    ),
    (
        ShadowedFile(kind="skill", name="pdf", path="/b", by="/a"),
        '{"kind":"skill","name":"pdf","path":"/b","by":"/a"}',
    ),
    (
        FileProblem(path="/b", problem="no description", is_used=False),
        '{"path":"/b","problem":"no description","is_used":false}',
    ),
    (
        SkillList(skills=[], agents=[], shadowed=[], problems=[], untrusted=["/w/.kedge/skills"]),
        '{"skills":[],"agents":[],"shadowed":[],"problems":[],"untrusted":["/w/.kedge/skills"]}',
    ),
    (Connected("log1", 9, 4), '{"log_id":"log1","head":9,"after":4}'),
    (CaughtUp(9), '{"seq":9}'),
    (Heartbeat(9), '{"head":9}'),
    (StreamReset("retention", 9), '{"reason":"retention","head":9}'),
]
