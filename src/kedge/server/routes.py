"""Every route of the server (section 3 of the contract). A part that is not built yet has no row."""

from __future__ import annotations

from typing import Any

from kedge.protocol import api
from kedge.protocol.files import ForkBody, RedoBody, Rewound, SessionFiles, SessionFilesQuery, UndoBody
from kedge.protocol.models import Offered
from kedge.protocol.requests import AnswerReceipt, Skip
from kedge.protocol.runs import Receipt, Run, RunStatus
from kedge.protocol.sessions import Job, JobList, Session, SessionChange, SessionDetails, SessionStatus, Workspace
from kedge.server.handlers import config, requests, runs, server, sessions, workspaces
from kedge.server.http import Operation

W = "/v1/workspaces/{workspace_id}"
S = W + "/sessions/{session_id}"
A = W + "/agent/sessions/{session_id}"

OPERATIONS = (
    Operation("GET", "/v1/health", "Is the server there?", server.health, api.Health),
    Operation(
        "GET",
        "/v1/proof",
        "Proof that the server has the token; needs none (TCP only)",
        server.proof,
        api.Proof,
        query=api.ProofQuery,
        errors=(404,),
    ),
    Operation("GET", "/v1/version", "Version and bounds", server.version, api.Version),
    Operation("GET", "/v1/openapi.json", "This description", server.openapi, dict[str, Any]),
    Operation("GET", "/v1/metrics", "Prometheus metrics", server.metrics, str, media_type=server.PROMETHEUS),
    Operation(
        "POST", "/v1/control", "Stop the server", server.control, api.Controlled, body=api.ControlBody, errors=(409,)
    ),
    Operation(
        "GET",
        "/v1/credentials",
        "Where keys come from, and their last four characters",
        config.list_credentials,
        api.CredentialList,
        query=api.CredentialsQuery,
        errors=(404,),
    ),
    Operation(
        "POST",
        "/v1/credentials",
        "Check a provider's key, and store it",
        config.log_in,
        api.StoredCredential,
        body=api.LoginBody,
        errors=(404,),
    ),
    Operation(
        "DELETE",
        "/v1/credentials/{provider_id}",
        "Forget a stored key",
        config.log_out,
        api.Deleted,
        errors=(422,),
    ),
    Operation("GET", "/v1/workspaces", "All workspaces", workspaces.list_workspaces, api.Workspaces),
    Operation(
        "POST",
        "/v1/workspaces",
        "Join the workspace of a directory",
        workspaces.open_workspace,
        Workspace,
        body=api.WorkspaceBody,
    ),
    Operation("GET", W, "One workspace", workspaces.get_workspace, Workspace),
    Operation(
        "DELETE", W, "Forget a workspace; its files stay", workspaces.delete_workspace, api.Deleted, errors=(409,)
    ),
    Operation(
        "GET",
        W + "/events",
        "The story as server-sent events, from a cursor on",
        workspaces.events,
        str,
        query=api.EventsQuery,
        media_type="text/event-stream; charset=utf-8",
    ),
    Operation(
        "GET", W + "/files", "Files by a part of their names", workspaces.find_files, api.Files, query=api.FilesQuery
    ),
    Operation("GET", W + "/commands", "The user's own commands", workspaces.list_commands, api.UserCommands),
    Operation("GET", W + "/log", "A page of the log", workspaces.read_log, api.LogAnswer, query=api.LogQuery),
    Operation("GET", W + "/sessions", "Sessions", sessions.list_sessions, api.Sessions, query=api.SessionsQuery),
    Operation("POST", W + "/sessions", "A new session", sessions.create_session, Session, body=api.SessionBody),
    Operation("GET", S, "One session", sessions.get_session, SessionDetails),
    Operation(
        "PATCH",
        S,
        "Rename a session, or choose its model",
        sessions.change_session,
        Session,
        body=SessionChange,
    ),
    Operation("DELETE", S, "Cancel a session's runs, then delete it", sessions.delete_session, api.Deleted),
    Operation(
        "GET", S + "/messages", "Messages, oldest first", sessions.list_messages, api.Messages, query=api.MessagesQuery
    ),
    Operation(
        "GET",
        S + "/files",
        "What a session changed in files",
        sessions.session_files,
        SessionFiles,
        query=SessionFilesQuery,
    ),
    Operation(
        "POST",
        S + "/undo",
        "Bring files and conversation back to before a message",
        sessions.undo_session,
        Rewound,
        body=UndoBody,
        errors=(409,),
    ),
    Operation(
        "POST", S + "/redo", "Take back the last undo", sessions.redo_session, Rewound, body=RedoBody, errors=(409,)
    ),
    Operation(
        "POST",
        S + "/fork",
        "A new session that goes on from a message",
        sessions.fork_session,
        Rewound,
        body=ForkBody,
        errors=(409,),
    ),
    Operation("GET", W + "/agent", "Is the agent busy, is it ready?", runs.agent_state, api.AgentState),
    Operation(
        "POST",
        W + "/agent",
        "Submit a prompt: accepted means durable",
        runs.submit,
        Receipt,
        status=202,
        body=api.SubmitBody,
        errors=(409, 429),
    ),
    Operation("GET", W + "/runs", "Runs", runs.list_runs, api.Runs, query=api.RunsQuery),
    Operation(
        "GET", W + "/runs/{run_id}", "One run, now or when it has ended", runs.get_run, RunStatus, query=api.RunQuery
    ),
    Operation("POST", W + "/runs/{run_id}/cancel", "Cancel one run", runs.cancel_run, Run),
    Operation("GET", A, "A session with what it is doing", runs.session_status, SessionStatus),
    Operation(
        "POST",
        A + "/summarize",
        "Summarize a session, so that its next prompts have room",
        runs.summarize,
        Receipt,
        status=202,
        body=api.SummarizeBody,
        errors=(409, 429),
    ),
    Operation(
        "POST",
        A + "/shell",
        "Run a person's own command; the model sees it with the next prompt",
        runs.shell,
        Receipt,
        status=202,
        body=api.ShellBody,
        errors=(409, 429),
    ),
    Operation("POST", A + "/cancel", "Cancel all that is open in a session", runs.cancel_session, api.Cancelled),
    Operation("GET", A + "/prompts/list", "The queue", runs.list_queue, api.Queue),
    Operation("POST", A + "/prompts/clear", "Empty the queue", runs.clear_queue, api.Cancelled),
    Operation(
        "DELETE",
        A + "/prompts/{run_id}",
        "Take one prompt out of the queue",
        runs.drop_queued,
        api.Cancelled,
        errors=(409,),
    ),
    Operation(
        "GET",
        W + "/config",
        "What is configured, and where each value comes from",
        config.get_config,
        api.ConfigAnswer,
        errors=(422,),
    ),
    Operation(
        "POST",
        W + "/config/set",
        "Set a key in the user's file or the workspace's",
        config.set_config,
        api.ConfigAnswer,
        body=api.ConfigSetBody,
    ),
    Operation(
        "POST",
        W + "/config/remove",
        "Remove a key, if it is there",
        config.remove_config,
        api.ConfigAnswer,
        body=api.ConfigRemoveBody,
    ),
    Operation(
        "POST", W + "/config/model", "Choose a model", config.set_model, api.ConfigAnswer, body=api.ConfigModelBody
    ),
    Operation(
        "GET",
        W + "/models",
        "Models that can be used, and for the rest why not",
        config.list_models,
        Offered,
        errors=(422,),
    ),
    Operation("GET", W + "/jobs", "Background jobs, newest first", runs.list_jobs, JobList),
    Operation("POST", W + "/jobs/{job_id}/kill", "End a background job", runs.kill_job, Job),
    Operation("GET", W + "/permissions", "Pending permissions", requests.list_permissions, api.PendingPermissions),
    Operation(
        "POST",
        W + "/permissions/grant",
        "Answer a permission request; the first answer wins",
        requests.grant_permission,
        AnswerReceipt,
        body=api.GrantBody,
    ),
    Operation("GET", W + "/permissions/skip", "Is nobody asked in this workspace?", requests.get_skip, Skip),
    Operation(
        "POST",
        W + "/permissions/skip",
        "Ask nobody in this workspace (yolo), or ask again",
        requests.set_skip,
        Skip,
        body=Skip,
    ),
    Operation("GET", W + "/questions", "Pending questions", requests.list_questions, api.PendingQuestions),
    Operation(
        "POST",
        W + "/questions/answer",
        "Answer a question; the first answer wins",
        requests.answer_question,
        AnswerReceipt,
        body=api.AnswerBody,
    ),
    Operation(
        "POST",
        W + "/questions/cancel",
        "Refuse to answer a question",
        requests.cancel_question,
        AnswerReceipt,
        body=api.RequestBody,
    ),
)
